"""The run store: one SQLite file of finished runs, and the single source of truth of its schema.

Files of every earlier schema open as they are: missing columns are added, rows are never rewritten. The side table
`afterrun_meta` keeps the store's id, so that rows of two files never collide, and the id of the database that rows
were indexed into, so that against another database they count as unindexed. Stores register themselves below the data
folder, which is how the sweep finds them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final
from weakref import WeakSet

from afterrun import runtiers
from afterrun.errors import RunStoreError
from afterrun.models import Run
from afterrun.runfile import (
    enlist,
    explained,
    identity,
    is_other_database,
    located,
    meta,
    opened,
    registered,
    set_meta,
    store_id_of,
    transaction,
)
from afterrun.runrows import BLANK, FILLED, Rows, heading, shortened, time_of
from afterrun.runtiers import Batch

__all__ = ["BUSY_SECONDS", "Batch", "RunStore", "RunTotals", "registered", "store_id_of"]

BUSY_SECONDS: Final = 0.15
"""How long a call waits for another writer: finish() has 300 ms for all it does."""

LONGEST_RECALL: Final = 12_000
"""Characters of the block that `recall` gives: some 3,000 tokens of a prompt."""
LEASE_SECONDS: Final = 300.0
"""How long a claimed batch is another process's business: longer than any answer of a language model."""

_BETWEEN: Final = "\n\n"

_open_stores: WeakSet[RunStore] = WeakSet()
_abandoned: list[sqlite3.Connection] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTotals:
    """Rows of a run store: `runs` = `empty` (no summary, never indexed) + `indexed` + `unindexed`.

    `oldest_unindexed` is the earliest readable `created_at` of the unindexed rows, None where there is none.
    `other_database` says that rows were indexed into another database than the one asked about.
    """

    runs: int
    empty: int
    indexed: int
    unindexed: int
    oldest_unindexed: datetime | None
    other_database: bool = False


