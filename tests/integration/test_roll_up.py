"""Roll-ups on real parts: SQLite, Postgres, the Anthropic SDK against a local server, processes that race and die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import pytest
from compose import until
from messages_api import HANGS, MessagesApi, Reply, Request, Step, call_of, error

from afterrun.client import Memory
from afterrun.errors import LanguageModelRejectedError
from afterrun.models import Run
from afterrun.runs import RunStore
from afterrun.vectors import embed_pending

KEY: Final = "sk-ant-test-" + "k" * 30
MARCH: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECRET: Final = "ghp_" + "A1b2C3d4E5" * 4


def summary(text: str) -> Reply:
    return call_of("record_summary", {"summary": text})


def first_words(request: Request) -> Reply:
    """A summary of the beginnings of all texts."""
    return summary(" ".join(entry["text"].partition(".")[0] + "." for entry in request.document["summaries"]))


def save_runs(store: RunStore, count: int, *, repo: str = "app", start: datetime = MARCH) -> list[Run]:
    return store.save_many(
        [
            Run(
                repo=repo,
                run_id=f"{start:%m}-{n}",
                created_at=start + timedelta(days=n),
                summary=f"Built part {n} of the {repo}. It needed {n + 3} attempts and a new table t{n}.",
                tags=("build",),
            )
            for n in range(count)
        ]
    )


@pytest.fixture
def store(memory: Memory) -> Iterator[RunStore]:
    with RunStore(memory.settings.run_store, home=memory.settings.home) as store:
        yield store


@contextmanager
def with_key(memory: Memory, *steps: Step, **changes: Any) -> Iterator[tuple[Memory, MessagesApi]]:
    """The same memory with Claude Haiku behind it."""
    with MessagesApi(*steps) as api:
        settings = replace(memory.settings, anthropic_api_key=KEY, anthropic_base_url=api.url, **changes)
        with Memory(settings=settings, embedder=memory.embedder) as keyed:
            yield keyed, api


def free(path: Path) -> int:
    """Rows that are in no roll-up yet."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM runs WHERE consolidated IS NOT 1").fetchone()[0])


