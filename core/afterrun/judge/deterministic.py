"""May these memories become one? The protocol, and the judge that needs no model.

The deterministic judge merges only what it can show to be the same: everything that the shorter text says stands in the
longer one, and no guard objects. It never decides which of two contradicting memories is right; it leaves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import UUID

from afterrun.judge.guards import Refusal, first_refusal
from afterrun.models import Member, Verdict
from afterrun.reading import Reading, read

Similarity = Callable[[UUID, UUID], float]

LEAST_SIMILARITY: Final = 0.5
"""Cosine under which no word-wise match counts; paraphrases score 0.73 and more on MiniLM."""
MOST_MEMBERS: Final = 16
"""Members that are compared in one cluster; the oldest beyond stay as they are and are found again."""


class Judge(Protocol):
    """Decides on a cluster of near-duplicates."""

    @property
    def name(self) -> str:
        """What the audit row names as the judge."""

    @property
    def settles(self) -> bool:
        """Whether a cluster that it does not merge is settled; False leaves it for another judge or a person."""

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        """Decide which members state the same fact and which are superseded; members in neither stay as they are.

        Raises:
            LanguageModelError: there is no usable decision; nothing may be changed.
        """

    def most_tokens(self, members: Sequence[Member]) -> int:
        """The tokens of a language model that `judge` takes at most; 0 where it asks none."""


class DeterministicJudge:
    """The judge without a model: strict, explainable, the same answer every time."""

    name = "deterministic"
    settles = False

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        """The largest set of pairwise equal members that holds the newest, or a guard and a reason."""
        ordered = newest_first(members)[:MOST_MEMBERS]
        if len(ordered) < 2:
            return Verdict(reason="nothing to compare", judge=self.name)
        refusals = _refusals(ordered, similarity)
        chosen = _largest(len(ordered), refusals)
        first = next((refusals[0, other] for other in range(1, len(ordered)) if (0, other) in refusals), None)
        if len(chosen) > 1:
            reason = f"{len(chosen)} of {len(ordered)} say the same" + (f"; {_explained(first)}" if first else "")
            return Verdict(same=tuple(ordered[at].id for at in chosen), reason=reason, judge=self.name)
        return Verdict(reason=_explained(first), guard=first.guard if first else None, judge=self.name)

    def most_tokens(self, members: Sequence[Member]) -> int:
        """None: the rules ask nobody."""
        return 0


def newest_first(members: Sequence[Member]) -> list[Member]:
    """The members by age, the newest first; equal ages by id, so that the order is always the same."""
    return sorted(members, key=lambda member: (member.created_at, member.id), reverse=True)


_Refusals = dict[tuple[int, int], Refusal]


def _refusals(members: Sequence[Member], similarity: Similarity | None) -> _Refusals:
    readings = [read(member.content) for member in members]
    found: _Refusals = {}
    for a in range(len(members)):
        for b in range(a + 1, len(members)):
            near = similarity(members[a].id, members[b].id) if similarity else 1.0
            if refusal := _refusal(readings[a], readings[b], near):
                found[a, b] = refusal
    return found


def _refusal(a: Reading, b: Reading, near: float) -> Refusal | None:
    if near < LEAST_SIMILARITY and a.skeleton != b.skeleton:
        return Refusal(guard="similarity", detail=f"cosine {near:.2f}")
    return first_refusal(a, b)


def _largest(count: int, refusals: _Refusals) -> tuple[int, ...]:
    """The largest set of indices with 0 in which no pair is refused; of equal ones the first in order."""
    best: tuple[int, ...] = ()

    def grow(chosen: tuple[int, ...], rest: tuple[int, ...]) -> None:
        nonlocal best
        if len(chosen) > len(best):
            best = chosen
        for at, index in enumerate(rest):
            if len(chosen) + len(rest) - at <= len(best):
                return
            grow((*chosen, index), tuple(other for other in rest[at + 1 :] if (index, other) not in refusals))

    grow((0,), tuple(other for other in range(1, count) if (0, other) not in refusals))
    return best


def _explained(refusal: Refusal | None) -> str:
    return f"{refusal.guard}: {refusal.detail}" if refusal else ""
