"""The run store: files of every schema, marks by database, registration and copies, odd rows, failures in words."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from afterrun.errors import RunStoreError
from afterrun.models import Run
from afterrun.runfile import COLUMNS
from afterrun.runs import RunStore, RunTotals, registered

OLDEST = "CREATE TABLE runs (id INTEGER PRIMARY KEY, repo TEXT, created_at TEXT, summary TEXT)"
BEFORE_TIERS = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, repo TEXT NOT NULL, run_id TEXT, "
    "created_at TEXT NOT NULL, summary TEXT, tags TEXT, mode TEXT)"
)
BEFORE_INDEXED = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, repo TEXT NOT NULL, run_id TEXT, "
    "created_at TEXT NOT NULL,\n  summary TEXT, tags TEXT DEFAULT '[]', mode TEXT DEFAULT 'feature', "
    "tier TEXT DEFAULT 'run', period_label TEXT DEFAULT '', consolidated INTEGER DEFAULT 0)"
)
WITH_INDEXED = BEFORE_INDEXED.replace("consolidated", "indexed INTEGER, consolidated")
SCHEMAS = [OLDEST, BEFORE_TIERS, BEFORE_INDEXED, WITH_INDEXED]


def old_file(path: Path, schema: str = BEFORE_INDEXED, rows: int = 2) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(schema)
        for n in range(1, rows + 1):
            connection.execute(
                "INSERT INTO runs (repo, created_at, summary) VALUES (?, ?, ?)",
                ("app", f"2024-01-0{n % 9 + 1}T10:00:00+02:00", f"summary {n}"),
            )
    return path


def raw(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path / "deep" / "er" / "memory.db") as store:
        yield store


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_saved_run_comes_back_with_its_place(store: RunStore) -> None:
    when = datetime.fromisoformat("2026-01-31T12:00:00+02:00")
    run = Run(repo="app", summary="did it", run_id="r1", created_at=when, tags=("a", "ü"), mode="fix")
    saved = store.save(run)
    assert saved == store.get(1)
    assert (saved.id, saved.store_id, saved.store_path) == (1, store.store_id, str(store.path))
    assert (saved.created_at, saved.tags, saved.mode) == (when, ("a", "ü"), "fix")
    assert raw(store.path, "SELECT created_at FROM runs") == [("2026-01-31T10:00:00+00:00",)]
    assert store.get(2) is None


def test_a_run_without_a_time_gets_the_clocks(tmp_path: Path) -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with RunStore(tmp_path / "memory.db", now=lambda: noon) as store:
        assert store.save(Run(repo="app", summary="x")).created_at == noon


def test_the_same_repo_and_run_id_is_the_same_row(store: RunStore) -> None:
    first, again, other = store.save_many(
        [
            Run(repo="app", summary="one", run_id="r1"),
            Run(repo="app", summary="two", run_id="r1"),
            Run(repo="lib", summary="three", run_id="r1"),
        ]
    )
    assert again == first
    assert other.id == 2
    assert store.save(Run(repo="app", summary="four")).id == 3
    assert store.save(Run(repo="app", summary="four")).id == 4


def test_the_file_is_in_wal_mode_and_synchronous(store: RunStore) -> None:
    assert raw(store.path, "PRAGMA journal_mode") == [("wal",)]
    assert store._connect().execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_migration_of_an_older_file_adds_columns_and_leaves_rows(tmp_path: Path, schema: str) -> None:
    path = old_file(tmp_path / "memory.db", schema)
    before = raw(path, "SELECT id, repo, created_at, summary FROM runs")
    with RunStore(path) as store:
        assert [run.summary for run in store.unindexed()] == ["summary 1", "summary 2"]
        assert store.save(Run(repo="app", summary="new", run_id="r")).id == 3
        assert store.unindexed()[0].created_at == datetime(2024, 1, 2, 8, tzinfo=UTC)
    assert raw(path, "SELECT id, repo, created_at, summary FROM runs LIMIT 2") == before
    assert {row[1] for row in raw(path, "PRAGMA table_info(runs)")} == {"id", *COLUMNS}


def open_and_save(path: str) -> None:
    with RunStore(path, busy_timeout=30) as store:
        for n in range(20):
            store.save(Run(repo="app", summary="x", run_id=f"{os.getpid()}-{n}"))
            store.save(Run(repo="app", summary="x", run_id=f"shared-{n}"))


def test_several_processes_may_open_an_old_file_at_once(tmp_path: Path) -> None:
    path = old_file(tmp_path / "memory.db", OLDEST)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=open_and_save, args=(str(path),)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert raw(path, "SELECT count(*) FROM runs") == [(2 + 4 * 20 + 20,)]
    assert raw(path, "SELECT count(*) FROM afterrun_meta WHERE key = 'store_id'") == [(1,)]


def test_rows_without_a_summary_are_never_handed_out(store: RunStore) -> None:
    store.save_many([Run(repo="app", summary=text) for text in ("", " \n\t", "\u3000\u00a0\u2028", "real")])
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("INSERT INTO runs (repo, created_at, summary) VALUES ('app', '', NULL)")
    assert [run.summary for run in store.unindexed()] == ["real"]
    assert [run.summary for run in store.all_runs()] == ["real"]
    assert store.totals() == RunTotals(
        runs=5, empty=4, indexed=0, unindexed=1, oldest_unindexed=store.unindexed()[0].created_at
    )


def test_unindexed_is_oldest_first_and_a_second_pass_finds_nothing(store: RunStore) -> None:
    store.save_many([Run(repo="app", summary=f"s{n}") for n in range(5)])
    assert [run.id for run in store.unindexed(limit=2)] == [1, 2]
    store.mark_indexed([1, 2])
    assert [run.id for run in store.unindexed()] == [3, 4, 5]
    store.mark_indexed(iter([3, 4, 5]))
    assert store.unindexed() == []
    store.save(Run(repo="app", summary="one more"))
    assert [run.id for run in store.unindexed()] == [6]
    assert [run.id for run in store.all_runs(after_id=4, limit=1)] == [5]


def test_unindexed_can_go_on_after_a_row(store: RunStore) -> None:
    store.save_many([Run(repo="app", summary=f"s{n}") for n in range(5)])
    store.mark_indexed([4])
    assert [run.id for run in store.unindexed(after_id=2)] == [3, 5]
    assert [run.id for run in store.unindexed(after_id=2, limit=1, database_id="one")] == [3]
    assert store.unindexed(after_id=5) == []


def test_a_run_may_be_saved_again_without_a_second_row(store: RunStore) -> None:
    when = datetime(2026, 1, 31, tzinfo=UTC)
    run = Run(repo="app", summary="one \ud800", created_at=when)
    assert [store.save_once(run).id for _ in range(2)] == [1, 1]
    assert store.save_once(Run(repo="app", summary="two", created_at=when)).id == 2
    assert [store.save_once(Run(repo="app", summary="x", run_id="r")).id for _ in range(2)] == [3, 3]


def test_another_programs_file_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(RunStoreError, match=r"other\.db is no run store but another program's file"):
        RunStore(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes() == before
    (tmp_path / "empty.db").touch()
    with RunStore(tmp_path / "empty.db") as store:
        assert store.save(Run(repo="app", summary="x")).id == 1


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_table_that_demands_a_column_of_its_own_is_refused_and_left_as_it_was(tmp_path: Path, schema: str) -> None:
    path = old_file(tmp_path / "memory.db", schema.replace("repo", "owner TEXT NOT NULL, repo", 1), rows=0)
    before = path.read_bytes()
    with pytest.raises(RunStoreError, match=r"a column that every row must have: owner"):
        RunStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", ["~nosuchuser/memory.db", "nul\0.db", "\ud800.db"])
def test_a_path_that_names_no_file_says_so(path: str) -> None:
    with pytest.raises(RunStoreError):
        RunStore(path)


def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = old_file(tmp_path / "memory.db")
    path.chmod(0o664)
    RunStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o664


def test_against_another_database_every_row_counts_as_unindexed(store: RunStore) -> None:
    store.save_many([Run(repo="app", summary=f"s{n}") for n in range(3)])
    store.mark_indexed([1, 2], database_id="one")
    assert [run.id for run in store.unindexed(database_id="one")] == [3]
    assert [run.id for run in store.unindexed(database_id="two")] == [1, 2, 3]
    assert (store.totals("one").indexed, store.totals("two").indexed) == (2, 0)
    store.mark_indexed([3], database_id="two")
    assert [run.id for run in store.unindexed(database_id="two")] == [1, 2]
    assert [run.id for run in store.unindexed()] == [1, 2]


def test_marks_of_an_older_program_are_no_database_of_ours(tmp_path: Path) -> None:
    path = old_file(tmp_path / "memory.db", WITH_INDEXED)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET indexed = 1")
    with RunStore(path) as store:
        assert store.unindexed() == []
        assert len(store.unindexed(database_id="ours")) == 2


def test_odd_rows_come_out_as_runs_and_break_no_batch(tmp_path: Path) -> None:
    path = old_file(tmp_path / "memory.db", OLDEST, rows=0)
    RunStore(path).close()
    odd = [
        ("app", "", "no time", "no json", None, None),
        ("app", "soon", "no time", '{"a": 1}', "", 7),
        ("app", 20240101, b"bytes \xff", '["a", 1]', 3, "run"),
        (None, "2024-02-30T00:00:00", "no such day", "[" * 5000, "m", "run"),
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO runs (repo, created_at, summary, tags, mode, tier) VALUES (?, ?, ?, ?, ?, ?)", odd
        )
        connection.execute("INSERT INTO runs (repo, summary) VALUES ('app', CAST(x'ff41' AS TEXT))")
    with RunStore(path) as store:
        runs = store.unindexed()
        assert len(runs) == 5
        assert [run.tags for run in runs] == [(), (), ("a",), (), ()]
        assert [run.created_at for run in runs[:2]] == [None, None]
        assert (runs[0].mode, runs[0].tier, runs[2].summary, runs[4].summary) == ("feature", "run", "bytes �", "�A")
        assert store.totals().unindexed == 5


@pytest.mark.parametrize("text", ["nul \0 in it", "\ud800 lone", "🙂 日本語 مرحبا", "x" * 2_000_000])
def test_any_text_can_be_saved(store: RunStore, text: str) -> None:
    saved = store.save(Run(repo=text[:50], summary=text, run_id=text[:50], tags=(text[:50],), mode=text[:9]))
    assert store.unindexed() == [saved]
    assert saved.summary == text.encode("utf-8", "replace").decode()
    assert store.save(Run(repo=text[:50], summary="again", run_id=text[:50])).id == saved.id


def test_recall_gives_the_latest_of_each_tier(store: RunStore) -> None:
    day = [datetime(2026, 1, n + 1, tzinfo=UTC) for n in range(6)]
    store.save_many(
        [
            Run(repo="app", summary="quarter", tier="quarterly", period_label="2025-Q4", created_at=day[0]),
            Run(repo="app", summary="old month", tier="monthly", period_label="2025-11", created_at=day[0]),
            Run(repo="app", summary="month", tier="monthly", period_label="2025-12", created_at=day[1]),
            *(Run(repo="app", summary=f"run {n}", run_id=f"r{n}", created_at=day[n]) for n in (5, 2, 3, 4)),
            Run(repo="lib", summary="other"),
            Run(repo="app", summary=""),
        ]
    )
    assert store.recall("app", recent_runs=2) == (
        "## app: quarterly 2025-Q4\nquarter\n\n## app: monthly 2025-12\nmonth\n\n"
        "## app: run r5 (2026-01-06)\nrun 5\n\n## app: run r4 (2026-01-05)\nrun 4"
    )
    assert store.recall("unknown") == ""


def test_stores_register_and_the_gone_are_left_out(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert registered(home) == []
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in paths:
        RunStore(path, home=home).close()
        RunStore(path, home=home).close()
    RunStore(tmp_path / "private.db").close()
    assert sorted(registered(home)) == paths
    paths[0].unlink()
    assert registered(home) == paths[1:]
    (home / "run-stores" / "odd.json").write_text("{")
    assert registered(home) == paths[1:]


def test_a_copied_file_becomes_a_store_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with RunStore(tmp_path / "a.db", home=home) as original:
        original.save(Run(repo="app", summary="x"))
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    with RunStore(tmp_path / "b.db", home=home) as copy, RunStore(tmp_path / "a.db", home=home) as again:
        assert again.store_id == original.store_id != copy.store_id
        assert copy.unindexed()[0].source_key != again.unindexed()[0].source_key
        copied = copy.store_id
    with RunStore(tmp_path / "b.db", home=home) as copy:
        assert copy.store_id == copied
    assert sorted(registered(home)) == [tmp_path / "a.db", tmp_path / "b.db"]


def test_a_moved_file_keeps_its_id_and_is_found_at_its_new_place(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with RunStore(tmp_path / "a.db", home=home) as store:
        pass
    (tmp_path / "a.db").rename(tmp_path / "b.db")
    with RunStore(tmp_path / "b.db", home=home) as moved:
        assert moved.store_id == store.store_id
    assert registered(home) == [tmp_path / "b.db"]


def test_a_linked_path_is_the_same_store(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with RunStore(tmp_path / "a.db", home=home) as store:
        pass
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    with RunStore(tmp_path / "link.db", home=home) as linked:
        assert linked.store_id == store.store_id
    assert registered(home) == [tmp_path / "a.db"]


def test_a_home_that_cannot_be_written_is_said_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file")
    with RunStore(tmp_path / "a.db", home=tmp_path / "home") as store:
        assert store.save(Run(repo="app", summary="x")).id == 1
    assert "could not be registered" in caplog.text


def test_a_locked_store_says_so_within_its_time(store: RunStore) -> None:
    with locked(store.path):
        assert store.unindexed() == []
        started = time.monotonic()
        with pytest.raises(RunStoreError, match=r"memory\.db is locked by another process"):
            store.save(Run(repo="app", summary="x"))
        assert 0.1 < time.monotonic() - started < 0.3
    assert store.save(Run(repo="app", summary="x")).id == 1


def test_threads_that_wait_for_a_locked_store_wait_together(store: RunStore) -> None:
    failed: list[float] = []

    def save() -> None:
        started = time.monotonic()
        with pytest.raises(RunStoreError):
            store.save(Run(repo="app", summary="x"))
        failed.append(time.monotonic() - started)

    with locked(store.path):
        threads = [threading.Thread(target=save) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(failed) == 8
    assert max(failed) < 0.35


def test_a_file_that_is_no_run_store_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("This is no database, only some text that is long enough for a header." * 20)
    with pytest.raises(RunStoreError, match=r"is no run store, or is damaged"):
        RunStore(tmp_path / "text.db")
    with pytest.raises(RunStoreError, match=r"cannot be opened"):
        RunStore(tmp_path)
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE runs (name TEXT)")
    with pytest.raises(RunStoreError, match=r"is no run store: its table runs has no column"):
        RunStore(tmp_path / "other.db")
    with pytest.raises(RunStoreError, match=r"cannot be opened"):
        RunStore(tmp_path / "text.db" / "memory.db")


FULL = """
import resource, sys
from afterrun.errors import RunStoreError
from afterrun.models import Run
from afterrun.runs import RunStore
store = RunStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    store.save(Run(repo="app", summary="x" * 1_000_000))
except RunStoreError as error:
    print(error)
