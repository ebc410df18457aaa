"""Near-duplicates: which memories are still to be compared, with which, and the clusters that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from afterrun.sql import queries
from afterrun.store.base import Queries
from afterrun.store.consolidations import members_hash

Pieces = NDArray[np.float32]
"""The vectors of a memory's chunks in their order, unit length, shape `(chunks, dimension)`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """What decides whether a memory may stand in one cluster with another.

    `tier` is that of a run or roll-up and None for others; `generation` is None for an original.
    """

    id: UUID
    collection: str
    project: str
    source_type: str
    tier: str | None
    generation: object
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A cluster to be judged: its members by id, and the cosine of the two that are least alike."""

    members: tuple[UUID, ...]
    collection: str
    project: str
    similarity: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposed:
    """An earlier proposal, its state, and when that was last changed."""

    members: tuple[UUID, ...]
    state: str
    updated_at: datetime


class ClusterQueries(Queries):
    """The queries of `clusters.sql`."""

    def uncompared(self, model: str, limit: int) -> list[UUID]:
        """Embedded memories not yet compared with their neighbours, oldest first, locked for this transaction."""
        return [row[0] for row in self.run("uncompared", model=model, limit=limit)]

    def without_pending(self, ids: Sequence[UUID], model: str) -> list[UUID]:
        """Those of these memories that have no chunk which waits for its vector, as the database is now."""
        return [row[0] for row in self.run("without_pending", ids=list(ids), model=model)]

    def mark_compared(self, ids: Sequence[UUID]) -> None:
        """Record that these memories were compared as they are now."""
        self.run("mark_compared", ids=list(ids))

    def compare_again(self, ids: Sequence[UUID]) -> None:
        """Have those of these memories that are active compared with their neighbours once more."""
        self.run("compare_again", ids=sorted(ids))

    def neighbours(
        self, ids: Sequence[UUID], model: str, *, at_least: float, most: int, pieces: int
    ) -> dict[UUID, list[UUID]]:
        """For each memory that has some: active ones of its scope with a piece as near as that, nearest first.

        The first `pieces` chunks of a memory are compared, each with at most about `most` others.
        """
        rows = self.run("neighbours", ids=list(ids), model=model, at_least=at_least, most=most, pieces=pieces)
        return {memory: [row[1] for row in found] for memory, found in groupby(rows, key=lambda row: row[0])}

    def candidates(self, ids: Sequence[UUID]) -> dict[UUID, Candidate]:
        """These memories as candidates, by id."""
        return {found.id: found for found in self.records(Candidate, "candidates", ids=list(ids))}

    def vectors(self, ids: Sequence[UUID], model: str, *, pieces: int) -> dict[UUID, Pieces]:
        """The vectors of the first `pieces` chunks of these memories, by memory."""
        # Binary, since a vector as text costs a hundred times as much to read.
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(queries()["vectors"].encode(), {"ids": list(ids), "model": model, "pieces": pieces})
            return {
                memory: _unit(np.stack([row[1].to_numpy() for row in found]))
                for memory, found in groupby(cursor, key=lambda row: row[0])
            }

    def proposed_with(self, ids: Sequence[UUID]) -> list[Proposed]:
        """The clusters, in whatever state, of which one of these memories is a member."""
        rows = self.run("proposed_with", ids=list(ids))
        return [Proposed(members=tuple(row[0]), state=row[1], updated_at=row[2]) for row in rows]

    def propose_near(self, proposals: Sequence[Proposal]) -> list[bool]:
        """Record clusters that wait to be judged; False for one that was merged, rejected or undone before."""
        rows = [
            {
                "members_hash": members_hash(proposal.members),
                "collection": proposal.collection,
                "project": proposal.project,
                "members": list(proposal.members),
                "similarity": proposal.similarity,
            }
            for proposal in proposals
        ]
        return [row is not None for row in self.each("propose_near", rows)]


def _unit(vectors: NDArray[np.float16]) -> Pieces:
    exact = vectors.astype(np.float32)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    return np.asarray(exact / np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)
