"""The indexer, which was once broken for months: each behaviour that it lacked is a test by name."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from afterrun import index, repair, schema
from afterrun.chunking import Chunker
from afterrun.client import Memory
from afterrun.db import Database
from afterrun.errors import EmbeddingError, NotFoundError
from afterrun.models import Run
from afterrun.runs import RunStore
from afterrun.store import Store
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending


@pytest.fixture
def runs(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "memory.db", home=tmp_path)


def saved(runs: RunStore, count: int, repo: str = "acme/app") -> list[Run]:
    return runs.save_many(
        [
            Run(repo=repo, run_id=f"{repo}-{number}", summary=f"Run {number} of {repo} fixed bug {number * 7}.")
            for number in range(count)
        ]
    )


def broken_embedder(chunker: Chunker, fail_on: Callable[[str], bool]) -> HashEmbedder:
    return HashEmbedder(path=chunker.spec.path, fail_on=fail_on)


def memories_of(database: Database) -> int:
    with database.transaction() as connection:
        return Store(connection).totals().active


def old_file(path: Path, columns: str, rows: Sequence[tuple[object, ...]]) -> RunStore:
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
    names = ", ".join(part.split()[0] for part in columns.split(", "))
    marks = ", ".join("?" * len(columns.split(", ")))
    connection.executemany(f"INSERT INTO runs ({names}) VALUES ({marks})", rows)
    connection.commit()
    connection.close()
    return RunStore(path)


def test_todays_schema_is_read_whole(database: Database, chunker: Chunker, runs: RunStore) -> None:
    runs.save(
        Run(
            repo="acme/app", run_id="r1", summary="Added the login page.", tags=("ui", "auth"), mode="feature",
            created_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        )
    )  # fmt: skip
    assert index.index_store(database, runs, chunker).added == 1
    with database.transaction() as connection:
        row = connection.execute(
            "SELECT project, source_type, content, created_at, metadata, source_key FROM memories"
        ).fetchone()
    assert row is not None
    assert row[:4] == ("acme/app", "session_summary", "Added the login page.", datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert row[4] == {
        "repo": "acme/app", "tier": "run", "run_id": "r1", "mode": "feature", "tags": ["ui", "auth"],
        "store_id": runs.store_id,
    }  # fmt: skip
    assert row[5] == f"run:{runs.store_id}:1"


def test_empty_summaries_are_never_indexed_and_never_block(
    database: Database, chunker: Chunker, tmp_path: Path
) -> None:
    rows: list[tuple[object, ...]] = [("a", "2026-01-01", text) for text in (None, "", "  \n", "Real work.")]
    with old_file(tmp_path / "old.db", "repo TEXT, created_at TEXT, summary TEXT", rows) as runs:
        done = index.index_store(database, runs, chunker)
        assert (done.added, memories_of(database)) == (1, 1)
        assert runs.unindexed() == []


def test_a_second_pass_indexes_nothing_and_one_new_run_costs_one_row(
    database: Database, chunker: Chunker, runs: RunStore
) -> None:
    saved(runs, 250)
    assert index.index_store(database, runs, chunker).added == 250
    assert index.index_store(database, runs, chunker).seen == 0
    runs.save(Run(repo="acme/app", summary="One more."))
    assert index.index_store(database, runs, chunker).seen == 1
    assert memories_of(database) == 251


def test_full_backfill_looks_at_every_run_and_doubles_none(
    database: Database, chunker: Chunker, runs: RunStore
) -> None:
    saved(runs, 130)
    index.index_store(database, runs, chunker)
    done = index.index_store(database, runs, chunker, full=True)
    assert (done.added, done.known, memories_of(database)) == (0, 130, 130)


def test_a_failing_embedder_leaves_rows_pending_and_marks_nothing_failed(
    database: Database, chunker: Chunker, runs: RunStore
) -> None:
    saved(runs, 5)
    index.index_store(database, runs, chunker)
    broken = broken_embedder(chunker, lambda text: True)
    with pytest.raises(EmbeddingError):
        embed_pending(database, broken)
    with database.transaction() as connection:
        assert connection.execute("SELECT count(*), max(attempts), bool_or(failed) FROM chunks").fetchone() == (
            5,
            0,
            False,
        )
        connection.execute("UPDATE chunks SET lease_until = NULL")
    assert embed_pending(database, HashEmbedder(path=chunker.spec.path)).embedded == 5


def test_an_older_file_is_migrated_on_opening_without_changing_its_rows(
    database: Database, chunker: Chunker, tmp_path: Path
) -> None:
    rows: list[tuple[object, ...]] = [
        ("acme/app", "2025-05-05T10:00:00+02:00", f"Old run {number}") for number in range(3)
    ]
    with old_file(tmp_path / "old.db", "repo TEXT NOT NULL, created_at TEXT NOT NULL, summary TEXT", rows) as runs:
        assert index.index_store(database, runs, chunker).added == 3
    connection = sqlite3.connect(tmp_path / "old.db")
    assert connection.execute("SELECT repo, created_at, summary FROM runs").fetchall() == rows
    assert connection.execute("SELECT sum(indexed) FROM runs").fetchone() == (3,)
    connection.close()


def test_a_poison_run_is_isolated_counted_and_brought_back(
    database: Database, chunker: Chunker, runs: RunStore
) -> None:
    saved(runs, 20)
    runs.save(Run(repo="acme/app", summary="The poison run."))
    index.index_store(database, runs, chunker)
    poisoned = broken_embedder(chunker, lambda text: "poison" in text)
    for attempt in range(3):
        done = embed_pending(database, poisoned, max_attempts=3)
        assert (done.embedded, done.failed) == (20 if attempt == 0 else 0, 1)
        with database.transaction() as connection:
            connection.execute("UPDATE chunks SET lease_until = NULL")
    assert embed_pending(database, poisoned).failed == 0
    with database.transaction() as connection:
        (letter,) = Store(connection).dead_letters()
    assert (letter.task, letter.attempts) == ("embed", 3)
    assert memories_of(database) == 21
    with pytest.raises(NotFoundError):
        repair.retry(database, [letter.id + 1], chunker)
    assert repair.retry(database, None, chunker) == 1
    assert embed_pending(database, HashEmbedder(path=chunker.spec.path)).embedded == 1


def test_a_message_that_is_no_run_goes_to_the_dead_letters(database: Database, chunker: Chunker) -> None:
    for message in (
        {"repo": "a"},
        {"summary": "b"},
        {"repo": "a", "summary": 7},
        {"repo": "a", "summary": "x", "tags": "no"},
    ):
        assert index.index_message(database, message, chunker).failed == 1
    with database.transaction() as connection:
        assert len(Store(connection).dead_letters()) == 4
        assert Store(connection).totals().active == 0


def test_a_foreign_message_is_redacted_and_indexed_once_however_often_it_comes(
    database: Database, chunker: Chunker
) -> None:
    message = {
        "repo": "acme/app", "run_id": "x1", "build": 7,
        "summary": "Key is sk-ant-api03-" + "a" * 60 + " <private>no</private> done.",
    }  # fmt: skip
    assert [index.index_message(database, message, chunker).added for _ in range(3)] == [1, 0, 0]
    with database.transaction() as connection:
        row = connection.execute("SELECT content, metadata ->> 'build', source_key FROM memories").fetchone()
    assert row is not None
    assert "sk-ant" not in row[0]
    assert "no" not in row[0].split()
    assert row[1:] == ("7", "run:acme/app:x1")


def test_a_summary_that_is_all_private_is_marked_without_a_memory(
    database: Database, chunker: Chunker, runs: RunStore
) -> None:
    runs.save(Run(repo="acme/app", summary="<private>all of it</private>"))
    assert index.index_store(database, runs, chunker).empty == 1
    assert memories_of(database) == 0
    assert runs.unindexed() == []


def test_an_announced_run_is_marked_in_its_own_file_only(database: Database, chunker: Chunker, tmp_path: Path) -> None:
    one, other = RunStore(tmp_path / "one.db"), RunStore(tmp_path / "other.db")
    run = one.save(Run(repo="a", summary="From one."))
    other.save(Run(repo="a", summary="From the other."))
    index.index_message(database, run.to_message(), chunker)
    assert one.unindexed() == []
    assert len(other.unindexed()) == 1
    assert index.index_store(database, other, chunker).added == 1


def test_a_message_cannot_have_a_worker_change_a_file_that_is_not_its_run_store(
    database: Database, chunker: Chunker, tmp_path: Path
) -> None:
    bystander = tmp_path / "bystander.db"
    with closing(sqlite3.connect(bystander)) as connection:
        connection.execute("CREATE TABLE bookmarks (id INTEGER PRIMARY KEY)")
    before = bystander.read_bytes()
    message = {"repo": "a", "summary": "Real work.", "id": 1, "store_id": "f" * 32, "store_path": str(bystander)}
    assert index.index_message(database, message, chunker).added == 1
    assert bystander.read_bytes() == before


def test_rows_count_as_unindexed_against_another_database(
    database: Database, chunker: Chunker, runs: RunStore, memory: Memory
) -> None:
    saved(runs, 3)
    index.index_store(database, runs, chunker)
    assert runs.totals(database_id="another").unindexed == 3
    assert [store.totals and store.totals.other_database for store in memory.status().run_stores] == [False]
    runs.mark_indexed([1], database_id="another")
    assert [store.totals and store.totals.other_database for store in memory.status().run_stores] == [True]
    assert index.index_store(database, runs, chunker).known == 3


def test_hostile_texts_are_indexed_and_found(database: Database, memory: Memory, runs: RunStore) -> None:
    texts = [
        "nul \x00 inside", "lone \ud800 surrogate", "emoji 🙂 party", "中文记忆 测试", "שלום עולם",
        "<b>tag</b> & entity", "x" * 50_000, " ".join(f"word{number}" for number in range(300_000)),
        "a\u202eb right to left",
    ]  # fmt: skip
    runs.save_many([Run(repo="acme/app", summary=text) for text in texts])
    done = index.index_store(database, runs, memory.chunker)
    assert (done.added, done.failed) == (len(texts), 0)
    assert any("emoji" in hit.content for hit in memory.search("party"))
    assert any("surrogate" in hit.content for hit in memory.search("surrogate"))


def test_ten_indexers_at_once_double_nothing(database: Database, chunker: Chunker, tmp_path: Path) -> None:
    saved(RunStore(tmp_path / "memory.db"), 300)

    def one_pass(_: int) -> int:
        with RunStore(tmp_path / "memory.db", busy_timeout=10) as runs:
            return index.index_store(database, runs, chunker).added

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(one_pass, range(10))) == 300
    assert memories_of(database) == 300


def test_the_sweep_finds_what_nobody_announced(memory: Memory, runs: RunStore, tmp_path: Path) -> None:
    saved(runs, 4)
    missing = tmp_path / "gone" / "memory.db"
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database" * 100)
    swept = repair.sweep(
        memory.database, [broken, runs.path], memory.chunker, home=tmp_path, judge_name="deterministic"
    )
    assert swept.indexed.added == 4
    assert swept.pending
    assert swept.unreachable == (broken,)
    assert not missing.exists()
    assert "sweep" in memory.status().heartbeats


def test_changed_text_of_a_source_replaces_its_chunks(database: Database, chunker: Chunker) -> None:
    message = {"repo": "a", "run_id": "1", "summary": "First text. " * 300}
    index.index_message(database, message, chunker)
    index.index_message(database, message | {"summary": "Second text."}, chunker)
    with database.transaction() as connection:
        assert connection.execute("SELECT content FROM chunks").fetchall() == [("Second text.",)]


def test_every_word_of_a_long_run_is_in_its_chunks(database: Database, chunker: Chunker) -> None:
    text = " ".join(f"fact{number}" for number in range(2000))
    index.index_message(database, {"repo": "a", "summary": text}, chunker)
    with database.transaction() as connection:
        chunks = [row[0] for row in connection.execute("SELECT content FROM chunks ORDER BY ordinal")]
    assert "".join(" ".join(chunks).split()) == "".join(text.split())
    assert max(map(chunker.count, chunks)) <= chunker.spec.max_tokens - 2


def test_a_vector_is_written_once_for_each_chunk(database: Database, chunker: Chunker, runs: RunStore) -> None:
    saved(runs, 600)
    index.index_store(database, runs, chunker)
    embedder = HashEmbedder(path=chunker.spec.path)
    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(lambda _: embed_pending(database, embedder, limit=100).embedded, range(12)))
    assert sum(totals) == 600
    with database.transaction() as connection:
        row = connection.execute("SELECT content, embedding FROM chunks LIMIT 1").fetchone()
    assert row is not None
    assert np.allclose(row[1].to_numpy(), embedder.encode([row[0]])[0], atol=1e-3)


def test_a_copied_store_that_goes_its_own_way_loses_nothing(
    database: Database, chunker: Chunker, tmp_path: Path
) -> None:
    original = RunStore(tmp_path / "one" / "memory.db", home=tmp_path / "one")
    original.save(Run(repo="a", summary="Before the copy."))
    original.close()
    (tmp_path / "two").mkdir()
    shutil.copyfile(original.path, tmp_path / "two" / "memory.db")
    copied = RunStore(tmp_path / "two" / "memory.db", home=tmp_path / "two")
    assert copied.store_id == original.store_id
    original.save(Run(repo="a", summary="The original went on."))
    copied.save(Run(repo="a", summary="The copy went another way."))
    for _ in range(2):
        for store in (original, copied):
            index.index_store(database, store, chunker, full=True)
    with database.transaction() as connection:
        found = sorted(row[0] for row in connection.execute("SELECT content FROM memories"))
    assert found == ["Before the copy.", "The copy went another way.", "The original went on."]


def test_two_databases_on_one_store_both_come_to_an_end(
    database: Database, empty_database_url: str, chunker: Chunker, runs: RunStore
) -> None:
    schema.migrate(empty_database_url, chunker.spec)
    saved(runs, 350)
    with Database(empty_database_url) as other, ThreadPoolExecutor(2) as pool:
        passes = [
            pool.submit(index.index_store, into, RunStore(runs.path, busy_timeout=10), chunker)
            for into in (database, other)
        ]
        for done in passes:
            assert done.result(timeout=60).added == 350
        assert memories_of(database) == memories_of(other) == 350


def test_a_run_that_its_store_took_only_later_is_one_memory(
    database: Database, chunker: Chunker, runs: RunStore
) -> None:
    for run_id in ("42", None):
        run = Run(repo="a", run_id=run_id, summary=f"Run {run_id}.", created_at=datetime(2026, 5, 1, tzinfo=UTC))
        assert index.index_message(database, run.to_message(), chunker).added == 1
        assert index.index_message(database, runs.save(run).to_message(), chunker).known == 1
    assert memories_of(database) == 2


def test_secrets_in_names_and_times_reach_no_row(database: Database, chunker: Chunker) -> None:
    token = "ghp_" + "c" * 36
    hostile: list[dict[str, object]] = [
        {"repo": "https://user:hunter2hunter2@host/r", "summary": "One.", "run_id": token},
        {"repo": "a", "summary": "Two.", "created_at": f"<private>{token}</private>"},
        {"repo": "a", "summary": 3, "run_id": token},
    ]
    for message in hostile:
        index.index_message(database, message, chunker)
    with database.transaction() as connection:
        rows = connection.execute("SELECT memories::text FROM memories UNION ALL SELECT d::text FROM dead_letters d")
        text = str(rows.fetchall())
    assert token not in text
    assert "hunter2" not in text


def test_what_postgres_refuses_is_buried_whatever_it_holds(database: Database, chunker: Chunker) -> None:
    for message in (
        {"repo": "a", "summary": "Not a number.", "loss": float("nan"), "gain": float("inf")},
        {"repo": "a", "summary": "Long name.", "run_id": "".join(f"{number:x}" for number in range(3000))},
        {"repo": "r" * 400, "summary": "A name that is too long."},
        {
            "repo": "a",
            "summary": "A path that is too long.",
            "id": 1,
            "store_id": "b" * 32,
            "store_path": "/" + "p" * 5000,
        },
    ):
        done = index.index_message(database, message, chunker)
        assert (done.added, done.failed) in {(1, 0), (0, 1)}


def test_a_book_does_not_hold_up_the_notes_that_come_after_it(database: Database, chunker: Chunker) -> None:
    index.index_message(database, {"repo": "a", "summary": "A very long report. " * 20_000}, chunker)
    index.index_message(database, {"repo": "a", "summary": "A short note."}, chunker)
    embed_pending(database, HashEmbedder(path=chunker.spec.path), limit=10)
    with database.transaction() as connection:
        row = connection.execute("SELECT embedding IS NOT NULL FROM chunks WHERE content = 'A short note.'").fetchone()
    assert row == (True,)