def end_wait(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE afterrun_roll_ups SET not_before = 0")


def of_tier(memory: Memory, tier: str) -> list[dict[str, Any]]:
    with memory.database.transaction() as connection:
        rows = connection.execute(
            "SELECT content, project, source_type, created_at, metadata, is_active FROM memories "
            "WHERE metadata ->> 'tier' = %s ORDER BY created_at",
            (tier,),
        ).fetchall()
    names = ("content", "project", "source_type", "created_at", "metadata", "is_active")
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_ten_runs_become_a_month_in_the_run_store_and_in_the_memory(memory: Memory, store: RunStore) -> None:
    runs = save_runs(store, 10)
    memory.index_runs(store)
    (written,) = memory.roll_up().written
    assert written == store.get(11)
    (month,) = of_tier(memory, "monthly")
    assert (month["project"], month["source_type"], month["content"]) == ("app", "session_summary", written.summary)
    assert month["created_at"] == runs[-1].created_at
    metadata = month["metadata"]
    assert (metadata["period_label"], metadata["worded_by"], metadata["mode"]) == ("2026-03", "digest", "roll_up")
    assert metadata["rolled_up"] == [run.id for run in runs]
    assert metadata["rolled_up_runs"] == [run.run_id for run in runs]
    assert all(f"2026-03-{n:02}: Built part {n - 1} " in written.summary for n in range(1, 11))
    assert len(of_tier(memory, "run")) == 10
    assert all(run["is_active"] for run in of_tier(memory, "run"))
    assert memory.index_runs(store).seen == 0
    assert store.recall("app", recent_runs=1).startswith("## app: monthly 2026-03\n2026-03-01: ")


def test_a_second_pass_finds_nothing_to_do(memory: Memory, store: RunStore) -> None:
    save_runs(store, 19)
    assert len(memory.roll_up().written) == 1
    again = memory.roll_up()
    assert (again.written, again.waiting, again.unreachable) == ((), (), ())
    assert memory.status().heartbeats["roll_up"]


def test_three_months_become_a_quarter_in_the_same_pass(memory: Memory, store: RunStore) -> None:
    for month in (3, 4, 5):
        save_runs(store, 10, start=datetime(2026, month, 1, tzinfo=UTC))
    tiers = [(run.tier, run.period_label) for run in memory.roll_up().written]
    assert tiers == [*(("monthly", f"2026-0{n}") for n in (3, 4, 5)), ("quarterly", "2026-03..2026-05")]
    (quarter,) = of_tier(memory, "quarterly")
    assert all(f"2026-0{month}-" in quarter["content"] for month in (3, 4, 5))
    assert len(quarter["content"]) <= 2_000


def test_several_run_stores_are_rolled_up_and_one_that_cannot_be_read_is_said(
    memory: Memory, store: RunStore, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("no database " * 100)
    with RunStore(tmp_path / "second.db", home=memory.settings.home) as second:
        save_runs(second, 10, repo="second")
    save_runs(store, 10)
    settings = replace(memory.settings, run_stores=(broken,))
    with Memory(settings=settings, embedder=memory.embedder) as several:
        done = several.roll_up()
    assert sorted(run.repo for run in done.written) == ["app", "second"]
    assert done.unreachable == (broken,)


def test_with_a_key_claude_words_the_summary_within_the_budget(memory: Memory, store: RunStore) -> None:
    save_runs(store, 10)
    with with_key(memory, first_words) as (keyed, api):
        (written,) = keyed.roll_up().written
    assert written.summary.startswith("Built part 0 of the app. Built part 1 of the app.")
    assert written.extra["worded_by"] == "claude-haiku-4-5"
    assert [entry["when"] for entry in api.requests[0].document["summaries"]][:2] == ["2026-03-01", "2026-03-02"]
    with memory.database.transaction() as connection:
        spent = connection.execute("SELECT purpose, project, calls, input_tokens FROM spend").fetchall()
    assert spent == [("roll_up", "app", 1, 100)]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (error(529, "overloaded_error"), "busy"),
        (error(429, "rate_limit_error"), "busy"),
        (summary(" "), "no summary"),
        (call_of("record_summary", {"text": "x"}), "no summary"),
        (call_of("record_summary", ["x"]), "no summary"),
        (summary("x" * 5_000), "longer"),
        (summary("Version 99.9 was built in 4711 attempts."), "no text names"),
        (call_of("record_summary", {"summary": "x"}, stop_reason="max_tokens"), "cut off"),
    ],
)
def test_a_call_that_fails_leaves_the_rows_free_and_is_tried_later_only(
    memory: Memory, store: RunStore, reply: Reply, words: str
) -> None:
    save_runs(store, 10)
    with with_key(memory, reply, first_words) as (keyed, api):
        done = keyed.roll_up()
        assert done.written == ()
        assert words in done.waiting[0]
        assert free(store.path) == 10
        assert keyed.roll_up().waiting == ()
        assert len(api.requests) == 1
        end_wait(store.path)
        assert len(keyed.roll_up().written) == 1
    assert len(api.requests) == 2


def test_a_refused_key_stops_at_once_and_everything_waits(memory: Memory, store: RunStore) -> None:
    save_runs(store, 10)
    save_runs(store, 10, repo="lib")
    with with_key(memory, error(401, "authentication_error")) as (keyed, api):
        with pytest.raises(LanguageModelRejectedError, match="check ANTHROPIC_API_KEY"):
            keyed.roll_up()
        assert len(api.requests) == 1
    assert free(store.path) == 20


def test_a_cap_on_spend_lets_the_rows_wait_without_a_call(memory: Memory, store: RunStore) -> None:
    save_runs(store, 10)
    with with_key(memory, first_words, spend_tokens_per_run=10) as (keyed, api):
        assert "AFTERRUN_SPEND_TOKENS_PER_RUN" in keyed.roll_up().waiting[0]
        assert api.requests == []
    assert free(store.path) == 10


def test_a_sentence_with_a_number_of_its_own_is_left_out(memory: Memory, store: RunStore) -> None:
    save_runs(store, 10)
    with with_key(memory, summary("Ten parts were built. Table t7 is new. Latency fell by 4711 ms.")) as (keyed, _):
        (written,) = keyed.roll_up().written
    assert written.summary == "Ten parts were built. Table t7 is new."


