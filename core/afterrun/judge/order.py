"""Whether two texts give the same words other parts to play: direction, order, voice, company.

Each function returns what changed, in words, or None. Swapped roles cost no word, so no count of words can see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, permutations
from typing import Final

from afterrun.reading import Item, Reading, lexicon

_VOICE: Final = frozenset({"by", "in"})
"""Prepositions of the one who acts, and of the one who holds, once the verb is turned round."""


_SPANS: Final = ("time:", "months:")


def changed_direction(one: Reading, other: Reading) -> str | None:
    """Two shared words that changed places behind a preposition, or one that stands behind its opposite."""
    a, b = one.heads, other.heads
    for marker in sorted(a.keys() & b.keys()):
        left, right = (a[marker] - b[marker]) & other.keys, (b[marker] - a[marker]) & one.keys
        if left and right and marker in lexicon.DIRECTED and not _one_phrase(left | right, one, other):
            return f"{marker}: {against(left, right)}"
    for marker, opposite in sorted(lexicon.OPPOSED_MARKERS):
        moved = a.get(marker, frozenset()) & b.get(opposite, frozenset()) - b.get(marker, frozenset())
        if moved:
            return f"{some(moved)}: {marker} against {opposite}"
    return (
        _timed(a, b)
        or _bounded(a, b)
        or _bounded(b, a)
        or _temporal(one, other)
        or _voice(one, other)
        or _voice(other, one)
    )


def _one_phrase(keys: frozenset[str], one: Reading, other: Reading) -> bool:
    """Whether these words share one phrase in both texts, as in `the ops folder` and `the folder ops`."""
    return all(len({item.marker for item in reading.items if item.key in keys}) == 1 for reading in (one, other))


def spans(reading: Reading) -> frozenset[str]:
    """The spans of time that are a duration, a delay or a start."""
    placed = frozenset[str]().union(*(reading.heads.get(marker, frozenset()) for marker in lexicon.TIME_MARKERS))
    return frozenset(key for key in placed if key.startswith(_SPANS))


def _timed(a: Mapping[str, frozenset[str]], b: Mapping[str, frozenset[str]]) -> str | None:
    """One span of time that is a duration in one text and a delay in the other."""
    for marker, opposite in permutations(sorted(lexicon.TIME_MARKERS), 2):
        both = a.get(marker, frozenset()) & b.get(opposite, frozenset())
        if moved := {key for key in both if key.startswith(_SPANS)}:
            return f"{some(moved)}: {marker} against {opposite}"
    return None


def _bounded(a: Mapping[str, frozenset[str]], b: Mapping[str, frozenset[str]]) -> str | None:
    """What ends or has not begun at a point in `a`, where `b` names the same point in another relation."""
    for marker in ("before", "until"):
        elsewhere = frozenset[str]().union(*(keys for name, keys in b.items() if name not in (marker, "only", "not")))
        if moved := a.get(marker, frozenset()) & elsewhere - b.get(marker, frozenset()):
            return f"{some(moved)}: {marker} against another relation"
    return None


def changed_denial(one: Reading, other: Reading) -> str | None:
    """What both texts affirm and deny, each of another thing: `off in a and on in b`, and the reverse."""
    sides = [_sides(reading) for reading in (one, other)]
    if not all(reading.negated & (affirmed | {""}) for reading, (_, affirmed) in zip((one, other), sides, strict=True)):
        return None
    (denied, affirmed), (other_denied, other_affirmed) = sides
    moved = ((denied - affirmed) & (other_affirmed - other_denied)) | (
        (affirmed - denied) & (other_denied - other_affirmed)
    )
    return f"{some(moved)} affirmed and denied" if moved else None


def _sides(reading: Reading) -> tuple[frozenset[str], frozenset[str]]:
    """The content of the clauses that deny something, and of the others."""
    denied = frozenset(item.key for item in reading.items if item.clause in reading.denied)
    return denied, frozenset(item.key for item in reading.items if item.clause not in reading.denied)


def former(one: Reading, other: Reading) -> str | None:
    """A point up to which something was so, in the first text only."""
    bounds = (one.marked - other.marked) & {"before", "until"}
    return f"was so {some(bounds)} something" if bounds and "past" in one.tenses else None


def _temporal(one: Reading, other: Reading) -> str | None:
    a, b = (reading.marked & {"before", "after", "until", "since", "against"} for reading in (one, other))
    return against(a - b, b - a) if a - b and b - a else None


def _voice(active: Reading, passive: Reading) -> str | None:
    """Who is named with `by`, or holds with `in`, in one text only, and yet stands behind the same verb in both."""
    places, before = _places(active.items), None
    for item in passive.items:
        named = item.marker in _VOICE and item.key in passive.heads.get(item.marker, ()) and item.key in places
        if named and not places[item.key][1].marker and before in places and places[before][0] < places[item.key][0]:
            return f"{item.key!r} with and without {item.marker}"
        before = item.key
    return None


def changed_places(one: Reading, other: Reading) -> str | None:
    """Two words that changed places around a third one, or around nothing, without a word that would explain it."""
    a, b = _places(one.items), _places(other.items)
    shared = [key for key in a if key in b]
    if one.sequenced and other.sequenced and shared != [key for key in b if key in a]:
        return "the text tells an order, and the words stand in another one"
    for u, v in combinations(shared, 2):
        if b[u][0] > b[v][0] and _exchanged(a, b, u, v):
            return f"{u} and {v} changed places"
    return _association(one, other)


_Places = dict[str, tuple[int, Item]]


def _places(items: Iterable[Item]) -> _Places:
    places: _Places = {}
    for at, item in enumerate(items):
        places.setdefault(item.key, (at, item))
    return places


def _exchanged(a: _Places, b: _Places, u: str, v: str) -> bool:
    """Whether u…w…v became v…w…u, each now in the other's part: no change of voice explains that."""
    if a[u][1].marker != b[v][1].marker or a[v][1].marker != b[u][1].marker:
        return False
    return any(a[u][0] < a[w][0] < a[v][0] and b[v][0] < b[w][0] < b[u][0] for w in a if w in b)


def _association(one: Reading, other: Reading) -> str | None:
    """Two words of two clauses that exchanged their company: `x first, y second` and `y first, x second`."""
    a, b = _company(one), _company(other)
    shared = sorted(key for key in a if key in b)
    for u, v in combinations(shared, 2):
        mine, yours = a[u] - a[v], a[v] - a[u]
        if mine & (b[v] - b[u]) and yours & (b[u] - b[v]):
            return f"{u} and {v} exchanged their company"
    return None


def _company(reading: Reading) -> dict[str, frozenset[str]]:
    clauses: dict[int, set[str]] = {}
    for item in reading.items:
        clauses.setdefault(item.clause, set()).add(item.key)
    found: dict[str, set[str]] = {}
    for item in reading.items:
        found.setdefault(item.key, set()).update(clauses[item.clause] - {item.key})
    return {key: frozenset(company) for key, company in found.items()}


def against(a: Iterable[str], b: Iterable[str]) -> str:
    """`a` against `b`, in words."""
    return f"{some(a)} against {some(b)}"


def some(keys: Iterable[str]) -> str:
    """The first three of `keys`, shortened."""
    return ", ".join(repr(key[:30]) for key in sorted(keys)[:3]) or "nothing"
