"""Upkeep: have near-duplicates judged, merge what is the same. `clusters` finds them, `takeback` undoes a merge.

A cluster is proposed once (by the set of its members), judged outside any transaction, and carried out in a short one
that re-checks every member. Whatever goes wrong changes no memory and is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from afterrun import lineage
from afterrun.budget import Budget, of_failure, reserve, settle
from afterrun.chunking import Chunker
from afterrun.db import Connection, Database
from afterrun.errors import (
    BudgetError,
    InputError,
    LanguageModelError,
    LanguageModelRejectedError,
    LanguageModelUnavailableError,
)
from afterrun.judge import DeterministicJudge, Judge
from afterrun.merge import wording
from afterrun.models import Member, MemoryRecord, Verdict
from afterrun.store import Claim, Store, WaitsFor, Work

log = logging.getLogger(__name__)

_FIRST_WAIT: Final = 30.0
_LONGEST_WAIT: Final = 3600.0
_BAD_REQUEST: Final = 400
_INCOMPLETE: Final = "not all of them are active memories of one project and collection"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one cluster: its state after the attempt, the canonical memory if one was written, and why.

    `state` is that of the consolidation, or `skipped` where there was nothing to do: judged before, held by another
    worker, or not all members active. `waits_for` says what a waiting one waits for, where an attempt failed.
    """

    state: str
    consolidation: UUID | None = None
    canonical: UUID | None = None
    reason: str = ""
    waits_for: WaitsFor | None = None


