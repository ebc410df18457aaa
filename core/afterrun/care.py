"""Looking after memories: read and forget them, follow their lineage, see how everything is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from afterrun import schema
from afterrun.budget import Budget, Spending, spending
from afterrun.db import Database
from afterrun.errors import NotFoundError, QueueError, RunStoreError
from afterrun.models import Cluster, MemoryRecord, Spend
from afterrun.queue import Publisher
from afterrun.runs import RunStore, RunTotals
from afterrun.store import DeadLetter, Store, Totals

_CARRIED_OUT: Final = ("merged", "undone")
MOST_LEVELS: Final = 50
"""Merges below a memory that its lineage follows; the rest is the lineage of those at the end."""


@dataclass(frozen=True, kw_only=True)
class RunStoreStatus:
    """A run store as seen from here; `error` says why it cannot be read."""

    path: Path
    totals: RunTotals | None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Status:
    """How the memory is: what it holds, what waits and since when, what failed, and what the language model costs.

    `spend` is what judging clusters has cost since the beginning, `spending` today's spend for all purposes against the
    caps. `paused` counts waiting clusters by what they pause for: `spend` (a cap), `service`, `key` or `answer`.
    """

    memories: Totals
    model: str | None
    pending_chunks: int
    oldest_pending: datetime | None
    dead_letters: int
    clusters: Mapping[str, int]
    paused: Mapping[str, int]
    spend: Spend
    spending: Spending
    heartbeats: Mapping[str, datetime]
    run_stores: tuple[RunStoreStatus, ...]
    queues: Mapping[str, int] | None
    """Messages that wait in each queue; None where the broker does not answer."""
    broker_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a memory comes from and what became of it.

    `originals` are the memories that it replaced, each with its own lineage. `successor` is the one that replaced it,
    and `successors` lead from there to the one that is recalled now. `consolidations` are the clusters that it was part
    of or that it came from, in whatever state, the newest first; of the others, the merges. `more` counts originals
    that are left out `MOST_LEVELS` merges below: they are those of this memory's own lineage.
    """

    memory: MemoryRecord
    originals: tuple[Lineage, ...]
    successor: MemoryRecord | None
    consolidations: tuple[Cluster, ...]
    successors: tuple[Lineage, ...] = ()
    more: int = 0


@dataclass(frozen=True, kw_only=True)
class ProjectStatus:
    """How the memories of some projects are: what tells nothing about any other project, nor about the machine."""

    memories: Totals
    model: str | None
    pending_chunks: int
    oldest_pending: datetime | None


def get(database: Database, ids: Sequence[UUID], *, projects: Collection[str] | None = None) -> list[MemoryRecord]:
    """The memories with these ids, in whatever state, newest first.

    Raises NotFoundError where one does not exist. With `projects` those of any other project count as if they did not.
    """
    found = find(database, ids, projects=projects)
    if missing := set(ids) - {memory.id for memory in found}:
        raise NotFoundError(f"no memory has the id {', '.join(sorted(map(str, missing)))}")
    return found


def find(database: Database, ids: Sequence[UUID], *, projects: Collection[str] | None = None) -> list[MemoryRecord]:
    """Those of these memories that exist, in these projects if any are given, in whatever state, newest first."""
    with database.transaction() as connection:
        found = Store(connection).get_memories(ids)
    return [memory for memory in found if projects is None or memory.project in projects]


def forget(database: Database, ids: Sequence[UUID]) -> list[UUID]:
    """Take memories out of recall for good: they stay as tombstones that no source and no late task brings back.

    Returns the ids that were not forgotten before. Raises NotFoundError where one does not exist; none is forgotten
    then.
    """
    get(database, ids)
    return database.settled(lambda connection: sorted(Store(connection).archive(ids)))


def history(database: Database, memory_id: UUID) -> Lineage:
    """The lineage of a memory: its originals, theirs, its successor, and the consolidations it was part of."""
    memory = get(database, [memory_id])[0]
    with database.transaction() as connection:
        store = Store(connection)
        successors = _successors(store, memory)
        return Lineage(
            memory=memory,
            originals=tuple(_originals(store, memory)),
            successor=successors[0].memory if successors else None,
            consolidations=tuple(store.consolidations(memory_id=memory_id)),
            successors=successors,
        )


