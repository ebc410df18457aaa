"""The file of a run store: its schema, its identity, its place in the registry, and its failures in words.

`runs` is the only user. A file of any earlier schema is brought up to date by adding what it lacks, under SQLite's
write lock and after a second look, so that several processes may open an old file at once.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from afterrun.errors import RunStoreError

REGISTRY: Final = "run-stores"
"""Folder below the data folder with one small file for each known run store."""

COLUMNS: Final = {
    "repo": "TEXT NOT NULL DEFAULT ''",
    "run_id": "TEXT",
    "created_at": "TEXT NOT NULL DEFAULT ''",
    "summary": "TEXT",
    "tags": "TEXT DEFAULT '[]'",
    "mode": "TEXT DEFAULT 'feature'",
    "tier": "TEXT DEFAULT 'run'",
    "period_label": "TEXT DEFAULT ''",
    "consolidated": "INTEGER DEFAULT 0",
    "indexed": "INTEGER DEFAULT 0",
}
"""Every column of `runs` besides `id`, as it is declared in a new file and added to an old one."""

_CREATE: Final = "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, {})"
_BESIDE: Final = {
    "afterrun_meta": "CREATE TABLE afterrun_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "afterrun_runs_by_run_id": "CREATE INDEX afterrun_runs_by_run_id ON runs (repo, run_id)",
    "afterrun_runs_unindexed": "CREATE INDEX afterrun_runs_unindexed ON runs (id) WHERE indexed IS NOT 1",
    "afterrun_runs_open": (
        "CREATE INDEX afterrun_runs_open ON runs (repo, tier) WHERE consolidated IS NOT 1 AND mode IS NOT 'commit'"
    ),
    "afterrun_sources": (
        "CREATE TABLE afterrun_sources (source INTEGER PRIMARY KEY, roll_up INTEGER NOT NULL, worded_by TEXT NOT NULL)"
    ),
    "afterrun_sources_by_roll_up": "CREATE INDEX afterrun_sources_by_roll_up ON afterrun_sources (roll_up)",
    "afterrun_roll_ups": (
        "CREATE TABLE afterrun_roll_ups (repo TEXT NOT NULL, tier TEXT NOT NULL, not_before REAL NOT NULL, "
        "attempts INTEGER NOT NULL, error TEXT, PRIMARY KEY (repo, tier))"
    ),
}
"""What stands beside `runs`, in the order in which it is made. A run is the source of one roll-up at most, and a
repo's rows of a tier are in the hands of one process at most."""
_UNWRITTEN: Final = ("consolidated", "indexed")
"""Columns that a new row leaves to their default."""
_WAL_RETRY_SECONDS: Final = 0.005

_log = logging.getLogger("afterrun")


def registered(home: Path) -> list[Path]:
    """The run stores that have registered below the data folder `home` and whose files exist."""
    entries = (_registered_path(entry) for entry in sorted((home / REGISTRY).glob("*.json")))
    return [path for path in entries if path is not None and path.exists()]


