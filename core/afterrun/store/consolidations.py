"""Candidate clusters: from neighbours to proposals to what became of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from afterrun.models import Cluster, Spend
from afterrun.store.base import Queries


def members_hash(members: Sequence[UUID]) -> bytes:
    """What makes two clusters the same cluster: their members, in any order."""
    return hashlib.sha256("".join(sorted(str(member) for member in members)).encode()).digest()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A cluster taken for judging: how often it was taken so far, and how many answers could not be used."""

    id: UUID
    attempts: int
    invalid_answers: int


class ConsolidationQueries(Queries):
    """The queries of `consolidations.sql`."""

    def uncompared(self, model: str, limit: int) -> list[UUID]:
        """Embedded memories not yet compared with their neighbours, oldest first, locked for this transaction."""
        return [row[0] for row in self.run("uncompared", model=model, limit=limit)]

    def mark_compared(self, ids: Sequence[UUID]) -> None:
        """Record that these memories were compared as they are now."""
        self.run("mark_compared", ids=list(ids))

    def neighbours(self, memory_id: UUID, model: str, *, at_least: float, most: int) -> list[tuple[UUID, float]]:
        """Active memories of the same scope at least this similar, with their cosine, nearest first."""
        rows = self.run("neighbours", memory_id=memory_id, model=model, at_least=at_least, most=most)
        return [(row[0], row[1]) for row in rows]

    def similarities(self, ids: Sequence[UUID], model: str) -> dict[frozenset[UUID], float]:
        """The cosine of every pair of these memories that have vectors of `model`."""
        rows = self.run("similarities", ids=list(ids), model=model)
        return {frozenset((row[0], row[1])): row[2] for row in rows if row[2] is not None}

    def propose(self, members: Sequence[UUID], *, collection: str, project: str) -> bool:
        """Record a candidate cluster; False where the same members were proposed before."""
        row = self.run(
            "propose",
            members_hash=members_hash(members),
            collection=collection,
            project=project,
            members=sorted(members),
        ).fetchone()
        return row is not None

    def claim_consolidation(self, members: Sequence[UUID], *, judge: str, lease: float) -> Claim | None:
        """Take a waiting cluster that `judge` has not judged yet; None where there is none or another has it."""
        found = self.records(Claim, "claim_consolidation", members_hash=members_hash(members), judge=judge, lease=lease)
        return found[0] if found else None

    def waiting_consolidations(self, *, judge: str, limit: int) -> list[tuple[UUID, ...]]:
        """The members of clusters that are due and that `judge` has not judged yet."""
        return [tuple(row[0]) for row in self.run("waiting_consolidations", judge=judge, limit=limit)]

    def settle_consolidation(
        self,
        consolidation: UUID,
        state: str,
        *,
        judge: str,
        spend: Spend,
        reason: str,
        guard: str | None = None,
        canonical: UUID | None = None,
        superseded: Sequence[UUID] = (),
    ) -> None:
        """Record what became of a cluster."""
        self.run(
            "settle_consolidation",
            id=consolidation,
            state=state,
            judge=judge,
            reason=reason,
            guard=guard,
            canonical=canonical,
            superseded=list(superseded),
            **_spend_row(spend),
        )

    def postpone_consolidation(
        self, consolidation: UUID, state: str, *, wait: float, reason: str, invalid: bool, spend: Spend
    ) -> None:
        """Record a failed attempt, `invalid` if an answer could not be used; due again in `wait` seconds if waiting."""
        self.run(
            "postpone_consolidation",
            id=consolidation,
            state=state,
            wait=wait,
            reason=reason,
            invalid=invalid,
            **_spend_row(spend),
        )

    def consolidations(
        self,
        *,
        ids: Sequence[UUID] | None = None,
        states: Sequence[str] | None = None,
        memory_id: UUID | None = None,
        limit: int = 100,
    ) -> list[Cluster]:
        """Clusters, newest first: by id, by state, or those in which a memory is a member or the canonical."""
        return self.records(
            Cluster,
            "consolidations",
            ids=None if ids is None else list(ids),
            states=None if states is None else list(states),
            memory_id=memory_id,
            limit=limit,
        )

    def lock_consolidation(self, consolidation: UUID) -> Cluster | None:
        """A cluster, locked until the transaction ends."""
        found = self.records(Cluster, "lock_consolidation", id=consolidation)
        return found[0] if found else None

    def merged_away(self, consolidation: UUID) -> list[UUID]:
        """The memories that the merge of this cluster superseded."""
        row = self.run("merged_away", id=consolidation).fetchone()
        return list(row[0]) if row else []

    def set_consolidation_state(self, consolidation: UUID, state: str) -> None:
        """Change only the state of a cluster."""
        self.run("set_consolidation_state", id=consolidation, state=state)

    def consolidation_totals(self) -> dict[str, tuple[int, Spend]]:
        """By state: how many clusters, and what judging them cost."""
        return {
            row[0]: (row[1], Spend(calls=row[2], input_tokens=row[3], output_tokens=row[4]))
            for row in self.run("consolidation_totals")
        }


def _spend_row(spend: Spend) -> dict[str, object]:
    return {"calls": spend.calls, "input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens}
