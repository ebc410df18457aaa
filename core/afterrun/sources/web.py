"""Pages of the web: fetched one by one, bounded in size, time and redirects, and only where they changed.

Only http and https are fetched, and only texts and PDFs are read. Addresses inside a company's own network may be
indexed: whoever runs the indexer names them. But a server outside does not get to redirect the indexer inside.
"""

from __future__ import annotations

import ipaddress
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import BinaryIO, Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from afterrun.errors import AfterrunError, InputError
from afterrun.sources.listing import LONGEST_PATH

LARGEST: Final = 20_000_000
"""Bytes of a page, at most."""
SECONDS: Final = 30.0
"""For a page with all its redirects."""
REDIRECTS: Final = 5
SUFFIXES: Final[Mapping[str, str]] = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
    "text/x-rst": ".rst",
    "text/prs.fallenstein.rst": ".rst",
    "text/plain": ".txt",
    "application/pdf": ".pdf",
}
"""What is read, by content type, and the suffix of its format."""

_PIECE: Final = 1 << 16
_GONE: Final = frozenset((404, 410))
_REDIRECTING: Final = frozenset((301, 302, 303, 307, 308))
_NOT_MODIFIED: Final = 304
_AGENT: Final = "afterrun (+https://pypi.org/project/afterrun)"


class FetchError(AfterrunError):
    """A page could not be fetched, or is none to read; the message says why."""


class GoneError(FetchError):
    """The server says that there is no such page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page: its content, a name with the suffix of its format, and what its server wants to hear the next time."""

    content: bytes
    name: str
    etag: str | None = None
    last_modified: str | None = None


def address(url: str) -> str:
    """The address as it is fetched and kept: without user, password and fragment. Raises InputError."""
    try:
        parts = urlsplit(url.strip())
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise InputError(f"an address cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or any(sign.isspace() for sign in url.strip()):
        raise InputError("an address begins with http:// or https:// and a host, and has no spaces")
    if len(url.encode("utf-8", "replace")) > LONGEST_PATH:
        raise InputError(f"an address has at most {LONGEST_PATH:,} bytes")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, host + port, parts.path or "/", parts.query, ""))


class Fetcher:
    """Fetches pages; `seconds` bounds one page with its redirects, `largest` its bytes."""

    def __init__(
        self, *, seconds: float = SECONDS, largest: int = LARGEST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._largest = largest
        self._clock = clock
        self._opener = urllib.request.build_opener(_NoRedirects)

    def fetch(self, url: str, etag: str | None = None, last_modified: str | None = None) -> Page | None:
        """The page, or None where the server says that it did not change since `etag` and `last_modified`.

        Raises:
            GoneError: there is no such page.
            FetchError: it could not be fetched in time, is too large, or of no type that is read.
        """
        deadline = self._clock() + self._seconds
        conditions = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        headers = {"User-Agent": _AGENT, **{name: value for name, value in conditions.items() if value}}
        with self._answered(url, headers, deadline) as (response, url):
            return None if response.status == _NOT_MODIFIED else self._page(response, url, deadline)

    def download(self, url: str, into: BinaryIO) -> None:
        """Write what lies at an address into a file, whatever its type. Raises as `fetch`."""
        deadline = self._clock() + self._seconds
        with self._answered(address(url), {"User-Agent": _AGENT}, deadline) as (response, _):
            for piece in self._body(response, deadline):
                into.write(piece)

    @contextmanager
    def _answered(self, url: str, headers: Mapping[str, str], deadline: float) -> Iterator[tuple[HTTPResponse, str]]:
        """The answer behind all redirects, and the address that gave it."""
        began_outside = not _is_inside(url)
        for _ in range(REDIRECTS + 1):
            with self._open(url, headers, deadline) as response:
                if response.status not in _REDIRECTING:
                    yield response, url
                    return
                url = _redirected(url, response.headers)
            if began_outside and _is_inside(url):
                raise FetchError("it redirects from outside into this network")
        raise FetchError(f"it redirects more than {REDIRECTS} times")

    def _open(self, url: str, headers: Mapping[str, str], deadline: float) -> HTTPResponse:
        left = deadline - self._clock()
        if left <= 0:
            raise FetchError(f"it takes longer than {self._seconds:g} s")
        try:
            response: HTTPResponse = self._opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=left)
        except (OSError, HTTPException, ValueError) as error:
            raise FetchError(f"it cannot be fetched: {_reason(error)}") from error
        if response.status in _GONE:
            response.close()
            raise GoneError("gone")
        if response.status >= 400:
            response.close()
            raise FetchError(f"the server answers {response.status}")
        return response

    def _page(self, response: HTTPResponse, url: str, deadline: float) -> Page:
        kind = response.headers.get_content_type()
        if kind not in SUFFIXES:
            raise FetchError(f"it is {kind}, which is not read")
        content = b"".join(self._body(response, deadline))
        if kind != "application/pdf":
            content = _as_utf8(content, response.headers.get_content_charset())
        return Page(
            content=content,
            name=f"page{_suffix(kind, url)}",
            etag=response.headers.get("ETag"),
            last_modified=response.headers.get("Last-Modified"),
        )

    def _body(self, response: HTTPResponse, deadline: float) -> Iterator[bytes]:
        size = 0
        try:
            while piece := response.read1(_PIECE):
                size += len(piece)
                if size > self._largest:
                    raise FetchError(f"it has more than {self._largest:,} bytes")
                if self._clock() > deadline:
                    raise FetchError(f"it takes longer than {self._seconds:g} s")
                yield piece
        except (OSError, HTTPException) as error:
            raise FetchError(f"it breaks off: {_reason(error)}") from error
        if response.length:
            raise FetchError(f"it breaks off: {response.length:,} bytes are missing")


class _NoRedirects(urllib.request.HTTPErrorProcessor):
    """Gives every answer as it is: redirects are followed by `Fetcher`, which looks at where they lead."""

    def http_response(self, request: urllib.request.Request, response: HTTPResponse) -> HTTPResponse:
        return response

    https_response = http_response


def _redirected(url: str, headers: Message) -> str:
    try:
        return address(urljoin(url, headers.get("Location", "")))
    except InputError as error:
        raise FetchError("it redirects to what is no address of the web") from error


def _is_inside(url: str) -> bool:
    """Whether the host of an address lies in this machine or this network; a name that is not found does not."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return False
    addresses = (ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)
    return any(not one.is_global for one in addresses)


def _suffix(kind: str, url: str) -> str:
    # Servers give Markdown and reStructuredText as plain text; their names tell what they are.
    named = urlsplit(url).path.rpartition(".")[2].lower()
    return f".{named}" if kind == "text/plain" and named in ("md", "markdown", "rst") else SUFFIXES[kind]


def _as_utf8(content: bytes, charset: str | None) -> bytes:
    try:
        return content.decode(charset, "replace").encode() if charset else content
    except LookupError:
        return content


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason) or type(error).__name__
