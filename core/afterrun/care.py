"""Looking after memories: read and forget them, follow their lineage, see how everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from afterrun.db import Database
from afterrun.errors import NotFoundError, QueueError, RunStoreError
from afterrun.models import Cluster, MemoryRecord, Spend
from afterrun.queue import Publisher
from afterrun.runs import RunStore, RunTotals
from afterrun.store import DeadLetter, Store, Totals


@dataclass(frozen=True, kw_only=True)
class RunStoreStatus:
    """A run store as seen from here; `error` says why it cannot be read."""

    path: Path
    totals: RunTotals | None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Status:
    """How the memory is: what it holds, what waits and since when, what failed, and what judging has cost."""

    memories: Totals
    model: str | None
    pending_chunks: int
    oldest_pending: datetime | None
    dead_letters: int
    clusters: Mapping[str, int]
    spend: Spend
    heartbeats: Mapping[str, datetime]
    run_stores: tuple[RunStoreStatus, ...]
    queues: Mapping[str, int] | None
    """Messages that wait in each queue; None where the broker does not answer."""
    broker_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a memory comes from and what became of it."""

    memory: MemoryRecord
    originals: tuple[Lineage, ...]
    successor: MemoryRecord | None
    consolidations: tuple[Cluster, ...]


def get(database: Database, ids: Sequence[UUID]) -> list[MemoryRecord]:
    """The memories with these ids, in whatever state, newest first. Raises NotFoundError where one does not exist."""
    with database.transaction() as connection:
        found = Store(connection).get_memories(ids)
    if missing := set(ids) - {memory.id for memory in found}:
        raise NotFoundError(f"no memory has the id {', '.join(sorted(map(str, missing)))}")
    return found


def forget(database: Database, ids: Sequence[UUID]) -> list[UUID]:
    """Take memories out of recall for good: they stay as tombstones that no source and no late task brings back.

    Returns the ids that were not forgotten before. Raises NotFoundError where one does not exist; none is forgotten
    then.
    """
    get(database, ids)
    with database.transaction() as connection:
        return sorted(Store(connection).archive(ids))


def history(database: Database, memory_id: UUID) -> Lineage:
    """The lineage of a memory: its originals, theirs, its successor, and the consolidations it was part of."""
    memory = get(database, [memory_id])[0]
    with database.transaction() as connection:
        store = Store(connection)
        successor = store.get_memories([memory.superseded_by])[0] if memory.superseded_by else None
        return Lineage(
            memory=memory,
            originals=tuple(_originals(store, memory)),
            successor=successor,
            consolidations=tuple(store.consolidations(memory_id=memory_id)),
        )


def consolidations(database: Database, *, states: Sequence[str] | None = None, limit: int = 100) -> list[Cluster]:
    """Clusters in these states (default: all), newest first."""
    with database.transaction() as connection:
        return Store(connection).consolidations(states=states, limit=limit)


def dead_letters(database: Database) -> list[DeadLetter]:
    """Everything that could not be processed, oldest first."""
    with database.transaction() as connection:
        return Store(connection).dead_letters()


def status(database: Database, run_stores: Sequence[Path], publisher: Publisher | None) -> Status:
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


def _originals(store: Store, memory: MemoryRecord) -> list[Lineage]:
    return [
        Lineage(memory=original, originals=tuple(_originals(store, original)), successor=None, consolidations=())
        for original in store.superseded_by(memory.id)
    ]


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
