"""What is said again: notes, recalled text, runs, and what was forgotten."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from afterrun import index, repair
from afterrun.block import CUT, entries
from afterrun.client import Memory
from afterrun.errors import ConflictError
from afterrun.models import Member, MemoryRecord, Run, Verdict
from afterrun.runs import RunStore
from afterrun.settings import Settings
from afterrun.vectors import embed_pending

NOW = datetime.now(UTC)
FACT = "The nightly deploy of the billing service starts at 02:30 UTC."


def active(memory: Memory) -> list[MemoryRecord]:
    with memory.database.transaction() as connection:
        ids = [row[0] for row in connection.execute("SELECT id FROM memories WHERE is_active ORDER BY id")]
    return memory.get(*ids)


def tidy(memory: Memory) -> None:
    """Embed what waits and consolidate until nothing changes, as the workers do."""
    for _ in range(10):
        while embed_pending(memory.database, memory.embedder).more:
            pass
        memory.find_clusters()
        outcomes = [memory.consolidate(*members).state for members in memory.waiting_clusters()]
        if "merged" not in outcomes:
            return
    raise AssertionError("consolidation does not come to an end")


def indexed(memory: Memory, run_id: str, summary: str, day: int = 0) -> dict[str, object]:
    message = Run(repo="a", run_id=run_id, summary=summary, created_at=NOW - timedelta(days=day)).to_message()
    index.index_message(memory.database, message, memory.chunker)
    return message


def merged_pair(memory: Memory) -> tuple[list[UUID], UUID]:
    """Two notes that the rules merge, and what they became."""
    ids = [memory.remember(text, project="a").id for text in (FACT, f"{FACT[:-1]}, by cron.")]
    tidy(memory)
    (canonical,) = active(memory)
    assert {record.superseded_by for record in memory.get(*ids)} == {canonical.id}
    return ids, canonical.id


def test_an_exact_repeat_counts_and_dates_the_note_that_is_there(memory: Memory) -> None:
    first = memory.remember(FACT, project="a", importance=0.4)
    (before,) = memory.get(first.id)
    again = memory.remember(f"  {FACT}\n", project="a", importance=0.9)
    (after,) = memory.get(first.id)
    assert (again.id, again.created) == (first.id, False)
    assert (before.seen, after.seen) == (1, 2)
    assert after.importance == pytest.approx(0.9)
    assert after.seen_at > before.seen_at
    assert memory.remember(FACT, project="b").created


def test_text_recalled_and_remembered_again_adds_nothing_however_often(memory: Memory) -> None:
    memory.remember(FACT, project="a")
    memory.remember("Refunds above 500 EUR need a second approval.\nAsk finance.", project="a")
    indexed(memory, "1", "Added retries to the deploy of the billing service.")
    tidy(memory)
    before = {record.id: record.content for record in active(memory)}
    for _ in range(10):
        block = memory.recall("deploy of the billing service", project="a").text
        assert not memory.remember(block, project="a").created
        for line in (block.splitlines()[0], *(record.content for record in active(memory))):
            assert not memory.remember(line, project="a").created
        tidy(memory)
    assert {record.id: record.content for record in active(memory)} == before
    assert all(record.seen > 10 for record in active(memory))


def test_a_snippet_that_recall_has_cut_is_the_memory_that_it_begins(memory: Memory) -> None:
    long = " ".join(f"Step {number} of the 100% migration_plan moves table {number}." for number in range(300))
    written = memory.remember(long, project="a")
    memory.remember(f"{long} And more.", project="b")
    (hit,) = memory.recall("migration plan", project="a", only_project=True, token_budget=60, min_results=1).hits
    assert hit.truncated
    assert hit.content.endswith(CUT)
    again = memory.remember(hit.content, project="a")
    assert (again.id, again.created) == (written.id, False)
    assert memory.remember("Step 0 of the 100x migration_plan moves the table" + CUT, project="a").created
    assert memory.remember("Step 0" + CUT, project="a").created


def test_only_what_is_new_in_a_pasted_block_becomes_a_note(memory: Memory) -> None:
    memory.remember(FACT, project="a")
    block = memory.recall("deploy", project="a").text
    written = memory.remember(f"{block}\nIt takes 20 minutes.\nNobody watches it.", project="a")
    assert written.created
    assert memory.get(written.id)[0].content == "It takes 20 minutes.\nNobody watches it."
    foreign = memory.remember("[1] (other, fact, 2026-01-31) The VPN needs a token.", project="a")
    assert memory.get(foreign.id)[0].content == "The VPN needs a token."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain text.", None),
        ("See [1] (a, fact, 2026-01-31) below.", None),
        ("[1] (a, b, fact, 2026-01-31) One.\nStill one.\n[2] (c, fact, 2026-01-31) Two.", ["One.\nStill one.", "Two."]),
        ("\n  [12] (a, fact, 2026-01-31) One.", ["One."]),
        ("[1] (a, fact, yesterday) One.", None),
    ],
    ids=["plain", "a reference", "two entries", "indented", "no day"],
)
def test_a_block_is_read_back(text: str, expected: Sequence[str] | None) -> None:
    assert entries(text) == expected


def test_an_original_that_is_said_again_counts_for_what_it_was_merged_into(memory: Memory) -> None:
    ids, canonical = merged_pair(memory)
    seen = memory.get(canonical)[0].seen
    assert seen == 2
    for original in memory.get(*ids):
        assert memory.remember(original.content, project="a").id == canonical
    assert memory.get(canonical)[0].seen == 4
    assert len(active(memory)) == 1


def test_a_truth_that_a_newer_one_replaced_can_be_said_anew(memory: Memory) -> None:
    older, newer = (
        memory.remember(f"The port is {port}.", created_at=NOW - timedelta(days=days)).id
        for port, days in ((5432, 2), (5433, 1))
    )

    class NewestWins:
        name, settles = "newest", True

        def judge(self, members: Sequence[Member], similarity: object = None) -> Verdict:
            return Verdict(superseded={older: newer}, reason="it moved")

        def most_tokens(self, members: Sequence[Member]) -> int:
            return 0

    with Memory(settings=memory.settings, embedder=memory.embedder, judge=NewestWins()) as judged:
        assert judged.consolidate(older, newer).state == "merged"
    written = memory.remember("The port is 5432.")
    assert written.created
    assert written.id != older


def test_a_merged_fact_that_is_recalled_remembered_and_merged_again_keeps_its_length(memory: Memory) -> None:
    _, canonical = merged_pair(memory)
    text = memory.get(canonical)[0].content
    for number in range(6):
        indexed(memory, str(number), text)
        memory.remember(memory.recall("nightly deploy", project="a").text, project="a")
        memory.remember(f"{FACT[:-1]} by cron", project="a")
        tidy(memory)
        facts = [record for record in active(memory) if record.source_type == "fact"]
        assert len(facts) <= 2
        assert max(len(record.content) for record in active(memory)) <= len(text)


def test_runs_that_repeat_under_other_keys_are_superseded_with_lineage(memory: Memory) -> None:
    for number in range(5):
        indexed(memory, str(number), "Bumped dependencies. All tests pass.", day=5 - number)
    assert len(active(memory)) == 5
    tidy(memory)
    (canonical,) = active(memory)
    assert canonical.content == "Bumped dependencies. All tests pass."
    assert canonical.seen == 5
    assert len(memory.history(canonical.id).originals) == 5
    indexed(memory, "next", "Bumped dependencies. All tests pass.")
    tidy(memory)
    (newest,) = active(memory)
    assert newest.seen == 6
    assert newest.metadata["generation"] == canonical.metadata["generation"]


def test_a_forgotten_run_stays_forgotten_whatever_comes_late(memory: Memory, settings: Settings) -> None:
    with RunStore(settings.run_store, home=settings.home) as runs:
        message = runs.save(Run(repo="a", summary=FACT)).to_message()
        index.index_message(memory.database, message, memory.chunker)
        (run,) = active(memory)
        note = memory.remember(f"{FACT[:-1]}, by cron.", project="a").id
        memory.forget(run.id)
        assert index.index_message(memory.database, message, memory.chunker).added == 0
        assert index.index_store(memory.database, runs, memory.chunker, full=True).added == 0
        repair.sweep(memory.database, [runs.path], memory.chunker, home=settings.home, judge_name=memory.judge.name)
    assert memory.consolidate(run.id, note).state == "skipped"
    tidy(memory)
    assert [record.id for record in active(memory)] == [note]
    again = memory.remember(FACT, project="a")
    assert again.created
    assert again.id != run.id


def test_a_forgotten_merge_and_a_forgotten_original_are_not_brought_back_by_undo(memory: Memory) -> None:
    ids, canonical = merged_pair(memory)
    (merge,) = memory.history(canonical).consolidations
    memory.forget(ids[0])
    memory.forget(canonical)
    with pytest.raises(ConflictError, match="forgotten"):
        memory.undo(merge.id)
    assert memory.undo_since(NOW) == []
    assert active(memory) == []
    assert memory.remember(FACT, project="a").created


def test_an_original_forgotten_after_the_merge_stays_forgotten_when_it_is_undone(memory: Memory) -> None:
    ids, canonical = merged_pair(memory)
    (merge,) = memory.history(canonical).consolidations
    memory.forget(ids[0])
    memory.undo(merge.id)
    assert [record.id for record in active(memory)] == [ids[1]]


def test_fifty_writers_in_threads_reinforce_a_recalled_memory(memory: Memory) -> None:
    _, canonical = merged_pair(memory)
    block = memory.recall("nightly deploy", project="a").text
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda number: memory.remember(block if number % 2 else FACT, project="a"), range(50)))
    assert {result.id for result in results} == {canonical}
    assert memory.get(canonical)[0].seen == 52
    assert len(active(memory)) == 1


REMEMBER_TEN_TIMES = """
import sys
from afterrun.client import Memory
from afterrun.testing import HashEmbedder

text, path = sys.argv[1:]
with Memory(embedder=HashEmbedder(path=path)) as memory:
    print(sum(memory.remember(text, project="a").created for _ in range(10)))
"""


@pytest.mark.slow
def test_fifty_writes_of_processes_leave_one_row_with_the_right_count(memory: Memory, tmp_path: Path) -> None:
    assert memory.settings.database_url
    environ = {**os.environ, "AFTERRUN_HOME": str(tmp_path), "DATABASE_URL": memory.settings.database_url}
    command = [sys.executable, "-c", REMEMBER_TEN_TIMES, FACT, memory.chunker.spec.path]
    writers = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    created = [int(writer.communicate(timeout=120)[0]) for writer in writers]
    assert sorted(created) == [0, 0, 0, 0, 1]
    (record,) = active(memory)
    assert record.seen == 50
