"""Roll-ups in a run store: what is due, who holds it, what is written, on real SQLite files and processes."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from afterrun.models import Run
from afterrun.runs import Batch, RunStore

MARCH = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = MARCH

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[RunStore]:
    with RunStore(tmp_path / "memory.db", now=clock) as store:
        yield store


def run(n: int, repo: str = "app", **fields: Any) -> Run:
    values: dict[str, Any] = {
        "created_at": MARCH + timedelta(days=n),
        "run_id": f"r{n}",
        "tags": (f"t{n % 2}",),
        **fields,
    }
    return Run(repo=repo, summary=f"Run {n} of {repo}.", **values)


def claimed(store: RunStore) -> Batch:
    batch = store.claim_roll_up()
    assert batch is not None
    return batch


def raw(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_ten_runs_of_a_repo_are_due_nine_are_not(store: RunStore) -> None:
    store.save_many([run(n) for n in range(9)])
    store.save_many([run(n, "other") for n in range(9)])
    assert store.claim_roll_up() is None
    store.save(run(9))
    batch = claimed(store)
    assert (batch.repo, batch.tier, batch.period_label, batch.attempts) == ("app", "monthly", "2026-03", 1)
    assert [source.run_id for source in batch.sources] == [f"r{n}" for n in range(10)]


@pytest.mark.parametrize("summary", [None, "", "  \n"])
def test_rows_without_a_summary_commits_and_rows_of_no_repo_do_not_count(store: RunStore, summary: str | None) -> None:
    store.save_many([run(n) for n in range(9)])
    store.save_many([run(n, mode="commit") for n in range(20, 40)])
    store.save_many([run(n, repo=" ") for n in range(40, 60)])
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("INSERT INTO runs (repo, created_at, summary) VALUES ('app', '2026-03-01', ?)", (summary,))
    assert store.claim_roll_up() is None


def test_the_oldest_ten_become_a_row_that_names_them_and_they_stay_as_they_are(store: RunStore) -> None:
    late = run(-40)
    store.save_many([run(n) for n in range(10)])
    store.save(late)
    written = store.write_roll_up(claimed(store), "A month.", worded_by="digest")
    assert written is not None
    assert (written.tier, written.period_label, written.mode) == ("monthly", "2026-01..2026-03", "roll_up")
    assert written.created_at == MARCH + timedelta(days=8)
    assert written.tags == ("t0", "t1")
    assert written.extra == {
        "rolled_up": [*range(1, 10), 11],
        "rolled_up_runs": [*(f"r{n}" for n in range(9)), "r-40"],
        "worded_by": "digest",
    }
    assert written.id is not None
    assert store.get(written.id) == written
    assert written in store.unindexed()
    assert raw(store.path, "SELECT count(*) FROM runs WHERE consolidated = 1") == [(10,)]
    assert raw(store.path, "SELECT id FROM runs WHERE consolidated = 0 AND tier = 'run'") == [(10,)]
    assert len(store.all_runs()) == 12
    assert store.claim_roll_up() is None


def test_three_months_become_a_quarter_labelled_by_their_periods(store: RunStore) -> None:
    for month in range(3):
        store.save_many([run(100 * month + n, created_at=MARCH + timedelta(days=31 * month + n)) for n in range(10)])
        store.write_roll_up(claimed(store), f"Month {month}.", worded_by="digest")
    batch = claimed(store)
    assert (batch.tier, batch.period_label) == ("quarterly", "2026-03..2026-05")
    assert [source.summary for source in batch.sources] == ["Month 0.", "Month 1.", "Month 2."]
    store.write_roll_up(batch, "A quarter.", worded_by="digest")
    assert store.claim_roll_up() is None
    assert store.recall("app", recent_runs=1) == (
        "## app: quarterly 2026-03..2026-05\nA quarter.\n\n## app: monthly 2026-05\nMonth 2.\n\n"
        "## app: run r209 (2026-05-11)\nRun 209 of app."
    )


def test_rows_without_a_time_do_not_date_a_period(store: RunStore) -> None:
    with closing(sqlite3.connect(store.path)) as connection, connection:
        rows = [("app", "someday", f"x {n}") for n in range(10)]
        connection.executemany("INSERT INTO runs (repo, created_at, summary) VALUES (?, ?, ?)", rows)
    batch = claimed(store)
    assert (batch.period_label, batch.created_at) == ("undated", None)
    written = store.write_roll_up(batch, "Some day.", worded_by="digest")
    assert written is not None
    assert written.created_at == MARCH


@pytest.mark.parametrize("repo", ["a/b", "a'b; DROP TABLE runs", "名前", "🐘", "A\x00B", "x" * 300, "per%cent:colon"])
def test_a_repo_may_have_any_name(store: RunStore, repo: str) -> None:
    store.save_many([run(n, repo) for n in range(10)])
    assert store.write_roll_up(claimed(store), "A month.", worded_by="digest") is not None
    assert "monthly 2026-03" in store.recall(repo)


def test_a_held_batch_is_nobody_elses_until_its_holder_is_given_up(store: RunStore, clock: Clock) -> None:
    store.save_many([run(n, repo) for n in range(10) for repo in ("app", "lib")])
    assert claimed(store).repo == "app"
    assert claimed(store).repo == "lib"
    assert store.claim_roll_up() is None
    clock.tick(299)
    assert store.claim_roll_up() is None
    clock.tick(1)
    assert claimed(store).attempts == 2


def test_a_postponed_batch_waits_with_its_reason_and_keeps_its_rows(store: RunStore, clock: Clock) -> None:
    store.save_many([run(n) for n in range(10)])
    store.postpone_roll_up(claimed(store), wait=600, error="busy")
    assert raw(store.path, "SELECT error FROM afterrun_roll_ups") == [("busy",)]
    clock.tick(599)
    assert store.claim_roll_up() is None
    clock.tick(1)
    assert store.write_roll_up(claimed(store), "A month.", worded_by="digest") is not None
    assert raw(store.path, "SELECT count(*) FROM afterrun_roll_ups") == [(0,)]


def test_a_late_writer_whose_rows_are_taken_writes_nothing(store: RunStore, clock: Clock) -> None:
    store.save_many([run(n) for n in range(10)])
    late = claimed(store)
    clock.tick(300)
    assert store.write_roll_up(claimed(store), "First.", worded_by="digest") is not None
    assert store.write_roll_up(late, "Second.", worded_by="digest") is None
    assert [run.summary for run in store.all_runs() if run.tier == "monthly"] == ["First."]


def _roll(path: str, start: Event) -> None:
    with RunStore(path, busy_timeout=10) as store:
        start.wait(30)
        while (batch := store.claim_roll_up()) is not None:
            store.write_roll_up(batch, "A month.", worded_by="digest")


def test_processes_that_race_take_each_row_once(tmp_path: Path) -> None:
    with RunStore(tmp_path / "memory.db") as store:
        store.save_many([run(n, f"repo{n % 7}") for n in range(280)])
    context = multiprocessing.get_context("fork")
    start = context.Event()
    processes = [context.Process(target=_roll, args=(str(tmp_path / "memory.db"), start)) for _ in range(2)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    tiers = raw(tmp_path / "memory.db", "SELECT tier, consolidated, count(*) FROM runs GROUP BY 1, 2 ORDER BY 1, 2")
    assert tiers == [("monthly", 0, 7), ("monthly", 1, 21), ("quarterly", 0, 7), ("run", 1, 280)]
    assert raw(tmp_path / "memory.db", "SELECT count(*), count(DISTINCT source) FROM afterrun_sources") == [(301, 301)]


def test_a_block_of_context_is_bounded_and_its_cuts_are_marked(store: RunStore) -> None:
    store.save_many([Run(repo="app", summary="word " * 2_000, run_id=f"r{n}") for n in range(3)])
    store.save(Run(repo="app", summary="short", run_id="last", created_at=MARCH + timedelta(days=900)))
    block = store.recall("app", longest=3_000)
    assert len(block) <= 3_000
    assert block.count(" …") == 2
    assert "## app: run last (2028-08-17)\nshort" in block
    assert store.recall("app", recent_runs=0) == store.recall("app", recent_runs=-1) == ""