def store_id_of(path: Path) -> str | None:
    """The id of the run store at `path`, read without changing the file; None where it is no run store with an id."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return meta(connection, "store_id")
    except sqlite3.Error:
        return None


def opened(path: Path, busy_timeout: float, home: Path | None) -> tuple[sqlite3.Connection, str]:
    """Open or make the file, in WAL mode, with today's schema and registered below `home` (None: nowhere).

    Returns the connection and the store's id. For use inside `explained`.
    """
    make_private(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        _refuse_foreign(connection, path)
        _use_wal(connection, time.monotonic() + busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        if not _is_up_to_date(connection):
            with transaction(connection):
                _upgrade(connection, path)
        if home is not None:
            enlist(connection, home, path)
        return connection, meta(connection, "store_id") or ""
    except BaseException:
        connection.close()
        raise


def enlist(connection: sqlite3.Connection, home: Path, path: Path) -> str:
    """Register the store below `home` and return its id, a new one where the file is a copy of a known store."""
    store_id = meta(connection, "store_id") or ""
    known = _registered_path(_entry(home, store_id))
    if known is not None and known.exists():
        if known.samefile(path):
            return store_id
        # A copy of a store that still lives elsewhere becomes a store of its own.
        store_id = _renew_id(connection, store_id)
    try:
        _write_entry(_entry(home, store_id), path, store_id)
    except OSError as error:
        _log.warning("run store %s could not be registered below %s, the sweep may miss it: %s", path, home, error)
    return store_id


def located(path: str | os.PathLike[str]) -> Path:
    """`path` as an absolute one. Raises RunStoreError where it can name no file."""
    try:
        found = Path(path).expanduser().absolute()
        if b"\0" in os.fsencode(found):
            raise RunStoreError(f"run store {str(found)!r} cannot be opened: there is a NUL in its path")
    except (RuntimeError, OSError, UnicodeError) as error:
        raise RunStoreError(f"run store {str(path)!r} cannot be found: {error}") from error
    return found


def make_private(folder: Path) -> None:
    """Make `folder` if it is missing, for its owner alone: what runs tell is nobody else's business."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at `path`, None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def meta(connection: sqlite3.Connection, key: str) -> str | None:
    """The value of `key` in the side table, or None."""
    row = connection.execute("SELECT value FROM afterrun_meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Write `key` into the side table."""
    connection.execute("INSERT OR REPLACE INTO afterrun_meta (key, value) VALUES (?, ?)", (key, value))


def is_other_database(connection: sqlite3.Connection, database_id: str | None) -> bool:
    """Whether the marks of the store are another database's than the one asked about."""
    return database_id is not None and meta(connection, "database_id") != database_id


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction, which takes SQLite's write lock at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path, busy_timeout: float) -> Iterator[None]:
    """Turn what SQLite and the file system report into a `RunStoreError` that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise RunStoreError(f"run store {path} {_reason(primary, busy_timeout)} ({error})") from error
    except OSError as error:
        raise RunStoreError(f"run store {path} cannot be opened: {error.strerror or error}") from error


def _reason(code: int, busy_timeout: float) -> str:
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"is locked by another process for longer than {busy_timeout} s: end the long transaction there"
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return "could not be written, disk full or failing: free some space there"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return "cannot be opened for writing: check that file and folder exist and may be written"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return "is no run store, or is damaged: restore it, or name another file in AFTERRUN_RUN_STORE"
    return "failed"


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            # The change of mode fails at once while another process opens the file: SQLite does not wait here.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_WAL_RETRY_SECONDS)


def _columns(connection: sqlite3.Connection) -> dict[str, tuple[str, int]]:
    return {row[1]: (row[2], row[5]) for row in connection.execute("PRAGMA table_info(runs)")}


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not tables & {"runs", "afterrun_meta"}:
        raise RunStoreError(f"{path} is no run store but another program's file: name a file of its own")
    written = COLUMNS.keys() - set(_UNWRITTEN)
    for _, name, _, not_null, default, key in connection.execute("PRAGMA table_info(runs)"):
        if not_null and default is None and not key and name not in written:
            raise RunStoreError(f"{path} is no run store: its table runs has a column that every row must have: {name}")


def _is_up_to_date(connection: sqlite3.Connection) -> bool:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    return COLUMNS.keys() <= _columns(connection).keys() and _BESIDE.keys() <= names


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    columns = _columns(connection)
    if not columns:
        connection.execute(_CREATE.format(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())))
    elif columns.get("id") != ("INTEGER", 1):
        raise RunStoreError(f"{path} is no run store: its table runs has no column `id INTEGER PRIMARY KEY`")
    else:
        for name in COLUMNS.keys() - columns.keys():
            connection.execute(f"ALTER TABLE runs ADD COLUMN {name} {COLUMNS[name]}")
    present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    for name, statement in _BESIDE.items():
        if name not in present:
            connection.execute(statement)
    if meta(connection, "store_id") is None:
        set_meta(connection, "store_id", uuid.uuid4().hex)


def _renew_id(connection: sqlite3.Connection, old: str) -> str:
    with transaction(connection):
        current = meta(connection, "store_id")
        if current is None or current == old:
            current = uuid.uuid4().hex
            set_meta(connection, "store_id", current)
    return current


def _entry(home: Path, store_id: str) -> Path:
    return home / REGISTRY / f"{store_id}.json"


def _registered_path(entry: Path) -> Path | None:
    try:
        return Path(json.loads(entry.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_entry(entry: Path, path: Path, store_id: str) -> None:
    make_private(entry.parent.parent)
    make_private(entry.parent)
    draft = entry.with_name(f"{entry.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    draft.write_text(json.dumps({"path": str(path), "store_id": store_id}), encoding="utf-8")
    draft.replace(entry)
