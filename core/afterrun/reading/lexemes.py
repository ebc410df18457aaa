"""Tokens to lexemes: contractions opened, fixed phrases replaced, numbers with their units brought to one form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from afterrun.reading.lexicon import STOP
from afterrun.reading.vocabulary import MONTHS, MULTIPLIERS, NUMBERS, PHRASES, SUFFIXES, UNITS
from afterrun.reading.words import Token

LexemeKind = Literal["word", "name", "quantity", "code", "operator", "break"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lexeme:
    """A word (lower case), a name (a word that is never a function word), a quantity, code, an operator or a break.

    `key` is what two lexemes are compared by before stemming: `time:1800` for half an hour, `5.1.0` for a version.
    `capital` says that it was written with a capital letter inside a sentence.
    """

    kind: LexemeKind
    key: str
    capital: bool = False


_LONGEST_PHRASE: Final = max(len(phrase.split()) for phrase in PHRASES)
_PHRASES: Final = {tuple(phrase.split()): tuple(words.split()) for phrase, words in PHRASES.items()}
_PHRASE_OPENERS: Final = frozenset(phrase[0] for phrase in _PHRASES)
_CONTRACTED: Final = {"'re": "are", "'ll": "will", "'ve": "have", "'d": "would", "'m": "am", "'s": ""}
_DAYS: Final = frozenset(f"{day:0{width}}" for day in range(1, 32) for width in (1, 2))
_BREAK: Final = Lexeme(kind="break", key=".")


def lexemes(scanned: Iterable[Token]) -> list[Lexeme]:
    """The lexemes of a text's tokens, in order."""
    return list(_quantities(_phrases([lexeme for token in scanned for lexeme in _opened(token)])))


def _opened(token: Token) -> Iterator[Lexeme]:
    """The lexemes of one token."""
    if token.kind == "word":
        yield from _word(token)
    elif token.kind == "code":
        plain = token.text.isalnum() and (token.text[0].isupper() or token.text.islower())
        text = token.text.removesuffix("()")
        yield Lexeme(kind="name" if plain else "code", key=text.casefold() if plain else text)
    elif token.kind == "number":
        yield Lexeme(kind="quantity", key=token.text.replace("\u2212", "-").removeprefix("+"))
    else:
        yield Lexeme(kind=token.kind, key=token.text)


def _word(token: Token) -> Iterator[Lexeme]:
    lower = token.text.casefold().replace("\u2019", "'")
    capital = token.text[0].isupper() and not token.opens
    shout = capital and token.text.isupper() and lower in STOP | {"may"} and lower not in ("i", "a")
    if token.text.isdecimal():
        yield Lexeme(kind="quantity", key=token.text)
    elif shout or (capital and token.text == "A") or (token.part and lower in STOP):
        yield Lexeme(kind="name", key=f"={lower}", capital=capital)
    elif lower.endswith("n't"):
        stem = {"ca": "can", "wo": "will", "sha": "shall"}.get(lower[:-3], lower[:-3])
        yield from (Lexeme(kind="word", key=key) for key in (stem, "not"))
    else:
        head, mark, tail = lower.partition("'")
        yield Lexeme(kind="word", key=head, capital=capital)
        if rest := _CONTRACTED.get(mark + tail, tail):
            yield Lexeme(kind="word", key=rest)


def _phrases(sequence: list[Lexeme]) -> Iterator[Lexeme]:
    at = 0
    while at < len(sequence):
        length, replacement = _phrase_at(sequence, at)
        if length:
            yield from (Lexeme(kind="word", key=word) for word in replacement)
        else:
            yield sequence[at]
        at += length or 1


def _phrase_at(sequence: list[Lexeme], at: int) -> tuple[int, tuple[str, ...]]:
    if sequence[at].kind != "word" or sequence[at].key not in _PHRASE_OPENERS:
        return 0, ()
    window = sequence[at : at + _LONGEST_PHRASE]
    for length in range(len(window), 0, -1):
        words = tuple(lexeme.key for lexeme in window[:length])
        if words in _PHRASES:
            return length, _PHRASES[words]
    return 0, ()


def _quantities(sequence: Iterable[Lexeme]) -> Iterator[Lexeme]:
    rest = list(sequence)
    at = 0
    while at < len(rest):
        length, lexeme = _date_at(rest, at) or _quantity_at(rest, at) or (1, rest[at])
        yield lexeme
        at += length