def test_what_an_old_store_holds_unredacted_reaches_neither_the_model_nor_the_summary(
    memory: Memory, store: RunStore
) -> None:
    with closing(sqlite3.connect(store.path)) as connection, connection:
        rows = [("app", f"2026-03-{n:02}", f"Token {SECRET}. <private>Anna</private> did {n}.") for n in range(1, 11)]
        connection.executemany("INSERT INTO runs (repo, created_at, summary) VALUES (?, ?, ?)", rows)
    with with_key(memory, summary("A token was renewed ten times.")) as (keyed, api):
        (written,) = keyed.roll_up().written
    assert SECRET.encode() not in api.requests[0].raw
    assert b"Anna" not in api.requests[0].raw
    assert written.summary == "A token was renewed ten times."


def test_a_digest_is_redacted_too(memory: Memory, store: RunStore) -> None:
    with closing(sqlite3.connect(store.path)) as connection, connection:
        rows = [("app", f"2026-03-{n:02}", f"Token {SECRET}. <private>Anna</private> did {n}.") for n in range(1, 11)]
        connection.executemany("INSERT INTO runs (repo, created_at, summary) VALUES (?, ?, ?)", rows)
    (written,) = memory.roll_up().written
    assert "did 10" in written.summary
    assert SECRET not in written.summary
    assert "Anna" not in written.summary


def test_rows_that_are_private_altogether_cost_nothing_and_do_not_come_back(memory: Memory, store: RunStore) -> None:
    with closing(sqlite3.connect(store.path)) as connection, connection:
        rows = [("app", "2026-03-01", "<private>Anna</private>")] * 10
        connection.executemany("INSERT INTO runs (repo, created_at, summary) VALUES (?, ?, ?)", rows)
    with with_key(memory, first_words) as (keyed, api):
        keyed.roll_up()
        assert keyed.roll_up().written == ()
    assert api.requests == []
    assert of_tier(memory, "monthly") == []


def test_a_row_whose_database_fails_afterwards_is_indexed_by_the_sweep(memory: Memory, store: RunStore) -> None:
    save_runs(store, 10)
    batch = store.claim_roll_up()
    assert batch is not None
    store.write_roll_up(batch, "A month of building.", worded_by="digest")
    assert memory.index_runs(store).added == 11
    assert of_tier(memory, "monthly")[0]["metadata"]["rolled_up"] == list(range(1, 11))


def test_a_roll_up_is_never_merged_with_its_runs(memory: Memory, store: RunStore) -> None:
    runs = save_runs(store, 10)
    memory.index_runs(store)
    with with_key(memory, summary(runs[4].summary)) as (keyed, _):
        assert keyed.roll_up().written[0].summary == runs[4].summary
    while embed_pending(memory.database, memory.embedder).more:
        pass
    proposed = {member for members in memory.find_clusters() for member in members}
    tiers = {record.metadata["tier"] for record in memory.get(*proposed)}
    assert tiers == {"run"}


def forked(memory: Memory, api: MessagesApi, **changes: Any) -> BaseProcess:
    """A process that rolls up with Claude Haiku behind it; it is started."""
    settings = replace(memory.settings, anthropic_api_key=KEY, anthropic_base_url=api.url, **changes)
    embedder = memory.embedder

    def work() -> None:
        with Memory(settings=settings, embedder=embedder) as other:
            other.roll_up()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_two_processes_that_race_for_the_same_runs_make_one_call_and_one_row(memory: Memory, store: RunStore) -> None:
    save_runs(store, 10)
    store.close()
    with MessagesApi(first_words) as api:
        processes = [forked(memory, api) for _ in range(2)]
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
        assert len(api.requests) == 1
    assert free(store.path) == 1
    assert len(of_tier(memory, "monthly")) == 1


def test_the_rows_of_a_process_that_is_killed_in_the_call_are_rolled_up_once_by_another(
    memory: Memory, store: RunStore
) -> None:
    save_runs(store, 10)
    store.close()
    with MessagesApi(HANGS, first_words) as api:
        process = forked(memory, api, lease_seconds=2)
        until(lambda: api.requests)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(60)
        assert free(store.path) == 10
        settings = replace(memory.settings, anthropic_api_key=KEY, anthropic_base_url=api.url, lease_seconds=2)
        with Memory(settings=settings, embedder=memory.embedder) as other:
            assert len(until(lambda: other.roll_up().written)) == 1
        assert len(api.requests) == 2
    assert free(store.path) == 1
    assert len(of_tier(memory, "monthly")) == 1
