"""Scrubbing at the door: what must not reach the run store, the broker, the database or a model.

`scrub` does three things, in this order:

1. It cleans: NUL is removed (Postgres cannot hold it), lone surrogates become U+FFFD (UTF-8 cannot hold them).
2. It removes `<private>…</private>` blocks: in any case, with attributes, nested. An unclosed `<private>` hides
   everything up to the end: a lost tail can be written again, a leaked one cannot be taken back.
3. It replaces secrets of the table `PATTERNS` by `[redacted:<kind>]`.

It is idempotent, and linear in the length of the text. Two rules of the table make it so: a token begins at the edge
of a run of word characters and is consumed to that run's end, so that its marker uncovers no other match; and what
a pattern has scanned it also consumes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from typing import Final

MAX_DEPTH: Final = 64
"""Levels of nested metadata that `scrub_value` follows; deeper values are cut."""
TOO_DEEP: Final = "[too deep]"

_LONE_SURROGATE: Final = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_PRIVATE: Final = re.compile(r"<\s*(?P<close>/?)\s*private(?=[\s/>])[^<>]*(?P<end>>|(?=<)|\Z)", re.IGNORECASE)
_ROUNDS: Final = 4
"""Passes over tags that only the removal of others has put together; whoever nests deeper loses the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A kind of secret: what `regex` matches is replaced, but for its named group `before`, if it has one.

    Only assignments are different: they are looked at once more, as most of them assign no secret.
    """

    kind: str
    regex: re.Pattern[str]
    meaning: str

    def masked(self, text: str) -> str:
        """`text` with its secrets of this kind replaced by `[redacted:<kind>]`."""
        if self.regex is _ASSIGNMENT:
            return self.regex.sub(partial(_masked_assignment, self.kind), text)
        before = r"\g<before>" if "before" in self.regex.groupindex else ""
        return self.regex.sub(f"{before}[redacted:{self.kind}]", text)


def _token(kind: str, start: str, body: str, meaning: str) -> Pattern:
    # The literal `start` comes before the look behind it: `re` skips fast to a literal, and only to one at the front.
    return Pattern(kind=kind, regex=re.compile(rf"{start}(?<![\w-]{start})(?:{body})[\w-]*", re.ASCII), meaning=meaning)


_BEGIN: Final = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_END: Final = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_GAP: Final = r"(?:\s|\\[rn])++"
_KEY_LINE: Final = r"(?:[A-Za-z0-9+/=]{20,}|(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]*)"

# Spelled from one set of first letters, because `re` skips fast to a set and slowly to a choice of words.
_WORD: Final = (
    r"[AaCcEeMmPpSsTt](?i:(?<=p)(?:ass(?:word|wd|phrase|wort)|wd|rivate[_-]?key)|(?<=_p)ass|(?<=t)oken|(?<=c)redential"
    r"|(?<=a)(?:pi|ccess|uth|ccount)[_-]?key|(?<=s)(?:ecret(?:[_-]?key)?|igning[_-]?key|hared[_-]?key)"
    r"|(?<=e)ncryption[_-]?key|(?<=m)aster[_-]?key)"
)
_UNQUOTED: Final = r"""(?:[^\s"'`,;&(){}\[\]<>]|&(?![\w.-]+=))++"""
_ASSIGNMENT: Final = re.compile(
    rf"""
    (?P<key>{_WORD})(?:\\*["']\]?)?   # key, "key", \"key\", ["key"]
    (?P<gap>[ \t]*+)(?P<sep>:=|=>|={{1,3}}|:|(?<=[ \t]))
    # an annotation: `: str = "value"`
    (?:[ \t]*+[\w.]{{1,30}}+(?:\[[\w., ]{{0,40}}+\])?(?:[ ]\|[ ]\w{{1,20}}+)?[ \t]*+=(?=[ \t]*+[\w]{{0,2}}["']))?
    (?P<space>[ \t]*+)
    (?: [bBrRuUfF]{{0,2}} \\*+ (?: "(?P<double>(?:[^"\\\n]|\\[^"\n])*+) | '(?P<single>(?:[^'\\\n]|\\[^'\n])*+) )
      | (?P<bare>{_UNQUOTED}) (?P<code>[(\[{{]|["'](?=\w))? )
    """,
    re.VERBOSE,
)

PATTERNS: Final[tuple[Pattern, ...]] = (
    Pattern(
        kind="private-key",
        regex=re.compile(
            rf"{_BEGIN}(?:(?:[^-]|-(?!----))*+{_END}"
            rf"|(?:{_GAP}{_KEY_LINE})*+(?:{_GAP}[A-Za-z0-9+/=]{{1,19}}\s*+\Z|(?<=[A-Za-z0-9+/=]{{20}})))"
        ),
        meaning="A PEM or PGP private key, also one that was cut off (then: the lines that look like a key)",
    ),
    _token("anthropic-key", "sk-ant-", r"[\w-]{16,}", "Anthropic API key or OAuth token"),
    _token(
        "openai-key",
        "sk-",
        r"(?:proj|svcacct|admin|None|or-v1)-[\w-]{16,}|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}",
        "OpenAI API key, and those of services that copied its form",
    ),
    _token("github-token", "gh", r"[pousr]_[A-Za-z0-9]{20,}", "GitHub personal, OAuth or app token"),
    _token("github-token", "github_pat_", r"\w{20,}", "GitHub fine-grained personal token"),
    _token(
        "gitlab-token",
        "gl",
        r"(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt|ffct)-[\w-]{16,}(?:\.[\w-]+)*",
        "GitLab personal, deploy, runner or job token",
    ),
    _token("slack-token", "xox", r"[abeoprs]-[\w-]{10,}", "Slack bot, user or refresh token"),
    _token("slack-token", "xapp-", r"[\w-]{10,}", "Slack app token"),
    Pattern(
        kind="slack-webhook",
        regex=re.compile(r"(?P<before>hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/-]{16,}", re.ASCII),
        meaning="Path of a Slack webhook: who knows it can post",
    ),
    _token("aws-key-id", "A", r"(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![\w-])", "AWS access key id"),
    _token("google-key", "AIza", r"[\w-]{35}", "Google API key"),
    _token("google-key", "ya29\\.", r"[\w-]{20,}(?:\.[\w-]+)*", "Google OAuth access token"),
    _token("google-key", "GOCSPX-", r"[\w-]{20,}", "Google OAuth client secret"),
    _token("stripe-key", "sk_", r"(?:live|test)_[A-Za-z0-9]{10,}", "Stripe secret key"),
    _token("stripe-key", "rk_", r"(?:live|test)_[A-Za-z0-9]{10,}", "Stripe restricted key"),
    _token("stripe-key", "whsec_", r"[A-Za-z0-9]{20,}", "Stripe webhook signing secret"),
    _token("afterrun-key", "ark_", r"[0-9a-f]{12}_[0-9a-f]{16,}", "API key of Afterrun itself"),
    _token("npm-token", "npm_", r"[A-Za-z0-9]{30,}", "npm access token"),
    _token("pypi-token", "pypi-AgE", r"[\w-]{16,}", "PyPI or TestPyPI upload token"),
    _token("huggingface-token", "hf_", r"[A-Za-z0-9]{30,}", "Hugging Face access token"),
    _token("jwt", "eyJ", r"[\w-]{5,}\.eyJ[\w-]{5,}(?:\.[\w-]*)?", "JSON Web Token: header and claims in base64"),
    Pattern(
        kind="authorization",
        regex=re.compile(
            r"""(?P<before>[AaBb](?:(?<=[Aa])(?i:uthorization\\*["']?[ \t]*+[:=][ \t]*+\\*["']?"""
            r"""(?:bearer|basic|token)[ \t]++)(?=[\w.~+/=-]{8})"""
            r"""|(?<=[Bb])(?<!\w[Bb])(?i:earer[ \t]++)(?=[A-Za-z._~+/=-]*+[0-9])(?=[\w.~+/=-]{20})))[\w.~+/=-]++""",
            re.ASCII,
        ),
        meaning="Credentials of an Authorization header, or after the word Bearer",
    ),
    Pattern(
        kind="secret",
        regex=_ASSIGNMENT,
        meaning="A value assigned to a name that ends in password, token, secret, api_key …: `password=…`",
    ),
    Pattern(
        kind="url-password",
        regex=re.compile(
            r"""(?P<before>://[^\s/?#:@"'<>]*+:)(?!(?:\$?\{[^{}\s]*\}|\$\w+|\*+|%s|\[redacted:[\w-]+\])@)"""
            r"""[^\s/?#"'<>]+(?=@)"""
        ),
        meaning="The password of a URL; scheme, user and host stay",
    ),
)

_PLAIN_WORD: Final = re.compile(
    r"none|null|nil|undefined|true|false|required|optional|missing|invalid|expired|empty|unset|default|any|object|str"
    r"|string|text|bytes|int|integer|number|float|bool|boolean|uuid|bearer|basic|password|token|secret",
    re.IGNORECASE,
)
_PLACEHOLDER: Final = re.compile(
    r"\$?\{.*\}|\$\w+|\$\(.*\)|<.*>|\[.*\]|%\(?\w+\)?s?|[*.x•…]+|\[redacted:.*", re.IGNORECASE
)
_NAME: Final = re.compile(r"[A-Za-z]+|[A-Za-z]*\d{0,2}(?:(?:_|\.|::|->)[A-Za-z]*\d{0,2})+")
_LONGEST_FLAG: Final = 40
_LONGEST_WORD: Final = 64
"""Characters up to which a string of metadata is likely to come again."""
_SECRET_KEY: Final = re.compile(rf"{_WORD}(?:(?<![Nn])s)?\s*\Z")
"""Names of secrets in metadata, their plurals too, but for `tokens`, which are counted."""
_LONGEST_NUMBER: Final = 14_000
"""Bits of an integer that Python still writes in decimal."""
_SHORTEST_BARE: Final = 6
"""Characters below which an unquoted value is taken for a word or a number, not for a secret."""


def scrub(text: str) -> str:
    """Return `text` without NUL and lone surrogates, without private blocks and with secrets masked."""
    text = _without_private(_clean(text))
    for pattern in PATTERNS:
        text = pattern.masked(text)
    return text


def scrub_value(value: object) -> object:
    """Scrub metadata into what JSON and Postgres can hold: strings in dicts (keys too) and lists are scrubbed.

    Below a key such as `password` or `api_key`, every string and number is masked, whatever it looks like. Keys, and
    values that JSON does not know (a time, bytes, NaN), become strings, sets become lists. Below `MAX_DEPTH` levels a
    value is replaced by `TOO_DEEP`.
    """
    return _scrubbed(value, MAX_DEPTH)


def _clean(text: str) -> str:
    text = text.replace("\0", "")
    if text.isascii():
        return text
    text = _LONE_SURROGATE.sub("\ufffd", text)
    # A pair of surrogates is a character that a foreign decoder has cut in two halves: UTF-16 joins them again.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le") if _PAIR.search(text) else text


def _without_private(text: str) -> str:
    for _ in range(_ROUNDS):
        kept = _outside_private(text)
        if kept == text:
            return text
        text = kept
    left = _PRIVATE.search(text)
    return text[: left.start()] if left else text


def _outside_private(text: str) -> str:
    kept: list[str] = []
    depth, start = 0, 0
    for tag in _PRIVATE.finditer(text):
        if depth == 0:
            kept.append(text[start : tag.start()])
        if tag["close"]:
            depth = max(depth - 1, 0)
        elif not tag[0].endswith("/>"):
            depth += 1
        start = tag.end()
    return "".join(kept) + (text[start:] if depth == 0 else "")


def _masked_assignment(kind: str, found: re.Match[str]) -> str:
    group = found.lastgroup  # the value's, or `code` after it, where it is none
    if group is None or not (_is_bare_secret(found) if group in ("bare", "code") else _is_quoted_secret(found)):
        return found[0]
    (start, end), text = found.span(group), found.string
    return f"{text[found.start() : start]}[redacted:{kind}]{text[end : found.end()]}"


def _is_quoted_secret(found: re.Match[str]) -> bool:
    value = (found["double"] or found["single"] or "").strip()
    return bool(found["sep"] and value) and not _PLAIN_WORD.fullmatch(value) and not _PLACEHOLDER.fullmatch(value)


def _is_bare_secret(found: re.Match[str]) -> bool:
    value = found["bare"].rstrip(".:!?")
    if found["code"] or len(value) < _SHORTEST_BARE or _PLACEHOLDER.fullmatch(value):
        return False
    if value.isdecimal():
        return found["key"].lower().startswith("pass") and bool(found["sep"])
    if not _NAME.fullmatch(value):
        return bool(found["sep"]) or _is_flag(found)
    # A name may be a password, a variable or prose: only `password=letmein`, without spaces, is taken for a password.
    tight = found["sep"] == "=" and not found["gap"] and not found["space"]
    return tight and not set(value) & set(".:") and not _PLAIN_WORD.fullmatch(value) and not re.search(_WORD, value)


def _is_flag(found: re.Match[str]) -> bool:
    before = found.string[max(found.start() - _LONGEST_FLAG, 0) : found.start()]
    return re.search(r"(?<![\w-])--[\w-]*\Z", before) is not None


def _scrubbed(value: object, levels: int, *, secret: bool = False) -> object:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _scrubbed_within(value, levels - 1, secret) if levels else TOO_DEEP
    if value is None or isinstance(value, bool):
        return value
    value = _plain(value)
    if secret and value != "":
        return "[redacted:secret]"
    if not isinstance(value, str):
        return value
    return _scrubbed_word(value) if len(value) <= _LONGEST_WORD else scrub(value)


def _scrubbed_within(value: Mapping[object, object] | Iterable[object], levels: int, secret: bool) -> object:
    if not isinstance(value, Mapping):
        return [_scrubbed(item, levels, secret=secret) for item in value]
    named = ((str(_plain(key)), item) for key, item in value.items())
    return {
        _scrubbed(key, 0): _scrubbed(item, levels, secret=secret or _SECRET_KEY.search(key) is not None)
        for key, item in named
    }


def _plain(value: object) -> str | int | float:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
        return f"[number of {value.bit_length()} bits]"
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if isinstance(value, str | int) else str(value)


@lru_cache(maxsize=4096)
def _scrubbed_word(word: str) -> str:
    # Names of fields, projects and modes come with every run of a batch.
    return scrub(word)
