"""Re-derives from the databases whatever a lost message, a crash or a failure left behind.

Messages are hints, so the sweep finds by itself: finished runs that nobody announced, chunks whose worker died,
clusters that wait. It is idempotent and may run twice at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from afterrun import consolidate, spool
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.errors import NotFoundError, RunStoreError
from afterrun.index import Indexed, index_message, index_store
from afterrun.runs import RunStore
from afterrun.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What a sweep did and found: runs indexed, whether chunks wait, clusters due, run stores out of reach."""

    indexed: Indexed
    pending: bool
    clusters: tuple[tuple[UUID, ...], ...]
    unreachable: tuple[Path, ...]


def sweep(
    database: Database,
    run_stores: Sequence[Path],
    chunker: Chunker,
    *,
    home: Path,
    judge_name: str,
    seconds: float = 45.0,
    clock: Callable[[], float] = time.monotonic,
) -> Swept:
    """Index unannounced runs for at most about `seconds`, and say what else waits. The caller nudges the workers.

    First, runs that were only spooled under `home` go into their run stores. A run store that cannot be read is said
    and logged; it does not keep the others from being swept.
    """
    deadline = clock() + seconds
    spool.bring_in(home)
    indexed = Indexed()
    unreachable: list[Path] = []
    for path in run_stores:
        try:
            with RunStore(path, home=home) as store:
                indexed += index_store(database, store, chunker, keep_going=lambda: clock() < deadline)
        except RunStoreError as error:
            log.warning("the sweep cannot read %s: %s", path, error)
            unreachable.append(path)
    consolidate.drop_stale(database)
    clusters = consolidate.waiting(database, judge_name)
    with database.transaction() as connection:
        store_of_memories = Store(connection)
        store_of_memories.beat("sweep")
        pending = store_of_memories.claimable()
    return Swept(indexed=indexed, pending=pending, clusters=tuple(clusters), unreachable=tuple(unreachable))


def retry(database: Database, ids: Sequence[int] | None, chunker: Chunker) -> int:
    """Bring dead letters back, those with these ids or all; how many. What fails again returns to the dead letters.

    Raises NotFoundError where one of the ids is no dead letter; then nothing is retried.
    """
    with database.transaction() as connection:
        letters = Store(connection).dead_letters(ids)
    if ids is not None and (missing := set(ids) - {letter.id for letter in letters}):
        raise NotFoundError(f"no dead letter has the id {', '.join(map(str, sorted(missing)))}: see `afterrun status`")
    for letter in letters:
        # A run is written before its letter goes, so that a crash in between loses nothing.
        if letter.payload is not None and index_message(database, letter.payload, chunker).failed:
            continue
        with database.transaction() as connection:
            Store(connection).unbury([letter.id])
    return len(letters)
