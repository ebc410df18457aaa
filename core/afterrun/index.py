"""A source into memories: finished runs are redacted again, chunked, committed, and then marked in their run store.

Memories are keyed by the run's `source_key`, so a run that arrives twice, late or by two ways is one memory. A run
store's row is marked only after Postgres has committed it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from afterrun.chunking import Chunker
from afterrun.db import Connection, Database
from afterrun.errors import AfterrunError, EmptyError, InputError, RefusedError, RunStoreError
from afterrun.lineage import write_memories
from afterrun.models import NewMemory, Run
from afterrun.queue import INDEX_RUN
from afterrun.redact import scrub, scrub_value
from afterrun.remember import at_the_door
from afterrun.runs import RunStore, store_id_of
from afterrun.store import Store, content_hash

log = logging.getLogger(__name__)

BATCH: Final = 100
"""Runs a transaction: large enough that commits cost little, small enough that the first chunks are embedded early."""


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """Counts of one pass over a source: `added` became memories, `known` were there, `empty` have no text to index.

    `failed` went to the dead letters, where `afterrun status` shows why.
    """

    added: int = 0
    known: int = 0
    empty: int = 0
    failed: int = 0

    def __add__(self, other: Indexed) -> Indexed:
        return Indexed(
            added=self.added + other.added,
            known=self.known + other.known,
            empty=self.empty + other.empty,
            failed=self.failed + other.failed,
        )

    @property
    def seen(self) -> int:
        """How many runs the pass looked at."""
        return self.added + self.known + self.empty + self.failed


def index_message(
    database: Database, message: Mapping[str, object], chunker: Chunker, *, home: Path | None = None
) -> Indexed:
    """Index the run of one `index_run` message, and mark it in its run store where that file is reachable from here.

    A message that is no run goes to the dead letters.
    """
    try:
        run = Run.from_message(message)
    except InputError as error:
        return _bury(database, scrub_value(message), error)
    done = index_runs(database, [run], chunker)
    _mark_in_its_store(database, run, home)
    return done


def index_store(
    database: Database,
    store: RunStore,
    chunker: Chunker,
    *,
    full: bool = False,
    on_progress: Callable[[Indexed], None] = lambda done: None,
    keep_going: Callable[[], bool] = lambda: True,
) -> Indexed:
    """Index every unindexed run of a store, oldest first; with `full` every run, marked or not.

    `on_progress` hears the counts so far after each batch; `keep_going` is asked before each.
    """
    database_id = _database_id(database)
    total = Indexed()
    last = 0
    while keep_going():
        if full:
            runs = store.all_runs(after_id=last, limit=BATCH)
        else:
            runs = store.unindexed(limit=BATCH, database_id=database_id, after_id=last)
        if not runs:
            break
        last = max(run.id or 0 for run in runs)
        total += index_runs(database, runs, chunker)
        store.mark_indexed([run.id for run in runs if run.id is not None], database_id=database_id)
        on_progress(total)
    return total


def index_runs(database: Database, runs: Sequence[Run], chunker: Chunker) -> Indexed:
    """Commit runs as memories, in one transaction where Postgres takes them all.

    A run that cannot be stored goes to the dead letters by itself; the others are not held up.
    """
    total = Indexed()
    memories: list[tuple[Run, NewMemory]] = []
    for run in map(_redacted, runs):
        try:
            memory = as_memory(run)
        except InputError as error:
            total += _bury_run(database, run, error)
            continue
        if memory is None:
            total += Indexed(empty=1)
        else:
            memories.append((run, memory))
    return total + _written(database, memories, chunker)


def as_memory(run: Run) -> NewMemory | None:
    """The memory of a redacted run; None where nothing is left of its summary. Raises InputError."""
    known = {
        "repo": run.repo,
        "tier": run.tier,
        "run_id": run.run_id,
        "mode": run.mode,
        "tags": list(run.tags),
        "store_id": run.store_id,
        "period_label": run.period_label,
    }
    memory = NewMemory(
        content=run.summary,
        project=run.repo,
        source_type="session_summary",
        metadata={**run.extra, **{key: value for key, value in known.items() if value not in (None, "")}},
        created_at=run.created_at,
    )
    try:
        return replace(at_the_door(memory), source_key=run.source_key)
    except EmptyError:
        return None


def _redacted(run: Run) -> Run:
    # Its names too: they become the source key, which stands in the database and in logs.
    return replace(
        run,
        repo=scrub(run.repo),
        summary=scrub(run.summary),
        run_id=None if run.run_id is None else scrub(run.run_id),
        tags=tuple(scrub(tag) for tag in run.tags),
        mode=scrub(run.mode),
        store_id=None if run.store_id is None else scrub(run.store_id),
    )


def _mark_in_its_store(database: Database, run: Run, home: Path | None) -> None:
    # The path is what a message claims: only the run store that it names is opened for writing.
    if run.id is None or not run.store_path or not run.store_id:
        return
    path = Path(run.store_path)
    try:
        if not path.is_file() or store_id_of(path) != run.store_id:
            return
        with RunStore(path, home=home) as store:
            store.mark_indexed([run.id], database_id=_database_id(database))
    except (RunStoreError, OSError, ValueError) as error:
        log.info("the sweep will mark run %s: %s", run.source_key, error)


def _written(database: Database, memories: Sequence[tuple[Run, NewMemory]], chunker: Chunker) -> Indexed:
    if not memories:
        return Indexed()
    try:
        with database.transaction() as connection:
            added = _write(connection, memories, chunker)
    except RefusedError as error:
        if len(memories) == 1:
            return _bury_run(database, memories[0][0], error)
        return sum((_written(database, [pair], chunker) for pair in memories), Indexed())
    return Indexed(added=added, known=len(memories) - added)


def _write(connection: Connection, memories: Sequence[tuple[Run, NewMemory]], chunker: Chunker) -> int:
    store = Store(connection)
    # A run that its store could not take travels without a row; once it has one, its memory goes by that.
    store.rename_sources(
        [(run.unstored_source_key, run.source_key) for run, _ in memories if run.unstored_source_key != run.source_key]
    )
    rows = write_memories(connection, [memory for _, memory in memories], chunker)
    unwritten = [memory for (_, memory), row in zip(memories, rows, strict=True) if row is None]
    others = _taken_by_other_runs(store, unwritten)
    rows += write_memories(connection, others, chunker) if others else []
    return sum(row is not None for row in rows)


def _taken_by_other_runs(store: Store, memories: Sequence[NewMemory]) -> list[NewMemory]:
    """Those whose key another run has, under keys of their own.

    A copied run store has the id and the row numbers of its original. Where both have gone on, the same key names two
    runs, which differ in time and text; neither may take the other's place.
    """
    known = store.sourced([memory.source_key for memory in memories if memory.source_key])
    others = []
    for memory in memories:
        digest, created_at = known.get(memory.source_key or "", (b"", memory.created_at))
        here = content_hash(memory.content)
        if digest not in (b"", here) and memory.created_at is not None and created_at != memory.created_at:
            others.append(replace(memory, source_key=f"{memory.source_key}:{here.hex()[:16]}"))
    return others


def _bury_run(database: Database, run: Run, error: AfterrunError) -> Indexed:
    return _bury(database, scrub_value(run.to_message()), error, subject=run.source_key)


def _bury(database: Database, payload: object, error: AfterrunError, *, subject: str | None = None) -> Indexed:
    # What is buried here was refused elsewhere: it is written in a form that Postgres takes in any case.
    kept = json.loads(json.dumps(payload, default=str), parse_constant=str)
    named = subject or f"message:{hashlib.sha256(repr(kept).encode()).hexdigest()}"
    reason = scrub(str(error))
    log.error("%s cannot be indexed and goes to the dead letters: %s", named, reason)
    with database.transaction() as connection:
        Store(connection).bury(INDEX_RUN, named, reason, attempts=1, payload=kept)
    return Indexed(failed=1)


def _database_id(database: Database) -> str:
    with database.transaction() as connection:
        identity: UUID = Store(connection).installation_id()
    return str(identity)
