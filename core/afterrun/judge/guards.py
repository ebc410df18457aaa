"""The rules that forbid a merge, each with a name and a reason that a person can follow.

`first_refusal` runs them on the readings of two texts. They are one-sided: a guard that fires in doubt costs a
merge, one that stays silent costs a memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from afterrun.judge import order
from afterrun.judge.alignment import Alignment, align
from afterrun.judge.order import against, some
from afterrun.reading import Reading, lexicon
from afterrun.reading.vocabulary import UNITS

LONG: Final = 80
"""Items from which a text is compared by whole sentences: its words would be found in any other long text."""
LEAST_ITEMS: Final = 2
LEAST_CONTAINED: Final = 3
"""Pieces of content that a text needs to be compared at all, and to be found in one that says more."""
LEAST_SHARE: Final = 0.5
"""The shorter text's least share of the longer one's content: below, one is a remark inside the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The guard that forbids a merge, and what it saw."""

    guard: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two readings side by side with what only one of them has."""

    a: Reading
    b: Reading
    alignment: Alignment


Guard = Callable[[Pair], str | None]


def first_refusal(a: Reading, b: Reading) -> Refusal | None:
    """The first guard that forbids to call the two texts the same; None if all let them pass."""
    if a.skeleton == b.skeleton:
        return None
    pair = Pair(a=a, b=b, alignment=align(a, b))
    for name, guard in GUARDS.items():
        if detail := guard(pair):
            return Refusal(guard=name, detail=detail)
    return None


def _symbols(pair: Pair) -> str | None:
    if pair.a.skeleton[0] == pair.b.skeleton[0]:
        return "equal words with other signs or code"
    return None


def _language(pair: Pair) -> str | None:
    if not (pair.a.english and pair.b.english and pair.a.plain and pair.b.plain):
        return "only English is read word by word; other languages must be equal"
    return None


def _numbers(pair: Pair) -> str | None:
    only_a, only_b = pair.alignment.quantities
    fractions = lexicon.FRACTIONS & {item.surface for item in (*pair.a.items, *pair.b.items)}
    if (only_a and only_b) or (fractions and only_a | only_b):
        return against(only_a, only_b)
    extra, other = (only_a, pair.b) if only_a else (only_b, pair.a)
    taken = {_dimension(key) for key in other.keys_of("quantity")}
    beside = (key for key in sorted(extra - {"number:1"}) if _dimension(key) in taken)
    return next((f"{key} beside another {_dimension(key)}" for key in beside), None)


def _dimension(key: str) -> str:
    return "time" if key.startswith("months:") else key.partition(":")[0]


def _identifiers(pair: Pair) -> str | None:
    only_a, only_b = pair.alignment.codes
    return against(only_a, only_b) if only_a and only_b else None


def _comparison(pair: Pair) -> str | None:
    return _differ(pair.a.comparators, pair.b.comparators)


def _negation(pair: Pair) -> str | None:
    return _differ(pair.a.negated, pair.b.negated) or order.changed_denial(pair.a, pair.b)


def _quantifiers(pair: Pair) -> str | None:
    a, b = pair.a.quantifiers, pair.b.quantifiers
    if a != b and not (a | b) <= {"all"}:
        return _differ(a, b)
    counted = pair.alignment.quantities[0 if b else 1] if a != b else frozenset()
    if a != b:
        counted |= order.spans(pair.a if b else pair.b)
    if counted:
        return f"'all' against {some(counted)}"
    return _differ(pair.a.heads.get("only", frozenset()), pair.b.heads.get("only", frozenset()))


def _alternatives(pair: Pair) -> str | None:
    a, b = pair.a.conjunctions, pair.b.conjunctions
    return against(a - b, b - a) if a - b and b - a else None


def _modality(pair: Pair) -> str | None:
    if pair.a.question != pair.b.question:
        return "a question against a statement"
    a, b = pair.a.modals, pair.b.modals
    return None if a ^ b <= {"must"} and not (a | b) & {"should", "perhaps"} - (a & b) else _differ(a, b)


