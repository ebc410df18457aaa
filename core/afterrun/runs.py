"""The run store: one SQLite file of finished runs, and the single source of truth of its schema.

Files of every earlier schema open as they are: missing columns are added, rows are never rewritten. The side table
`afterrun_meta` keeps the store's id, so that rows of two files never collide, and the id of the database that rows
were indexed into, so that against another database they count as unindexed. Stores register themselves below the data
folder, which is how the sweep finds them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Final
from weakref import WeakSet

from afterrun.errors import InputError, RunStoreError
from afterrun.models import Run, parse_time
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

__all__ = ["BUSY_SECONDS", "RunStore", "RunTotals", "registered", "store_id_of"]

BUSY_SECONDS: Final = 0.15
"""How long a call waits for another writer: finish() has 300 ms for all it does."""

_ROW: Final = "id, repo, run_id, created_at, summary, tags, mode, tier, period_label"
_SPACES: Final = (range(9, 14), range(28, 33), (0x85, 0xA0, 0x1680), range(0x2000, 0x200B), (0x2028, 0x2029, 0x202F))
_BLANK: Final = "".join(map(chr, (*chain.from_iterable(_SPACES), 0x205F, 0x3000)))
"""What `str.strip` strips: SQLite's own trim knows only the space."""
_FILLED: Final = "trim(coalesce(summary, ''), :blank) <> ''"

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
            return [self._save(connection, run) for run in runs]

    def save_once(self, run: Run) -> Run:
        """Like `save`, for a run that may have been saved before: a row of the same repo, time and summary is it."""
        with self._session() as connection, transaction(connection):
            return self._save(connection, run, once=True)

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
            where = f"id > :after AND {pending} AND {_FILLED} ORDER BY id LIMIT :limit"
            return self._runs(connection, where, after=after_id, limit=limit)

    def all_runs(self, after_id: int = 0, limit: int = 500) -> list[Run]:
        """At most `limit` runs with a summary, indexed or not, with an id above `after_id`, oldest row first."""
        with self._session() as connection:
            where = f"id > :after AND {_FILLED} ORDER BY id LIMIT :limit"
            return self._runs(connection, where, after=after_id, limit=limit)

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
            found = self._runs(connection, "id = :row", row=row)
        return found[0] if found else None

    def totals(self, database_id: str | None = None) -> RunTotals:
        """Counts for `status`; with `database_id`, rows indexed into another database count as unindexed."""
        with self._session() as connection:
            pending = "1" if is_other_database(connection, database_id) else "indexed IS NOT 1"
            counts = f"count(*), coalesce(sum({_FILLED}), 0), coalesce(sum({_FILLED} AND {pending}), 0)"
            runs, filled, unindexed = connection.execute(f"SELECT {counts} FROM runs", {"blank": _BLANK}).fetchone()
            waiting = f"SELECT DISTINCT created_at FROM runs WHERE {pending} AND {_FILLED}"
            dates = connection.execute(waiting, {"blank": _BLANK})
            times = [when for (text,) in dates if (when := _time(text)) is not None]
            indexed_into = meta(connection, "database_id")
        return RunTotals(
            runs=runs,
            empty=runs - filled,
            indexed=filled - unindexed,
            unindexed=unindexed,
            oldest_unindexed=min(times, default=None),
            other_database=database_id is not None and indexed_into not in (None, database_id),
        )

    def recall(self, repo: str, recent_runs: int = 3) -> str:
        """A block of context for a prompt: the latest quarterly and monthly roll-up, then the latest runs.

        Newest runs come first. It is empty where the store knows nothing of `repo`.
        """
        newest = "ORDER BY datetime(created_at) DESC, id DESC LIMIT :n"
        latest = f"repo = :repo AND coalesce(tier, 'run') = :tier AND {_FILLED} {newest}"
        wanted = (("quarterly", 1), ("monthly", 1), ("run", recent_runs))
        with self._session() as connection:
            found = [run for tier, n in wanted for run in self._runs(connection, latest, repo=repo, tier=tier, n=n)]
        return "\n\n".join(f"## {_heading(run)}\n{run.summary.strip()}" for run in found)

    def _save(self, connection: sqlite3.Connection, run: Run, *, once: bool = False) -> Run:
        repo, run_id = _storable(run.repo), _storable(run.run_id) if run.run_id else None
        same = "repo = :repo AND run_id = :run_id ORDER BY id LIMIT 1"
        if run_id and (found := self._runs(connection, same, repo=repo, run_id=run_id)):
            return found[0]
        stored = replace(
            run,
            repo=repo,
            run_id=run_id,
            created_at=(run.created_at or self._now()).astimezone(UTC),
            summary=_storable(run.summary),
            tags=tuple(map(_storable, run.tags)),
            mode=_storable(run.mode),
            tier=_storable(run.tier),
            period_label=_storable(run.period_label),
            store_id=self.store_id,
            store_path=str(self.path),
        )
        insert = (
            "INSERT INTO runs (repo, run_id, created_at, summary, tags, mode, tier, period_label) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        tags = json.dumps(stored.tags, ensure_ascii=False)
        when = stored.created_at.isoformat() if stored.created_at else ""
        alike = "repo = :repo AND run_id IS NULL AND created_at = :at AND summary = :text ORDER BY id LIMIT 1"
        if once and not run_id and (found := self._runs(connection, alike, repo=repo, at=when, text=stored.summary)):
            return found[0]
        kind = (stored.mode, stored.tier, stored.period_label)
        row = connection.execute(insert, (repo, run_id, when, stored.summary, tags, *kind)).lastrowid
        return replace(stored, id=row)

    def _runs(self, connection: sqlite3.Connection, where: str, **values: object) -> list[Run]:
        rows = connection.execute(f"SELECT {_ROW} FROM runs WHERE {where}", {"blank": _BLANK, **values})
        return [self._run(row) for row in rows]

    def _run(self, row: Sequence[object]) -> Run:
        number, repo, run_id, created_at, summary, tags, mode, tier, period_label = row
        return Run(
            id=number if isinstance(number, int) else None,
            repo=_text(repo),
            run_id=_text(run_id) or None,
            created_at=_time(created_at),
            summary=_text(summary),
            tags=_tags(tags),
            mode=_text(mode) or "feature",
            tier=_text(tier) or "run",
            period_label=_text(period_label),
            store_id=self.store_id,
            store_path=str(self.path),
        )

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


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _time(value: object) -> datetime | None:
    try:
        return parse_time(_text(value))
    except InputError:
        return None


def _tags(value: object) -> tuple[str, ...]:
    try:
        tags = json.loads(_text(value))
    except (ValueError, RecursionError):
        return ()
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def _heading(run: Run) -> str:
    if run.tier != "run":
        return f"{run.repo}: {run.tier} {run.period_label}".rstrip()
    day = f"{run.created_at:%Y-%m-%d}" if run.created_at else "no date"
    return f"{run.repo}: run {run.run_id or run.id} ({day})"