def uncompared(database: Database) -> int:
    """How many memories have not been compared with their neighbours as they are now."""
    with database.transaction() as connection:
        return Store(connection).count_uncompared()


def consolidations(database: Database, *, states: Sequence[str] | None = None, limit: int = 100) -> list[Cluster]:
    """Clusters in these states (default: all), newest first."""
    with database.transaction() as connection:
        return Store(connection).consolidations(states=states, limit=limit)


def dead_letters(database: Database) -> list[DeadLetter]:
    """Everything that could not be processed, oldest first."""
    with database.transaction() as connection:
        return Store(connection).dead_letters()


def status(
    database: Database, run_stores: Sequence[Path], publisher: Publisher | None, budget: Budget | None = None
) -> Status:
    """How everything is, told by the databases and, where it answers, the broker.

    Raises DatabaseError where Postgres does not answer.
    """
    queues, broker_error = _queues(publisher)
    with database.transaction() as connection:
        store = Store(connection)
        pending, oldest = store.pending_chunks()
        clusters = store.consolidation_totals()
        model = store.current_model()
        return Status(
            memories=store.totals(),
            model=model[0] if model else None,
            pending_chunks=pending,
            oldest_pending=oldest,
            dead_letters=len(store.dead_letters()),
            clusters={state: count for state, (count, _) in clusters.items()},
            paused=store.waiting_for(),
            spending=spending(connection, budget or Budget()),
            spend=Spend(
                calls=sum(spend.calls for _, spend in clusters.values()),
                input_tokens=sum(spend.input_tokens for _, spend in clusters.values()),
                output_tokens=sum(spend.output_tokens for _, spend in clusters.values()),
            ),
            heartbeats=store.heartbeats(),
            run_stores=tuple(_run_store_status(path, str(store.installation_id())) for path in run_stores),
            queues=queues,
            broker_error=broker_error,
        )


def project_status(database: Database, projects: Sequence[str] | None = None) -> ProjectStatus:
    """How the memories of these projects (default: of all) are. Raises DatabaseError."""
    with database.transaction() as connection:
        store = Store(connection)
        pending, oldest = store.pending_chunks(projects)
        model = store.current_model()
        return ProjectStatus(
            memories=store.totals(projects),
            model=model[0] if model else None,
            pending_chunks=pending,
            oldest_pending=oldest,
        )


def pending_migrations(database: Database) -> list[str]:
    """Names of the migrations that this version has and the database has not. Raises DatabaseError, SchemaError."""
    with database.transaction() as connection:
        return schema.pending(connection)


def _originals(store: Store, memory: MemoryRecord, levels: int = MOST_LEVELS) -> list[Lineage]:
    found = []
    for original in store.superseded_by(memory.id):
        below = _originals(store, original, levels - 1) if levels > 1 else []
        more = 0 if levels > 1 else len(store.superseded_by(original.id))
        found.append(replace(_relative(store, original), originals=tuple(below), more=more))
    return found


def _successors(store: Store, memory: MemoryRecord) -> tuple[Lineage, ...]:
    found: dict[UUID, Lineage] = {}
    while (by := memory.superseded_by) is not None and by not in found:
        memory = store.get_memories([by])[0]
        found[by] = _relative(store, memory)
    return tuple(found.values())


def _relative(store: Store, memory: MemoryRecord) -> Lineage:
    consolidations = tuple(store.consolidations(memory_id=memory.id, states=_CARRIED_OUT))
    return Lineage(memory=memory, originals=(), successor=None, consolidations=consolidations)


def _queues(publisher: Publisher | None) -> tuple[Mapping[str, int] | None, str | None]:
    if publisher is None:
        return None, "no broker is configured"
    try:
        return publisher.lengths(), None
    except QueueError as error:
        return None, str(error)


def _run_store_status(path: Path, database_id: str) -> RunStoreStatus:
    try:
        with RunStore(path) as store:
            return RunStoreStatus(path=path, totals=store.totals(database_id=database_id))
    except RunStoreError as error:
        return RunStoreStatus(path=path, totals=None, error=str(error))