def consolidate_cluster(
    database: Database,
    memory_ids: Sequence[UUID],
    *,
    judge: Judge,
    chunker: Chunker,
    max_attempts: int = 3,
    lease: float = 300,
    budget: Budget | None = None,
    run: str | None = None,
    early: bool = False,
    exact: float | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Outcome:
    """Judge one cluster and carry the verdict out. Late, doubled and concurrent calls are harmless.

    A judge that asks a language model does so within `budget`, where the call counts for `run`: a name for the chain of
    work, or this cluster alone. `early` also judges a cluster that pauses after a failure or for a cap. From the cosine
    `exact` on, the rules are asked first: what they show to be a repeat costs no call.

    Raises:
        InputError: fewer than two ids.
        LanguageModelRejectedError: the language model's service refuses this client; the cluster waits, and with a
            refused key every other one as well.
        DatabaseError: Postgres cannot be reached or refuses; the cluster waits.
    """
    ids = tuple(sorted(set(memory_ids)))
    if len(ids) < 2:
        raise InputError("a cluster has at least two memories: pass two or more memory_ids")
    with database.transaction() as connection:
        taken = _take(connection, ids, judge, lease, early)
        if isinstance(taken, _Taken):
            judge = _cheapest(judge, taken, exact)
            taken = _within_budget(connection, taken, judge, budget or Budget(), run, lease, clock())
    if isinstance(taken, Outcome):
        return taken
    try:
        verdict = judge.judge([as_member(memory) for memory in taken.members])
    except LanguageModelError as error:
        return _record_failure(database, taken, judge, error, max_attempts)
    return _carry_out(database, taken, verdict, judge, chunker, clock())


def drop_stale(database: Database, *, limit: int = 1_000) -> int:
    """Give up clusters that wait although a member is gone, and have the others compared again; how many."""
    with database.transaction() as connection:
        stale = Store(connection).stale_consolidations(limit=limit)
    for ids in stale:
        with database.transaction() as connection:
            _drop(Store(connection), ids, _INCOMPLETE)
    return len(stale)


def resume(database: Database) -> None:
    """Make every cluster due that pauses after a failure or for a cap; a cap that still holds makes it wait again."""
    with database.transaction() as connection:
        Store(connection).resume_consolidations()


def waiting(database: Database, judge_name: str, *, limit: int = 100) -> list[tuple[UUID, ...]]:
    """The members of clusters that are due for this judge."""
    with database.transaction() as connection:
        return Store(connection).waiting_consolidations(judge=judge_name, limit=limit)


def as_member(memory: MemoryRecord) -> Member:
    """What the judge and the merger see of a memory."""
    return Member(id=memory.id, content=memory.content, source_type=memory.source_type, created_at=memory.created_at)


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """A claimed cluster with its members, and the reservation of the call that is to judge it."""

    claim: Claim
    members: Sequence[MemoryRecord]
    reservation: int | None = None


def _take(connection: Connection, ids: Sequence[UUID], judge: Judge, lease: float, early: bool) -> _Taken | Outcome:
    store = Store(connection)
    members = [memory for memory in store.get_memories(ids) if memory.is_active]
    if objection := _objection(store, ids, members):
        _drop(store, ids, objection)
        return Outcome(state="skipped", reason=objection)
    store.propose(ids, collection=members[0].collection, project=members[0].project)
    claim = store.claim_consolidation(ids, judge=judge.name, lease=lease, early=early)
    if claim is None:
        return Outcome(state="skipped", reason="judged before, not due yet, or held by another worker")
    return _Taken(claim=claim, members=members)


def _objection(store: Store, ids: Sequence[UUID], members: Sequence[MemoryRecord]) -> str | None:
    if len(members) < len(ids) or len({(memory.project, memory.collection) for memory in members}) > 1:
        return _INCOMPLETE
    # The proposal may be older than the rejection or the undo.
    apart = [earlier.members for earlier in store.proposed_with(ids) if earlier.state in ("rejected", "undone")]
    if any(len(set(ids).intersection(pair)) > 1 for pair in apart):
        return "a person has rejected or undone a merge of some of them"
    return None


def _drop(store: Store, ids: Sequence[UUID], reason: str) -> None:
    """Give a waiting cluster up; its members that are left may be duplicates of each other, and are compared again."""
    # Locked before the cluster is, as by whoever carries a verdict out.
    left = [memory.id for memory in store.lock_memories(ids) if memory.is_active]
    if store.drop_stale_consolidation(ids, reason) and len(left) > 1:
        store.compare_again(left)


def _cheapest(judge: Judge, taken: _Taken, exact: float | None) -> Judge:
    if exact is None or taken.claim.similarity is None or taken.claim.similarity < exact:
        return judge
    rules = DeterministicJudge()
    same = rules.judge([as_member(memory) for memory in taken.members]).same
    return rules if len(same) == len(taken.members) else judge


def _within_budget(
    connection: Connection, taken: _Taken, judge: Judge, budget: Budget, run: str | None, lease: float, now: datetime
) -> _Taken | Outcome:
    tokens = judge.most_tokens([as_member(memory) for memory in taken.members])
    if not tokens:
        return taken
    cluster = taken.claim.id
    work = Work(
        purpose="judge",
        project=taken.members[0].project,
        subject=str(cluster),
        model=judge.name,
        run=run or f"cluster {cluster}",
    )
    try:
        reservation = reserve(connection, budget, work, tokens=tokens, now=now, lease=lease)
    except BudgetError as error:
        # A run that is over leaves the cluster to the next one; the other caps hold for everybody.
        wait = 0.0 if run and error.of_run else (error.frees_at - now).total_seconds()
        Store(connection).postpone_consolidation(cluster, "waiting", wait=wait, waits_for="spend", reason=str(error))
        return Outcome(state="waiting", consolidation=cluster, reason=str(error), waits_for="spend")
    return replace(taken, reservation=reservation)


def _record_failure(
    database: Database, taken: _Taken, judge: Judge, error: LanguageModelError, max_attempts: int
) -> Outcome:
    waits_for = _waits_for(error)
    # Only an answer that cannot be used counts towards giving up: a busy service or a bad key is not the cluster's
    # fault.
    state = "failed" if waits_for == "answer" and taken.claim.invalid_answers + 1 >= max_attempts else "waiting"
    wait = _wait(error, taken.claim.attempts)
    spend = of_failure(error) if taken.reservation else error.spend
    with database.transaction() as connection:
        store = Store(connection)
        if taken.reservation:
            settle(connection, taken.reservation, spend)
        held = store.hold_consolidation(taken.claim)
        if held:
            store.postpone_consolidation(
                taken.claim.id, state, wait=wait, waits_for=waits_for, reason=str(error), spend=spend
            )
    if (others := _wait_of_others(error)) is not None:
        with database.transaction() as connection:
            Store(connection).pause_consolidations(
                judge=judge.name, wait=others, waits_for=waits_for, reason=str(error)
            )
    log.warning("cluster %s is not judged (%s) and stays as it is: %s", taken.claim.id, state, error)
    if isinstance(error, LanguageModelRejectedError):
        raise error
    if not held:
        return _overtaken(taken)
    return Outcome(state=state, consolidation=taken.claim.id, reason=str(error), waits_for=waits_for)


def _waits_for(error: LanguageModelError) -> WaitsFor:
    if isinstance(error, LanguageModelRejectedError):
        return "key"
    return "service" if isinstance(error, LanguageModelUnavailableError) else "answer"


def _wait(error: LanguageModelError, attempts: int) -> float:
    if isinstance(error, LanguageModelRejectedError):
        return _LONGEST_WAIT
    asked = error.retry_after if isinstance(error, LanguageModelUnavailableError) and error.retry_after else 0.0
    return min(max(_FIRST_WAIT * 2.0 ** min(attempts - 1, 10), asked), _LONGEST_WAIT)


def _wait_of_others(error: LanguageModelError) -> float | None:
    """How long every other cluster waits, too: a refused key or a service that is down is the same for all of them."""
    if isinstance(error, LanguageModelUnavailableError):
        return _wait(error, 1)
    if isinstance(error, LanguageModelRejectedError) and error.status != _BAD_REQUEST:
        return _LONGEST_WAIT
    return None


def _carry_out(
    database: Database, taken: _Taken, verdict: Verdict, judge: Judge, chunker: Chunker, now: datetime
) -> Outcome:
    same = [as_member(memory) for memory in taken.members if memory.id in verdict.same]
    text = wording(same, verdict.wording) if len(same) > 1 else None
    # A verdict that was paid for is not lost to a deadlock.
    return database.settled(lambda connection: _carried_out(connection, taken, verdict, text, judge, chunker, now))


def _carried_out(
    connection: Connection,
    taken: _Taken,
    verdict: Verdict,
    text: str | None,
    judge: Judge,
    chunker: Chunker,
    now: datetime,
) -> Outcome:
    store, consolidation = Store(connection), taken.claim.id
    if taken.reservation:
        settle(connection, taken.reservation, verdict.spend)
    members = store.lock_memories([memory.id for memory in taken.members])
    if not store.hold_consolidation(taken.claim):
        return _overtaken(taken)
    if _states(members) != _states(taken.members):
        return _left(store, taken.claim, members, verdict)
    canonical = lineage.merge(connection, consolidation, members, verdict, text, chunker, now=now)
    replaced = sorted(({*verdict.same} if canonical else set()) | {*verdict.superseded})
    state = "merged" if replaced else ("related" if judge.settles else "waiting")
    store.settle_consolidation(
        consolidation,
        state,
        judge=judge.name,
        spend=verdict.spend,
        reason=verdict.reason,
        guard=verdict.guard,
        canonical=canonical,
        superseded=replaced,
    )
    return Outcome(state=state, consolidation=consolidation, canonical=canonical, reason=verdict.reason)


def _left(store: Store, claim: Claim, members: Sequence[MemoryRecord], verdict: Verdict) -> Outcome:
    """A member changed during the call: the new texts wait for a verdict of their own; not so where one is gone."""
    active = [memory.id for memory in members if memory.is_active]
    state = "waiting" if len(active) == len(members) else "failed"
    reason = "a member changed while the cluster was judged"
    store.postpone_consolidation(claim.id, state, wait=0, waits_for=None, reason=reason, spend=verdict.spend)
    if state == "failed" and len(active) > 1:
        store.compare_again(active)
    return Outcome(state=state, consolidation=claim.id, reason=reason)


def _overtaken(taken: _Taken) -> Outcome:
    return Outcome(
        state="skipped",
        consolidation=taken.claim.id,
        reason="a person or another worker has decided while the cluster was judged",
    )


def _states(memories: Sequence[MemoryRecord]) -> set[tuple[UUID, bool, str]]:
    return {(memory.id, memory.is_active, memory.content) for memory in memories}
