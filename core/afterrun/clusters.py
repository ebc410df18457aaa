"""Find near-duplicates in the whole store, each memory once per change, and propose them as clusters to be judged.

A cosine only nominates: it cannot tell a paraphrase from a contradiction, so nothing is merged here. A memory is
compared with its neighbours when it is new, when its text changes, and when an undo brings it back; the older of two
duplicates need not be looked at again, whichever of them was embedded first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final
from uuid import UUID

from afterrun import lineage
from afterrun.db import Database
from afterrun.store import Candidate, Pieces, Proposal, Proposed, Store

Pair = frozenset[UUID]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Three cosines of one embedding model.

    From `cluster` on, memories become candidates for the judge. From `near` on they are judged as soon as they are
    found, the others with the next sweep, the most alike first. From `exact` on the rules are asked before a language
    model: what they show to be a repeat costs no call.
    """

    cluster: float
    near: float
    exact: float


ORIGIN: Final = Thresholds(cluster=0.85, near=0.88, exact=0.95)
"""The constants of the design's origin: cluster 0.85, DEDUP_SIMILARITY_THRESHOLD = 0.88, exact 0.95.

They were set on another model, and there they decided: what was nearer was skipped or merged. They hold for models that
nobody has measured.
"""
THRESHOLDS: Final = {"all-MiniLM-L6-v2": Thresholds(cluster=0.75, near=0.8, exact=0.95)}
"""By embedding model; docs/decisions/0008-thresholds.md says how they were measured."""

_SAME_KIND_ONLY: Final = frozenset({"session_summary", "document_chunk", "code_context"})
_MOST_MEMBERS: Final = 10
_MOST_NEIGHBOURS: Final = 20
_PIECES_SOUGHT: Final = 8
"""A long memory looks for neighbours with its first chunks."""
_PIECES_COMPARED: Final = 16
"""Chunks of a memory that are compared with another's: some 4,000 tokens. The judge reads it all."""
_LONGER: Final = 2
"""How many times as many chunks the longer of two may have: below half of it, the judge calls one a remark."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What one batch gave: the clusters proposed now, the most alike first, and how many memories were looked at."""

    proposals: tuple[Proposal, ...]
    looked_at: int


def thresholds(
    model_id: str, *, cluster: float | None = None, near: float | None = None, exact: float | None = None
) -> Thresholds:
    """The thresholds of an embedding model, each replaced by the one that the settings chose, if they did."""
    of_model = THRESHOLDS.get(model_id.partition("@")[0], ORIGIN)
    return Thresholds(
        cluster=of_model.cluster if cluster is None else cluster,
        near=of_model.near if near is None else near,
        exact=of_model.exact if exact is None else exact,
    )


def find_clusters(database: Database, model_id: str, *, at_least: float, limit: int = 100) -> Scan:
    """Compare up to `limit` embedded memories with their neighbours, each once per change.

    `at_least` is the cosine from which memories become candidates. Nothing is left to compare when none was looked at.
    """
    return database.settled(lambda connection: _scan(Store(connection), model_id, at_least, limit))


def _scan(store: Store, model_id: str, at_least: float, limit: int) -> Scan:
    # Locked first and read then: a text that changed in between has chunks without vectors now.
    seeds = store.without_pending(store.uncompared(model_id, limit), model_id)
    near = store.neighbours(seeds, model_id, at_least=at_least, most=_MOST_NEIGHBOURS, pieces=_PIECES_SOUGHT)
    found = list(_neighbourhood(store, near, model_id, at_least).clusters(near)) if near else []
    # In one order, so that two workers that propose the same do not wait for each other.
    found.sort(key=lambda proposal: proposal.members)
    accepted = store.propose_near(found)
    store.mark_compared(seeds)
    proposals = [proposal for proposal, taken in zip(found, accepted, strict=True) if taken]
    proposals.sort(key=lambda proposal: proposal.similarity, reverse=True)
    return Scan(proposals=tuple(proposals), looked_at=len(seeds))


