"""Upkeep: find near-duplicates, have them judged, merge what is the same, undo a merge.

A cluster is proposed once (by the set of its members), judged outside any transaction, and carried out in a short one
that re-checks every member. Whatever goes wrong changes no memory and is recorded.

The design's origin used three cosines of another embedding model: exact 0.95, DEDUP_SIMILARITY_THRESHOLD = 0.88 and
cluster 0.85. A threshold belongs to a model, and no cosine can tell a paraphrase from a contradiction (on
all-MiniLM-L6-v2 "we use Postgres" and "the database is Postgres" have 0.73, "port 5432" and "port 5433" 0.96). So
there is one cosine here, per model, and it only makes candidates; exact repeats are found by their hash, and the
judge decides the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from afterrun import lineage
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.errors import InputError, JudgeError, JudgeRejectedError, JudgeUnavailableError
from afterrun.judge import Judge
from afterrun.merge import wording
from afterrun.models import Cluster, Member, MemoryRecord, Verdict
from afterrun.store import Claim, Store

log = logging.getLogger(__name__)

CLUSTER_SIMILARITY: Final = {"all-MiniLM-L6-v2": 0.75}
"""Cosine from which memories become candidates, by embedding model."""

_OTHER_MODELS: Final = 0.85
_MOST_MEMBERS: Final = 10
_SAME_KIND_ONLY: Final = frozenset({"session_summary", "document_chunk", "code_context"})
_FIRST_WAIT: Final = 30.0
_LONGEST_WAIT: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one cluster: its state after the attempt, the canonical memory if one was written, and why.

    `state` is that of the consolidation, or `skipped` where there was nothing to do: judged before, held by another
    worker, or not all members active.
    """

    state: str
    consolidation: UUID | None = None
    canonical: UUID | None = None
    reason: str = ""


def cluster_similarity(model_id: str, chosen: float | None = None) -> float:
    """The candidate threshold of an embedding model, or the one that the settings chose."""
    return chosen if chosen is not None else CLUSTER_SIMILARITY.get(model_id.partition("@")[0], _OTHER_MODELS)


def find_clusters(
    database: Database, model_id: str, *, at_least: float, limit: int = 200
) -> tuple[list[tuple[UUID, ...]], int]:
    """Compare up to `limit` embedded memories with their neighbours, each once per change.

    Returns the members of the clusters proposed now, and how many memories were looked at (0: nothing left to compare).
    """
    proposed: list[tuple[UUID, ...]] = []
    with database.transaction() as connection:
        store = Store(connection)
        seeds = store.uncompared(model_id, limit)
        grouped: set[UUID] = set()
        for seed in seeds:
            if seed in grouped:
                continue
            members = _cluster_around(store, seed, model_id, at_least)
            if len(members) < 2:
                continue
            grouped.update(member.id for member in members)
            ids = tuple(sorted(member.id for member in members))
            if store.propose(ids, collection=members[0].collection, project=members[0].project):
                proposed.append(ids)
        store.mark_compared(seeds)
    return proposed, len(seeds)


def consolidate_cluster(
    database: Database,
    memory_ids: Sequence[UUID],
    *,
    judge: Judge,
    chunker: Chunker,
    max_attempts: int = 3,
    lease: float = 300,
) -> Outcome:
    """Judge one cluster and carry the verdict out. Late, doubled and concurrent calls are harmless.

    Raises:
        InputError: fewer than two ids.
        JudgeRejectedError: the language model's service refuses this client; the cluster waits.
        DatabaseError: Postgres cannot be reached or refuses; the cluster waits.
    """
    ids = tuple(sorted(set(memory_ids)))
    if len(ids) < 2:
        raise InputError("a cluster has at least two memories: pass two or more memory_ids")
    with database.transaction() as connection:
        store = Store(connection)
        members = [memory for memory in store.get_memories(ids) if memory.is_active]
        if len(members) < len(ids) or len({(memory.project, memory.collection) for memory in members}) > 1:
            return Outcome(state="skipped", reason="not all of them are active memories of one project and collection")
        store.propose(ids, collection=members[0].collection, project=members[0].project)
        claimed = store.claim_consolidation(ids, judge=judge.name, lease=lease)
    if claimed is None:
        return Outcome(state="skipped", reason="judged before, or held by another worker")
    try:
        verdict = judge.judge([_as_member(memory) for memory in members])
    except JudgeError as error:
        return _record_failure(database, claimed, error, max_attempts)
    return _carry_out(database, claimed.id, members, verdict, judge, chunker)


def undo(database: Database, consolidation: UUID) -> Cluster:
    """Take a merge back; see `lineage.undo`."""
    with database.transaction() as connection:
        return lineage.undo(connection, consolidation)


