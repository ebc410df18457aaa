"""Text to tokens and sentences, and words to their canonical form.

The scanner is linear in the length of the text: it cuts at white space first and never backtracks over a chunk.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from afterrun.reading.vocabulary import IRREGULAR, SYNONYMS, UNSTEMMED

Kind = Literal["word", "number", "code", "operator", "break"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One piece of a text. `text` is its surface without punctuation; `part` marks a part of a hyphenated word."""

    kind: Kind
    text: str
    part: bool = False
    opens: bool = False
    """Whether it opens a sentence, where a capital letter says nothing."""


_CHUNK: Final = re.compile(r"`[^`\n]+`|[^\s`]+|`+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f\uff1b])\s*|\n+")
_NUMBER: Final = re.compile(r"[-+\u2212]?\d+(?:[.,:]\d+)*(?:%|[A-Za-z]{1,3})?")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_OPERATOR: Final = re.compile(r"[<>=!≤≥≠~±→←↔⇒&|+*/^]+")
_LEADING_OPERATOR: Final = re.compile(r"([<>=!≤≥≠~]+)(?=[\d.])")
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_CODE_SIGN: Final = re.compile(r"[/\\_@#$=<>{}\[\]|&+*:^~]|\w\.\w|\(\)|^--?[A-Za-z]|[a-z][A-Z]|[^\W\d_]-?\d|\d[^\W\d_]")
_SYMBOL: Final = re.compile(
    r"(?<!\w)--?(?=[A-Za-z0-9])|!(?=[=\w])|[<>=≤≥≠~±→←↔⇒&|+*^%$\\@#/_]+|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089]"
)
_BULLET: Final = re.compile(r"(?m)^[ \t]*+(?:[-*+•]|#+)[ \t]+")
_TICKS: Final = {**dict.fromkeys("✅✔☑👍", "yes"), **dict.fromkeys("❌✖✗✘👎🚫⛔", "no")}
_EDGE: Final = ".,;:!?\"'()[]{}*\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u2026\u3001\u3002\u300c\u300d"
_EMPTY: Final = frozenset({"[]", "{}", "()", '""', "''"})
"""Values that consist of nothing but punctuation."""
_ABBREVIATIONS: Final = frozenset({"e.g", "i.e", "etc", "vs", "approx", "resp"})
_ENDS: Final = frozenset(".!?;:\u3002")
_PAUSES: Final = frozenset(",()\u3001")
_DASHES: Final = frozenset("-\u2013\u2014")
_MAX_WORD: Final = 200
"""Longer chunks are taken whole: no word of any language is that long."""


def normalise(text: str) -> str:
    """`text` in Unicode's compatibility form, so that full-width and composed letters compare equal."""
    return unicodedata.normalize("NFKC", text)


def skeleton(text: str, scanned: Iterable[Token] | None = None) -> tuple[str, tuple[str, ...]]:
    """What is left of `text` without case, white space and punctuation, and the signs and code that still count.

    Two texts with equal skeletons differ in nothing that could matter: `a != b` and `a = b`, `-v` and `-V`, `1.5` and
    `15` have different ones. `scanned` saves a second scan where the tokens of `text` are at hand.
    """
    bare = _BULLET.sub(" ", text)
    words = " ".join(_WORD.findall(normalise(bare).casefold()))
    exact = (token.text for token in scanned or tokens(text) if token.kind in ("code", "number"))
    return words, (*_SYMBOL.findall(bare), *exact, *(sign for sign in bare if sign in _TICKS))


def sentences(text: str) -> list[str]:
    """The sentences and lines of `text`, stripped, without empty ones."""
    return [piece for part in _SENTENCE_END.split(text) if (piece := part.strip())]


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text` in order; a `break` is yielded where a clause (`,`) or a sentence (`.`) ends."""
    opens = True
    for match in _CHUNK.finditer(normalise(_BULLET.sub("\n. ", text))):
        for token in _chunk_tokens(match.group(), opens):
            yield token
            opens = token.kind == "break" and token.text == "."


def _chunk_tokens(chunk: str, opens: bool) -> Iterator[Token]:
    if chunk.isascii() and chunk.isalpha():
        yield Token(kind="word", text=chunk, opens=opens)
        return
    if (empty := chunk.strip(".,;:!?")) in _EMPTY:
        yield Token(kind="code", text=empty, opens=opens)
    if len(chunk) > 2 and chunk[0] == chunk[-1] == "`":
        yield Token(kind="code", text=" ".join(chunk[1:-1].split()), opens=opens)
        return
    yield from (Token(kind="word", text=_TICKS[sign], part=True) for sign in chunk if sign in _TICKS)
    body = chunk.lstrip(_EDGE)
    if body and (operator := _LEADING_OPERATOR.match(body) or _OPERATOR.fullmatch(body)):
        yield Token(kind="operator", text=operator[0])
        body = body[operator.end() :]
    core = body.rstrip(_EDGE)
    core = core + "()" if body[len(core) :].startswith("()") else core
    yield from _core_tokens(core, opens)
    if stop := _break_after(chunk, core):
        yield Token(kind="break", text=stop)


def _core_tokens(core: str, opens: bool) -> Iterator[Token]:
    if not core:
        return
    if core.casefold() in _ABBREVIATIONS:
        return
    if _NUMBER.fullmatch(core) or _DATE.fullmatch(core):
        yield Token(kind="number", text=core, opens=opens)
    elif len(core) > _MAX_WORD or _CODE_SIGN.search(core):
        yield Token(kind="code", text=core, opens=opens)
    else:
        found = _WORD.findall(core)
        yield from (Token(kind="word", text=word, part=len(found) > 1, opens=opens) for word in found)


def _break_after(chunk: str, core: str) -> str:
    tail = chunk[chunk.rfind(core) + len(core) :] if core else chunk
    if not _ENDS.isdisjoint(tail):
        return "."
    return "," if chunk in _DASHES or not _PAUSES.isdisjoint(tail) else ""


def stem(word: str) -> str:
    """`word` (lower case) without its inflection; not a word, but equal for the forms of one word."""
    word = IRREGULAR.get(word, word)
    if word in UNSTEMMED or len(word) < 4 or not word.isascii():
        return word
    return _without_end(_without_suffix(word))


def canonical(word: str) -> str:
    """The stem that `word` (lower case) shares with its other forms and its close synonyms."""
    base = SYNONYMS.get(word) or _STEM_SYNONYMS.get(stem(word))
    return stem(base) if base else stem(word)


def _without_suffix(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("sses", "xes", "ches", "shes")) else word[:-1]
    for suffix, least in (("ing", 3), ("ed", 3), ("ion", 5), ("ment", 4), ("al", 5), ("ly", 4)):
        if word.endswith(suffix) and len(word) - len(suffix) >= least:
            return word[: -len(suffix)]
    return word[:-1] if word.endswith("ed") else _short_ing(word)


def _short_ing(word: str) -> str:
    return word[:-3] + "e" if word.endswith("ing") and len(word) == 5 else word


def _without_end(word: str) -> str:
    if word.endswith("e") and len(word) > 4:
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word


_STEM_SYNONYMS: Final = {stem(word): base for word, base in SYNONYMS.items()}