def likeness(one: Pieces, other: Pieces) -> float:
    """How alike two memories are in all that the shorter one says: the cosine of its piece that is matched worst.

    0 where the longer has more than twice as many pieces.
    """
    short, long = sorted((one, other), key=len)
    if len(long) > _LONGER * len(short):
        return 0.0
    cosines = short @ long.T
    of_short = cosines.max(axis=1).min()
    return float(of_short if len(short) < len(long) else min(of_short, cosines.max(axis=0).min()))


@dataclass(frozen=True, kw_only=True)
class _Neighbourhood:
    """Some memories with their neighbours, and what was proposed about them before."""

    candidates: Mapping[UUID, Candidate]
    pieces: Mapping[UUID, Pieces]
    at_least: float
    apart: Collection[Pair]
    """Pairs whose merge a person rejected or took back."""
    known: set[Pair]
    """Pairs that stand in a proposal as they are now, so that they need no other one."""

    def clusters(self, near: Mapping[UUID, Sequence[UUID]]) -> Iterator[Proposal]:
        """Clusters that hold every pair of a seed and a neighbour that is not known; each pair only once."""
        for seed, neighbours in near.items():
            mates = [mate for mate in neighbours if self._fit(seed, mate)]
            for mate in mates:
                if frozenset((seed, mate)) not in self.known:
                    yield self._cluster([seed, mate], mates)

    def _cluster(self, members: list[UUID], mates: Sequence[UUID]) -> Proposal:
        # Each member is similar to every other one, so that no chain of likenesses ends in another topic.
        for mate in mates:
            if len(members) == _MOST_MEMBERS:
                break
            if mate not in members and all(self._fit(mate, member) for member in members):
                members.append(mate)
        pairs = list(combinations(members, 2))
        self.known.update(map(frozenset, pairs))
        first = self.candidates[members[0]]
        return Proposal(
            members=tuple(sorted(members)),
            collection=first.collection,
            project=first.project,
            similarity=min(likeness(self.pieces[one], self.pieces[other]) for one, other in pairs),
        )

    def _fit(self, one: UUID, other: UUID) -> bool:
        return (
            one in self.candidates
            and other in self.candidates
            and frozenset((one, other)) not in self.apart
            and _may_mix(self.candidates[one], self.candidates[other])
            and likeness(self.pieces[one], self.pieces[other]) >= self.at_least
        )


def _neighbourhood(store: Store, near: Mapping[UUID, Sequence[UUID]], model_id: str, at_least: float) -> _Neighbourhood:
    ids = list({*near, *(neighbour for neighbours in near.values() for neighbour in neighbours)})
    candidates = store.candidates(ids)
    apart: set[Pair] = set()
    known: set[Pair] = set()
    for earlier in store.proposed_with(ids):
        pairs = combinations([member for member in earlier.members if member in candidates], 2)
        if earlier.state in ("rejected", "undone"):
            apart.update(map(frozenset, pairs))
        else:
            known.update(frozenset(pair) for pair in pairs if _stands(earlier, [candidates[one] for one in pair]))
    return _Neighbourhood(
        candidates=candidates,
        pieces=store.vectors(ids, model_id, pieces=_PIECES_COMPARED),
        at_least=at_least,
        apart=apart,
        known=known,
    )


def _stands(earlier: Proposed, pair: Sequence[Candidate]) -> bool:
    """Whether an earlier proposal is about the texts that these two have now."""
    return earlier.state != "failed" and all(one.updated_at <= earlier.updated_at for one in pair)


def _may_mix(one: Candidate, other: Candidate) -> bool:
    if max(map(lineage.generations, (one.generation, other.generation))) >= lineage.MAX_GENERATIONS:
        return False
    if (one.project, one.collection) != (other.project, other.collection):
        return False
    if one.source_type in _SAME_KIND_ONLY or other.source_type in _SAME_KIND_ONLY:
        # A roll-up says what its runs say, and does not take their place.
        return (one.source_type, one.tier) == (other.source_type, other.tier)
    return True
