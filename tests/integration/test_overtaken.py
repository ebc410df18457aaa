"""A verdict that comes too late: the cluster was decided, its lease ran out, or its members are others meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from uuid import UUID

import pytest

from afterrun import care, consolidate, vectors
from afterrun.client import Memory
from afterrun.db import Connection
from afterrun.errors import ConflictError, LanguageModelError
from afterrun.judge import Similarity
from afterrun.models import Member, Remembered, Verdict
from afterrun.store import Store

TEXTS = ("The API listens on port 5432.", "The API listens on port 5432, behind nginx.", "API: port 5432, nginx.")


class Slow:
    """Says that all are the same, after something else has happened."""

    name = "slow"
    settles = True

    def __init__(self, meanwhile: Callable[[], object], *, fails: bool = False) -> None:
        self._meanwhile = meanwhile
        self._fails = fails

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        self._meanwhile()
        if self._fails:
            raise LanguageModelError("no usable answer")
        return Verdict(same=tuple(member.id for member in members), reason="scripted", judge=self.name)

    def most_tokens(self, members: Sequence[Member]) -> int:
        return 0


def judged_by(memory: Memory, judge: Slow) -> Memory:
    return Memory(settings=memory.settings, embedder=memory.embedder, judge=judge)


def remembered(memory: Memory, *texts: str) -> list[UUID]:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        memory.remember(text, project="shop", created_at=begin + timedelta(days=day)).id
        for day, text in enumerate(texts or TEXTS[:2])
    ]


def end_leases(memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute("UPDATE consolidations SET leased_until = now() - interval '1 s'")


def state(memory: Memory) -> str:
    with memory.database.transaction() as connection:
        row = connection.execute("SELECT state FROM consolidations").fetchone()
        return str(row[0]) if row else ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_outlives_its_lease_does_not_overwrite_what_another_one_merged(
    memory: Memory, fails: bool
) -> None:
    ids = remembered(memory)

    def another_worker_is_faster() -> None:
        end_leases(memory)
        with judged_by(memory, Slow(lambda: None)) as faster:
            assert faster.consolidate(*ids).state == "merged"

    with judged_by(memory, Slow(another_worker_is_faster, fails=fails)) as slow:
        assert slow.consolidate(*ids).state == "skipped"
        (merge,) = slow.history(ids[0]).consolidations
        assert merge.state == "merged"
        slow.undo(merge.id)
        assert all(one.is_active for one in slow.get(*ids))


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_person_rejects_during_the_call_is_not_merged(memory: Memory, fails: bool) -> None:
    ids = remembered(memory)

    def a_person_says_no() -> None:
        (cluster,) = memory.history(ids[0]).consolidations
        memory.reject(cluster.id)

    with judged_by(memory, Slow(a_person_says_no, fails=fails)) as judged:
        assert judged.consolidate(*ids).state == "skipped"
        assert state(memory) == "rejected"
        assert all(one.is_active for one in judged.get(*ids))


def embed(memory: Memory) -> None:
    while vectors.embed_pending(memory.database, memory.embedder, limit=100, lease=60, max_attempts=3).embedded:
        pass


@pytest.mark.parametrize("when", ["before", "during", "unjudged"])
def test_the_members_that_are_left_of_a_broken_cluster_are_proposed_anew(memory: Memory, when: str) -> None:
    ids = remembered(memory, *(f"We deploy the shop with Helm from main {word}" for word in "abcd"))
    embed(memory)
    (found,) = memory.find_clusters()
    assert set(found) == set(ids)

    def forget_one() -> None:
        memory.forget(ids[3])

    if when == "unjudged":
        forget_one()
        assert consolidate.drop_stale(memory.database) == 1
        assert consolidate.drop_stale(memory.database) == 0
    else:
        if when == "before":
            forget_one()
        judge = Slow(forget_one if when == "during" else lambda: None)
        with judged_by(memory, judge) as judged:
            assert judged.consolidate(*found).state == ("failed" if when == "during" else "skipped")
    assert memory.find_clusters() == [tuple(sorted(ids[:3]))]
    assert memory.find_clusters() == []


def test_a_merge_below_a_forgotten_one_does_not_keep_the_others_from_being_undone(memory: Memory) -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    with judged_by(memory, Slow(lambda: None)) as judged:
        first = judged.consolidate(*remembered(memory, *TEXTS[:2])).canonical
        third = remembered(memory, TEXTS[2])
        assert first
        top = judged.consolidate(first, *third).canonical
        assert top
        others = remembered(memory, "The queue is Valkey.", "Our queue is Valkey.")
        judged.consolidate(*others)
        judged.forget(top)
        undone = judged.undo_since(before)
        assert [set(cluster.members) for cluster in undone] == [set(others)]
        assert all(one.is_active for one in judged.get(*others))


def test_a_merge_whose_memory_has_replaced_another_one_since_is_undone_after_that(memory: Memory) -> None:
    with judged_by(memory, Slow(lambda: None)) as judged:
        older = judged.remember("The API listens on port 80.", project="shop", created_at="2025-01-01").id
        merged = judged.consolidate(*remembered(memory))
        assert merged.canonical
        assert merged.consolidation
        with memory.database.transaction() as connection:
            Store(connection).propose([older, merged.canonical], collection="memory", project="shop")
        (shown,) = judged.previews()
        replaced = judged.accept(shown, newest_wins=True)
        assert judged.get(older)[0].superseded_by == merged.canonical
        with pytest.raises(ConflictError, match="undo that merge first"):
            judged.undo(merged.consolidation)
        assert replaced.consolidation
        judged.undo(replaced.consolidation)
        judged.undo(merged.consolidation)
        assert judged.get(older)[0].is_active


def test_an_undone_note_that_was_written_anew_points_to_the_new_one(memory: Memory) -> None:
    with judged_by(memory, Slow(lambda: None)) as judged:
        ids = remembered(memory)
        merged = judged.consolidate(*ids)
        assert merged.consolidation
        with memory.database.transaction() as connection:
            # As a writer leaves it who found the note unmerged and lost the race.
            twin = connection.execute(
                "INSERT INTO memories (project, content, content_hash, search)"
                " SELECT project, content, content_hash, search FROM memories WHERE id = %s RETURNING id",
                [ids[0]],
            ).fetchone()
        judged.undo(merged.consolidation)
        by_id = {one.id: one for one in judged.get(*ids)}
        assert twin
        assert by_id[ids[0]].superseded_by == twin[0]
        assert by_id[ids[1]].is_active


def test_a_note_that_is_said_again_while_it_is_merged_is_counted_at_the_merged_one(memory: Memory) -> None:
    ids = remembered(memory, "We use Postgres 17.", "we use postgres 17")
    writers = ThreadPoolExecutor(max_workers=8)

    def said_again() -> None:
        with memory.database.transaction() as connection:
            # The writers wait for the rows that are about to be merged.
            connection.execute("SELECT FROM memories WHERE id = ANY (%s) FOR UPDATE", [ids])
            waiting.extend(writers.submit(memory.remember, "We use Postgres 17.", project="shop") for _ in range(2))
            until(lambda: blocked(memory) > 0)
            connection.execute("UPDATE memories SET is_active = false, archived = true WHERE id = ANY (%s)", [ids])
            connection.execute(
                "INSERT INTO memories (project, content, content_hash, search)"
                " SELECT project, content, content_hash, search FROM memories WHERE id = %s",
                [ids[0]],
            )

    waiting: list[Future[Remembered]] = []
    said_again()
    written = {one.result().id for one in waiting}
    writers.shutdown()
    assert len(written) == 1
    (kept,) = memory.get(*written)
    assert kept.is_active
    assert kept.seen == 3


def test_a_transaction_that_a_deadlock_ended_is_run_again(memory: Memory) -> None:
    first, second = remembered(memory)
    lock = "SELECT FROM memories WHERE id = %s FOR UPDATE"
    meet = Barrier(2, timeout=30)
    tries: list[UUID] = []

    def lock_both(one: UUID, other: UUID) -> UUID:
        def work(connection: Connection) -> UUID:
            tries.append(one)
            connection.execute(lock, [one])
            if tries.count(one) == 1:
                meet.wait()
            connection.execute(lock, [other])
            return one

        return memory.database.settled(work)

    with ThreadPoolExecutor(max_workers=2) as both:
        done = list(both.map(lock_both, (first, second), (second, first)))
    assert done == [first, second]
    assert len(tries) >= 3


def blocked(memory: Memory) -> int:
    with memory.database.transaction() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
    return int(row[0]) if row else 0


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def test_the_history_of_a_long_chain_and_of_a_circle_ends(memory: Memory) -> None:
    ids = remembered(memory, *(f"The port is {number}." for number in range(120)))
    with memory.database.transaction() as connection:
        connection.execute(
            "UPDATE memories SET is_active = false, superseded_by = following.id FROM unnest(%s::uuid[], %s::uuid[])"
            " AS following (old, id) WHERE memories.id = following.old",
            [ids[:-1], ids[1:]],
        )
    lineage = memory.history(ids[-1])
    levels = 0
    while lineage.originals:
        (lineage,) = lineage.originals
        levels += 1
    assert (levels, lineage.more) == (care.MOST_LEVELS, 1)
    assert len(memory.history(ids[0]).successors) == 119
    with memory.database.transaction() as connection:
        query = "UPDATE memories SET is_active = false, superseded_by = %s WHERE id = %s"
        connection.execute(query, [ids[-2], ids[-1]])
    assert [one.memory.id for one in memory.history(ids[-1]).successors] == [ids[-2], ids[-1]]
