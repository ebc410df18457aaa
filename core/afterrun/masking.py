"""Passwords in addresses and in what drivers say about them, masked before anybody reads or logs them."""

from __future__ import annotations

import re
from functools import reduce
from typing import Final
from urllib.parse import unquote

MASK: Final = "***"

_NAMES: Final = r"[\w-]*(?:password|passwd|secret|token)"
_IN_USERINFO: Final = re.compile(r"(?<=://)([^:@/?#\s]*:)([^/?#\s]*)(?=@)")
_IN_BROKEN_USERINFO: Final = re.compile(r"(?<=://)([^:@/?#\s]*:)(.*)(?=@)", re.DOTALL)
"""A password with an unquoted `/`, `?` or `#`: no valid address, but one that errors show."""
_IN_HTTP_USERINFO: Final = re.compile(r"(?i)^(https?://)([^@/?#\s]+)(?=@)")
_IN_QUERY: Final = re.compile(rf"(?i)([?&]{_NAMES}=)([^&#]+)")
_IN_CONNINFO: Final = re.compile(rf"(?i)(\b{_NAMES}\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|[^\s\\])+)")


def masked_url(url: str) -> str:
    """`url`, or a `key=value` connection string, with its passwords masked."""
    return reduce(lambda text, pattern: pattern.sub(rf"\1{MASK}", text), _patterns(url), url)


def masked_text(text: str, url: str) -> str:
    """`text`, such as an error of a driver, with `url` and every secret that stands in it masked."""
    text = text.replace(url, masked_url(url))
    raw = {found[2].strip("'") for pattern in _patterns(url) for found in pattern.finditer(url)}
    # Of an address that is no valid one, errors tell pieces, such as the port that a password up to a slash is read as.
    raw |= {piece for secret in raw for piece in re.split(r"[:/?#@]", secret) if len(piece) > 3}
    secrets = {form for secret in raw for form in (secret, unquote(secret), re.sub(r"\\(.)", r"\1", secret))}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _patterns(url: str) -> tuple[re.Pattern[str], ...]:
    if not re.match(r"[A-Za-z][\w+.-]*://", url):
        return (_IN_CONNINFO,)
    if url.lower().startswith("http"):
        return (_IN_HTTP_USERINFO, _IN_QUERY)
    return (_IN_USERINFO if "@" in re.split(r"[/?#]", url, maxsplit=3)[2] else _IN_BROKEN_USERINFO, _IN_QUERY)
