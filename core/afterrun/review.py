"""What a person sees of the clusters that wait, and decides: previews of a merge, acceptance, rejection.

A preview asks no language model: it is what the rules would do, or what merging all members would look like where the
rules object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from afterrun import consolidate
from afterrun.chunking import Chunker
from afterrun.consolidate import Outcome, as_member
from afterrun.db import Database
from afterrun.judge import DeterministicJudge, Judge, Similarity
from afterrun.merge import wording
from afterrun.models import Cluster, Member, MemoryRecord, Verdict
from afterrun.store import Store

PERSON: Final = "person"
"""What the audit row names as the judge where a person decided."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a merge of `same` would do: their originals give way to one memory with the text `wording`.

    `members` are the whole cluster, the newest first. `settled` says that the rules show `same` to be the same;
    otherwise `same` are all members, and `reason` and `guard` say what the rules object to. `most_tokens` is what the
    chosen judge may take of a language model's tokens to decide; 0 if it asks none.
    """

    cluster: Cluster
    members: tuple[MemoryRecord, ...]
    same: tuple[UUID, ...]
    wording: str
    settled: bool
    reason: str
    guard: str | None
    most_tokens: int


def previews(database: Database, judge: Judge, *, limit: int = 1000) -> list[Preview]:
    """A preview of every cluster that waits for a judge or a person and can be merged, the oldest first."""
    with database.transaction() as connection:
        store = Store(connection)
        clusters = sorted(store.consolidations(states=["waiting"], limit=limit), key=lambda found: found.created_at)
        members = {cluster.id: store.get_memories(cluster.members) for cluster in clusters}
    return [
        _preview(cluster, members[cluster.id], judge)
        for cluster in clusters
        if sum(memory.is_active for memory in members[cluster.id]) == len(cluster.members)
    ]


def accept(
    database: Database, shown: Preview, chunker: Chunker, *, newest_wins: bool = False, lease: float = 300
) -> Outcome:
    """Merge as shown, or, with `newest_wins`, let the newest member supersede the others.

    Nothing happens if a member has changed since it was shown; the outcome says so. Raises DatabaseError.
    """
    with database.transaction() as connection:
        now = Store(connection).get_memories(shown.cluster.members)
    if _texts(now) != _texts(shown.members):
        return Outcome(state="skipped", consolidation=shown.cluster.id, reason="a member changed since it was shown")
    judge = _Person(_newest_wins(shown) if newest_wins else _merged(shown))
    return consolidate.consolidate_cluster(
        database, shown.cluster.members, judge=judge, chunker=chunker, lease=lease, early=True
    )


@dataclass(frozen=True)
class _Person:
    """The judge that has decided before it is asked."""

    verdict: Verdict
    name: str = PERSON
    settles: bool = True

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        return self.verdict

    def most_tokens(self, members: Sequence[Member]) -> int:
        return 0


def _preview(cluster: Cluster, memories: Sequence[MemoryRecord], judge: Judge) -> Preview:
    members = [as_member(memory) for memory in memories]
    verdict = DeterministicJudge().judge(members)
    same = verdict.same or tuple(member.id for member in members)
    return Preview(
        cluster=cluster,
        members=tuple(memories),
        same=same,
        wording=wording([member for member in members if member.id in same]),
        settled=bool(verdict.same),
        reason=verdict.reason,
        guard=verdict.guard,
        most_tokens=judge.most_tokens(members),
    )


def _merged(shown: Preview) -> Verdict:
    return Verdict(same=shown.same, wording=shown.wording, reason="accepted by a person", judge=PERSON)


def _newest_wins(shown: Preview) -> Verdict:
    newest, *older = shown.members
    return Verdict(
        superseded={memory.id: newest.id for memory in older}, reason="the newest wins, said a person", judge=PERSON
    )


def _texts(memories: Sequence[MemoryRecord]) -> set[tuple[UUID, bool, str]]:
    return {(memory.id, memory.is_active, memory.content) for memory in memories}