def _date_at(rest: list[Lexeme], at: int) -> tuple[int, Lexeme] | None:
    """A day and a month next to each other, in either order."""
    if at + 1 == len(rest):
        return None
    for month, day in ((rest[at], rest[at + 1]), (rest[at + 1], rest[at])):
        number = day.key.casefold().rstrip("stndrh") if day.kind == "quantity" else ""
        if _is_month(month) and number in _DAYS:
            return 2, Lexeme(kind="quantity", key=f"date:{MONTHS[month.key]:02}-{int(number):02}")
    return None


def _is_month(lexeme: Lexeme) -> bool:
    return lexeme.kind == "word" and lexeme.key in MONTHS and (lexeme.capital or lexeme.key != "may")


def _quantity_at(rest: list[Lexeme], at: int) -> tuple[int, Lexeme] | None:
    value, suffix, length = _number_at(rest, at)
    if not length:
        return None
    value, length = _and_a_half(rest, at, value, length)
    following = rest[at + length] if at + length < len(rest) else _BREAK
    unit = suffix or (following.key if following.kind in ("word", "name") else "")
    if unit in UNITS and value is not None:
        dimension, factor = UNITS[unit]
        return length + (not suffix), Lexeme(kind="quantity", key=f"{dimension}:{value * factor:.12g}")
    if unit in ("am", "pm", "o'clock") and value is not None and value <= 12:
        hour = int(value) % 12 + (12 if unit == "pm" else 0)
        return length + (not suffix), Lexeme(kind="quantity", key=f"clock:{hour:02}:00")
    return length, Lexeme(kind="quantity", key=_bare(rest[at], value, suffix, length))


def _bare(lexeme: Lexeme, value: float | None, suffix: str, length: int) -> str:
    """A number without a unit: a whole one by its value, any other (3.10 is not 3.1, 0644 not 644) as it is written."""
    if suffix in SUFFIXES and value is not None:
        return f"number:{value * SUFFIXES[suffix]:.12g}"
    padded = lexeme.kind == "quantity" and len(lexeme.key) > 1 and lexeme.key.startswith("0")
    if value is None or suffix or padded or (length == 1 and lexeme.kind == "quantity" and "." in lexeme.key):
        return f"number:{lexeme.key}" if ":" not in lexeme.key else f"clock:{lexeme.key.zfill(5)}"
    return f"number:{value:.12g}"


def _number_at(rest: list[Lexeme], at: int) -> tuple[float | None, str, int]:
    """Value, attached unit or suffix, and how many lexemes they take: 0 where no number stands."""
    lexeme = rest[at]
    if lexeme.kind == "quantity":
        digits = lexeme.key.rstrip("%abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        value, suffix = _parsed(digits), lexeme.key[len(digits) :].casefold()
        following = rest[at + 1].key if at + 1 < len(rest) else ""
        if value is not None and not suffix and following in MULTIPLIERS:
            return value * MULTIPLIERS[following], "", 2
        return value, suffix, 1
    if lexeme.kind == "word" and lexeme.key == "half" and at + 1 < len(rest) and rest[at + 1].key in UNITS:
        return 0.5, "", 1
    if lexeme.kind != "word" or lexeme.key not in NUMBERS:
        return None, "", 0
    value, length = float(NUMBERS[lexeme.key]), 1
    while at + length < len(rest) and rest[at + length].kind == "word":
        word = rest[at + length].key
        if word in MULTIPLIERS:
            value *= MULTIPLIERS[word]
        elif word in NUMBERS and value >= 20 and value % 10 == 0 and NUMBERS[word] < 10:
            value += NUMBERS[word]
        else:
            break
        length += 1
    return value, "", length


def _parsed(digits: str) -> float | None:
    groups = digits.lstrip("-").split(",")
    if len(groups) > 1 and len(groups[0]) <= 3 and all(len(group.split(".")[0]) == 3 for group in groups[1:]):
        digits = digits.replace(",", "")
    try:
        return float(digits)
    except ValueError:
        return None


def _and_a_half(rest: list[Lexeme], at: int, value: float | None, length: int) -> tuple[float | None, int]:
    tail = [lexeme.key for lexeme in rest[at + length : at + length + 3]]
    return (value + 0.5, length + 3) if value is not None and tail == ["and", "a", "half"] else (value, length)