class RunStore:
    """A run store at `path`; the file and its folder are made if missing, on first use at the latest.

    It may be used from several threads and after a fork. `home` is the data folder to register in (None: nowhere),
    `busy_timeout` the seconds that a call waits for another writer, `now` the clock.

    Raises:
        RunStoreError: the file cannot be opened, is no run store, or is locked for longer than `busy_timeout`.
            Every method raises it too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        home: Path | None = None,
        busy_timeout: float = BUSY_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path = located(path)
        self.store_id = ""
        self._home = home
        self._busy_timeout = busy_timeout
        self._now = now
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        _open_stores.add(self)
        with self._session():
            pass

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        with self._lock:
            self._disconnect()

    def save(self, run: Run) -> Run:
        """Commit `run` and return it with `id`, `store_id` and `store_path`.

        Where the store has a row of the same `(repo, run_id)`, nothing is written and that row is returned.
        """
        return self.save_many([run])[0]

    def save_many(self, runs: Iterable[Run]) -> list[Run]:
        """Like `save` for each, all in one transaction."""
        with self._session() as connection, transaction(connection):
            return [self._rows(connection).add(run, self._now()) for run in runs]

    def save_once(self, run: Run) -> Run:
        """Like `save`, for a run that may have been saved before: a row of the same repo, time and summary is it."""
        with self._session() as connection, transaction(connection):
            return self._rows(connection).add(run, self._now(), once=True)

    def register(self, home: Path) -> None:
        """Register below the data folder `home`, where the sweep looks; a store that has a home keeps it."""
        if self._home is None:
            with self._session() as connection:
                self.store_id = enlist(connection, home, self.path)
                self._home = home

    def unindexed(self, limit: int = 500, database_id: str | None = None, after_id: int = 0) -> list[Run]:
        """At most `limit` unindexed runs with a summary and an id above `after_id`, oldest row first.

        With `database_id`, rows that were indexed into another database count as unindexed.
        """
        with self._session() as connection:
            pending = "1" if is_other_database(connection, database_id) else "indexed IS NOT 1"
            where = f"id > :after AND {pending} AND {FILLED} ORDER BY id LIMIT :limit"
            return self._rows(connection).find(where, after=after_id, limit=limit)

    def all_runs(self, after_id: int = 0, limit: int = 500) -> list[Run]:
        """At most `limit` runs with a summary, indexed or not, with an id above `after_id`, oldest row first."""
        with self._session() as connection:
            where = f"id > :after AND {FILLED} ORDER BY id LIMIT :limit"
            return self._rows(connection).find(where, after=after_id, limit=limit)

    def mark_indexed(self, ids: Iterable[int], database_id: str | None = None) -> None:
        """Mark the rows as indexed, into `database_id` where it is given.

        If the marks so far are another database's, they are all reset first, in the same transaction.
        """
        with self._session() as connection, transaction(connection):
            if database_id is not None and is_other_database(connection, database_id):
                connection.execute("UPDATE runs SET indexed = 0 WHERE indexed IS NOT 0")
                set_meta(connection, "database_id", database_id)
            connection.executemany("UPDATE runs SET indexed = 1 WHERE id = ?", ((row,) for row in ids))

    def get(self, row: int) -> Run | None:
        """The run of row `row`, or None."""
        with self._session() as connection:
            found = self._rows(connection).find("id = :row", row=row)
        return found[0] if found else None

    def totals(self, database_id: str | None = None) -> RunTotals:
        """Counts for `status`; with `database_id`, rows indexed into another database count as unindexed."""
        with self._session() as connection:
            pending = "1" if is_other_database(connection, database_id) else "indexed IS NOT 1"
            counts = f"count(*), coalesce(sum({FILLED}), 0), coalesce(sum({FILLED} AND {pending}), 0)"
            runs, filled, unindexed = connection.execute(f"SELECT {counts} FROM runs", {"blank": BLANK}).fetchone()
            waiting = f"SELECT DISTINCT created_at FROM runs WHERE {pending} AND {FILLED}"
            dates = connection.execute(waiting, {"blank": BLANK})
            times = [when for (text,) in dates if (when := time_of(text)) is not None]
            indexed_into = meta(connection, "database_id")
        return RunTotals(
            runs=runs,
            empty=runs - filled,
            indexed=filled - unindexed,
            unindexed=unindexed,
            oldest_unindexed=min(times, default=None),
            other_database=database_id is not None and indexed_into not in (None, database_id),
        )

    def recall(self, repo: str, recent_runs: int = 3, *, longest: int = LONGEST_RECALL) -> str:
        """A block of context for a prompt: the latest quarterly and monthly roll-up, then the latest runs.

        Each part has a heading with its period or its day; newest runs come first. What makes the block longer than
        `longest` characters is cut at a word, and the cut is marked. It is empty where nothing of `repo` is known.
        """
        newest = "ORDER BY datetime(created_at) DESC, id DESC LIMIT :n"
        latest = f"repo = :repo AND coalesce(tier, 'run') = :tier AND {FILLED} {newest}"
        wanted = (("quarterly", 1), ("monthly", 1), ("run", max(recent_runs, 0)))
        with self._session() as connection:
            find = self._rows(connection).find
            found = [run for tier, n in wanted for run in find(latest, repo=repo, tier=tier, n=n)]
        return _block(found, longest)

    def claim_roll_up(self, *, lease: float = LEASE_SECONDS) -> Batch | None:
        """Take the next batch of rows that are due to become one, for `lease` seconds; None where none is due.

        Ten runs of a repo are due, or three monthly rows; rows without a summary and commits do not count.
        """
        with self._session() as connection:
            rows, now = self._rows(connection), self._now().timestamp()
            lost = True
            while lost:
                lost = False
                for batch in runtiers.due(rows, now=now):
                    with transaction(connection):
                        claimed = runtiers.claim(rows, batch, now=now, lease=lease)
                    if claimed is not None:
                        return claimed
                    # Another process was faster with this one; of its repo it may have left others.
                    lost = True
        return None

    def write_roll_up(self, batch: Batch, summary: str, *, worded_by: str) -> Run | None:
        """Commit the row that sums `batch` up, with its sources marked as consolidated; `worded_by` says who wrote it.

        None, and nothing written, where a source has gone into another roll-up meanwhile.
        """
        with self._session() as connection, transaction(connection):
            return runtiers.write(self._rows(connection), batch, summary, worded_by=worded_by, now=self._now())

    def postpone_roll_up(self, batch: Batch, *, wait: float, error: str) -> None:
        """Leave `batch` alone for `wait` seconds, and keep `error` as the reason; its rows stay as they are."""
        with self._session() as connection, transaction(connection):
            runtiers.postpone(self._rows(connection), batch, until=self._now().timestamp() + wait, error=error)

    def _rows(self, connection: sqlite3.Connection) -> Rows:
        return Rows(connection=connection, store_id=self.store_id, path=str(self.path))

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        deadline = time.monotonic() + self._busy_timeout
        if not self._lock.acquire(timeout=self._busy_timeout):
            raise RunStoreError(f"{self.path} is in use by another thread for longer than {self._busy_timeout} s")
        try:
            with explained(self.path, self._busy_timeout):
                connection = self._connect()
                left = max(deadline - time.monotonic(), 0.0)
                connection.execute(f"PRAGMA busy_timeout = {int(left * 1000)}")
                yield connection
        finally:
            self._lock.release()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._file == identity(self.path):
            return self._connection
        # Someone has moved or replaced the file: rows written to the old one would be lost with it.
        self._disconnect()
        connection, self.store_id = opened(self.path, self._busy_timeout, self._home)
        self._connection, self._file = connection, identity(self.path)
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _after_fork(self) -> None:
        # SQLite forbids carrying a connection over a fork, even to close it: the child leaves it alone for good.
        self._lock = threading.Lock()
        if self._connection is not None:
            _abandoned.append(self._connection)
            self._connection = None


def _forget_connections() -> None:
    for store in list(_open_stores):
        store._after_fork()


os.register_at_fork(after_in_child=_forget_connections)


def _block(runs: list[Run], longest: int) -> str:
    parts: list[str] = []
    room = longest
    for place, run in enumerate(runs):
        # What a short part leaves of its share is the next ones'.
        part = shortened(f"## {heading(run)}\n{run.summary.strip()}", room // (len(runs) - place) - len(_BETWEEN))
        parts.append(part)
        room -= len(part) + len(_BETWEEN)
    return _BETWEEN.join(parts)