def _tense(pair: Pair) -> str | None:
    a, b = pair.a.tenses, pair.b.tenses
    if a and b and not a & b:
        return against(a, b)
    return order.former(pair.a, pair.b) or order.former(pair.b, pair.a)


def _revision(pair: Pair) -> str | None:
    return _differ(pair.a.revisers, pair.b.revisers)


def _environment(pair: Pair) -> str | None:
    return _differ(pair.a.keys & lexicon.ENVIRONMENTS, pair.b.keys & lexicon.ENVIRONMENTS)


def _opposites(pair: Pair) -> str | None:
    only_a, only_b = pair.alignment.surfaces
    return next((f"{x} against {y}" for x in sorted(only_a) for y in sorted(only_b) if _opposed(x, y)), None)


def _opposed(x: str, y: str) -> bool:
    if frozenset((x, y)) in lexicon.OPPOSITES or {x.rstrip("ds"), y.rstrip("ds")} in lexicon.OPPOSITES:
        return True
    long, short = (x, y) if len(x) > len(y) else (y, x)
    return len(short) > 3 and long in {prefix + short for prefix in ("un", "non", "in", "im", "dis", "de", "ir", "il")}


def _time_zones(pair: Pair) -> str | None:
    only_a, only_b = (side & lexicon.TIME_ZONES for side in pair.alignment.surfaces)
    return against(only_a, only_b) if only_a and only_b else None


def _units(pair: Pair) -> str | None:
    only_a, only_b = (frozenset(word for word in side if word in UNITS) for side in pair.alignment.surfaces)
    return against(only_a, only_b) if only_a and only_b else None


def _entities(pair: Pair) -> str | None:
    only_a, only_b = pair.alignment.names
    return against(only_a, only_b) if only_a and only_b else None


def _persons(pair: Pair) -> str | None:
    a, b = pair.a.persons, pair.b.persons
    return against(a - b, b - a) if a - b and b - a else None


def _direction(pair: Pair) -> str | None:
    return order.changed_direction(pair.a, pair.b)


def _order(pair: Pair) -> str | None:
    return order.changed_places(pair.a, pair.b) if len(pair.a.keys & pair.b.keys) <= LONG else None


def _length(pair: Pair) -> str | None:
    small, large = sorted((len(pair.a.keys), len(pair.b.keys)))
    if small < (LEAST_ITEMS if small == large else LEAST_CONTAINED):
        return "too little content, or too much text, to compare word by word"
    if small < LEAST_SHARE * large:
        return f"{small} against {large} pieces of content"
    if small > LONG and not _contains(pair.a.sentences, pair.b.sentences):
        return "long texts whose sentences differ"
    return None


def _contains(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    short, long = sorted((a, b), key=len)
    rest: Iterator[str] = iter(long)
    return all(sentence in rest for sentence in short)


def _content(pair: Pair) -> str | None:
    only_a, only_b = pair.alignment.only_a, pair.alignment.only_b
    return against(only_a, only_b) if only_a and only_b else None


def _differ(a: frozenset[str], b: frozenset[str]) -> str | None:
    return None if a == b else against(a - b, b - a)


GUARDS: Final[dict[str, Guard]] = {
    "symbols": _symbols,
    "language": _language,
    "length": _length,
    "numbers": _numbers,
    "identifiers": _identifiers,
    "time zones": _time_zones,
    "units": _units,
    "comparison": _comparison,
    "negation": _negation,
    "quantifiers": _quantifiers,
    "alternatives": _alternatives,
    "modality": _modality,
    "opposites": _opposites,
    "environment": _environment,
    "entities": _entities,
    "persons": _persons,
    "tense": _tense,
    "direction": _direction,
    "content": _content,
    "revision": _revision,
    "order": _order,
}
"""Name to guard, in the order in which they are asked: those whose reason says most come first."""