print(store.save(Run(repo="app", summary="short")).id)
"""
READ_ONLY = """
import os, sys
from afterrun.errors import RunStoreError
from afterrun.models import Run
from afterrun.runs import RunStore
os.setuid(65534)
try:
    RunStore(sys.argv[1]).save(Run(repo="app", summary="x"))
except RunStoreError as error:
    print(error)
"""


def run_python(code: str, *args: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True).stdout


def test_a_full_disk_says_so_and_the_store_goes_on(tmp_path: Path) -> None:
    error, row = run_python(FULL, str(tmp_path / "memory.db")).splitlines()
    assert "disk full" in error
    assert row == "1"


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_a_file_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" in str(folder):
            folder.chmod(0o755)
    RunStore(tmp_path / "memory.db").close()
    (tmp_path / "memory.db").chmod(0o444)
    assert "cannot be opened for writing" in run_python(READ_ONLY, str(tmp_path / "memory.db"))


def test_threads_share_a_store(store: RunStore) -> None:
    def save(name: int) -> None:
        for n in range(25):
            store.save(Run(repo="app", summary="x", run_id=f"{name}-{n}"))

    threads = [threading.Thread(target=save, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.totals().runs == 200


def test_a_fork_opens_the_file_anew_and_leaves_the_parents_connection_alone(store: RunStore) -> None:
    store.save(Run(repo="app", summary="parent"))
    child = multiprocessing.get_context("fork").Process(target=store.save, args=(Run(repo="app", summary="child"),))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    store.save(Run(repo="app", summary="parent again"))
    assert [run.summary for run in store.unindexed()] == ["parent", "child", "parent again"]


def test_a_file_that_was_replaced_is_opened_anew(store: RunStore) -> None:
    store.save(Run(repo="app", summary="old"))
    store.path.rename(store.path.with_name("away.db"))
    assert store.save(Run(repo="app", summary="new")).id == 1
    assert raw(store.path, "SELECT summary FROM runs") == [("new",)]


def test_a_closed_store_opens_again_on_use(store: RunStore) -> None:
    store.close()
    assert store.save(Run(repo="app", summary="x")).id == 1