def undo_since(database: Database, since: datetime) -> list[Cluster]:
    """Take back every merge since `since`, newest first, in one transaction."""
    with database.transaction() as connection:
        merged = Store(connection).consolidations(states=["merged"], limit=1_000_000)
        return [
            lineage.undo(connection, cluster.id)
            for cluster in sorted(merged, key=lambda cluster: cluster.updated_at, reverse=True)
            if cluster.updated_at >= since
        ]


def waiting(database: Database, judge_name: str, *, limit: int = 100) -> list[tuple[UUID, ...]]:
    """The members of clusters that are due for this judge."""
    with database.transaction() as connection:
        return Store(connection).waiting_consolidations(judge=judge_name, limit=limit)


def _cluster_around(store: Store, seed: UUID, model_id: str, at_least: float) -> list[MemoryRecord]:
    # Each member is similar to every other one, so that no chain of likenesses ends in another topic.
    near = [memory for memory, _ in store.neighbours(seed, model_id, at_least=at_least, most=_MOST_MEMBERS)]
    if not near:
        return []
    records = {memory.id: memory for memory in store.get_memories([seed, *near])}
    candidates = [memory for memory in near if _may_mix(records[seed], records[memory])]
    alike = store.similarities([seed, *candidates], model_id)
    members = [seed]
    for candidate in candidates:
        if all(alike.get(frozenset((candidate, member)), 0.0) >= at_least for member in members):
            members.append(candidate)
    return [records[member] for member in members]


def _may_mix(one: MemoryRecord, other: MemoryRecord) -> bool:
    if lineage.generation(one) >= lineage.MAX_GENERATIONS or lineage.generation(other) >= lineage.MAX_GENERATIONS:
        return False
    if one.source_type in _SAME_KIND_ONLY or other.source_type in _SAME_KIND_ONLY:
        return one.source_type == other.source_type
    return True


def _record_failure(database: Database, claimed: Claim, error: JudgeError, max_attempts: int) -> Outcome:
    # Only an answer that cannot be used counts towards giving up: a busy service or a bad key is not the cluster's
    # fault.
    invalid = not isinstance(error, JudgeUnavailableError | JudgeRejectedError)
    state = "failed" if invalid and claimed.invalid_answers + 1 >= max_attempts else "waiting"
    with database.transaction() as connection:
        Store(connection).postpone_consolidation(
            claimed.id,
            state,
            wait=_wait(error, claimed.attempts),
            reason=str(error),
            invalid=invalid,
            spend=error.spend,
        )
    log.warning("cluster %s is not judged (%s) and stays as it is: %s", claimed.id, state, error)
    if isinstance(error, JudgeRejectedError):
        raise error
    return Outcome(state=state, consolidation=claimed.id, reason=str(error))


def _wait(error: JudgeError, attempts: int) -> float:
    if isinstance(error, JudgeRejectedError):
        return _LONGEST_WAIT
    asked = error.retry_after if isinstance(error, JudgeUnavailableError) and error.retry_after else 0.0
    return min(max(_FIRST_WAIT * 2.0 ** min(attempts - 1, 10), asked), _LONGEST_WAIT)


def _carry_out(
    database: Database,
    consolidation: UUID,
    judged: Sequence[MemoryRecord],
    verdict: Verdict,
    judge: Judge,
    chunker: Chunker,
) -> Outcome:
    same = [_as_member(memory) for memory in judged if memory.id in verdict.same]
    text = wording(same, verdict.wording) if len(same) > 1 else None
    with database.transaction() as connection:
        store = Store(connection)
        members = store.lock_memories([memory.id for memory in judged])
        if _states(members) != _states(judged):
            state, reason, canonical = "failed", "a member changed while the cluster was judged", None
        else:
            canonical = lineage.merge(connection, consolidation, members, verdict, text, chunker, now=datetime.now(UTC))
            replaced = sorted(({*verdict.same} if canonical else set()) | {*verdict.superseded})
            state = "merged" if replaced else ("related" if judge.settles else "waiting")
            reason = verdict.reason
        store.settle_consolidation(
            consolidation,
            state,
            judge=judge.name,
            spend=verdict.spend,
            reason=reason,
            guard=verdict.guard,
            canonical=canonical,
            superseded=replaced if state == "merged" else (),
        )
    return Outcome(state=state, consolidation=consolidation, canonical=canonical, reason=reason)


def _states(memories: Sequence[MemoryRecord]) -> set[tuple[UUID, bool, str]]:
    return {(memory.id, memory.is_active, memory.content) for memory in memories}


def _as_member(memory: MemoryRecord) -> Member:
    return Member(id=memory.id, content=memory.content, source_type=memory.source_type, created_at=memory.created_at)
