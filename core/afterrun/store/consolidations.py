"""Candidate clusters: from neighbours to proposals to what became of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from afterrun.models import Cluster, Spend
from afterrun.store.base import Queries

WaitsFor = Literal["spend", "service", "key", "answer"]
"""What a cluster waits for: a cap that frees, a busy service, a key that is accepted, a usable answer."""


def members_hash(members: Sequence[UUID]) -> bytes:
    """What makes two clusters the same cluster: their members, in any order."""
    return hashlib.sha256("".join(sorted(str(member) for member in members)).encode()).digest()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A cluster taken for judging: how often it was taken so far, and how many answers could not be used.

    `similarity` is the cosine of its two members that are least alike; None where nobody measured it. `leased_until`
    tells this claim from every other one.
    """

    id: UUID
    attempts: int
    invalid_answers: int
    similarity: float | None
    leased_until: datetime


class ConsolidationQueries(Queries):
    """The queries of `consolidations.sql`."""

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

    def claim_consolidation(
        self, members: Sequence[UUID], *, judge: str, lease: float, early: bool = False
    ) -> Claim | None:
        """Take a waiting cluster that `judge` has not judged yet; None where there is none or another has it.

        `early` also takes one that pauses after a failure or for a cap.
        """
        found = self.records(
            Claim, "claim_consolidation", members_hash=members_hash(members), judge=judge, lease=lease, early=early
        )
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

    def hold_consolidation(self, claim: Claim) -> bool:
        """Lock a claimed cluster until the transaction ends; False where it is no longer this claim's.

        That is where a person has decided meanwhile, or the lease ran out and another worker took it.
        """
        return bool(self.value("hold_consolidation", id=claim.id, leased_until=claim.leased_until))

    def postpone_consolidation(
        self,
        consolidation: UUID,
        state: str,
        *,
        wait: float,
        waits_for: WaitsFor | None,
        reason: str,
        spend: Spend | None = None,
    ) -> None:
        """Record a failed attempt; due again in `wait` seconds if waiting.

        An answer that cannot be used is counted, and an attempt that a cap on spend forbade is not.
        """
        self.run(
            "postpone_consolidation",
            id=consolidation,
            state=state,
            wait=wait,
            waits_for=waits_for if state == "waiting" else None,
            reason=reason,
            invalid=waits_for == "answer",
            uncounted=waits_for == "spend",
            **_spend_row(spend or Spend()),
        )

    def pause_consolidations(self, *, judge: str, wait: float, waits_for: WaitsFor, reason: str) -> None:
        """Let every cluster that waits for `judge`, and that nobody holds, wait at least so many seconds more."""
        self.run("pause_consolidations", judge=judge, wait=wait, waits_for=waits_for, reason=reason)

    def resume_consolidations(self) -> None:
        """Make every cluster due that pauses after a failure or for a cap."""
        self.run("resume_consolidations")

    def drop_stale_consolidation(self, members: Sequence[UUID], reason: str) -> bool:
        """Give a waiting cluster up that cannot be judged any more; False where none waits, or somebody has it."""
        return bool(self.value("drop_stale_consolidation", members_hash=members_hash(members), reason=reason))

    def stale_consolidations(self, *, limit: int) -> list[tuple[UUID, ...]]:
        """The members of clusters that wait although not all of them are active any more."""
        return [tuple(row[0]) for row in self.run("stale_consolidations", limit=limit)]

    def count_uncompared(self) -> int:
        """How many memories have not been compared with their neighbours as they are now."""
        return int(str(self.value("count_uncompared")))

    def waiting_for(self) -> dict[str, int]:
        """How many clusters pause, by what for: `spend`, `service`, `key` or `answer`."""
        return {row[0]: row[1] for row in self.run("waiting_for")}

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

    def set_consolidation_state(self, consolidation: UUID, state: str, reason: str | None = None) -> None:
        """Change only the state of a cluster, and the reason where one is given."""
        self.run("set_consolidation_state", id=consolidation, state=state, reason=reason)

    def consolidation_totals(self) -> dict[str, tuple[int, Spend]]:
        """By state: how many clusters, and what judging them cost."""
        return {
            row[0]: (row[1], Spend(calls=row[2], input_tokens=row[3], output_tokens=row[4]))
            for row in self.run("consolidation_totals")
        }


def _spend_row(spend: Spend) -> dict[str, object]:
    return {"calls": spend.calls, "input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens}
