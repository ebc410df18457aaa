"""Whatever is done to a store in whatever order: its lineage closes, nothing forgotten comes back, nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from afterrun import consolidate, lineage, store
from afterrun.client import Memory
from afterrun.errors import ConflictError
from afterrun.judge import Similarity
from afterrun.models import Member, NewMemory, Verdict

# Numbers, not ids: what is drawn must not hang on what the database holds.
PICK = st.integers(0, 11)
PICKS = st.lists(PICK, min_size=2, max_size=4)
TEXTS = [
    "We use Postgres 17.",
    "We use Postgres 17 here.",
    "Here we use Postgres.",
    "The queue is Valkey.",
    "Queue: Valkey.",
]


class Dice:
    """A judge that merges, supersedes or relates, as it is told."""

    name = "dice"
    settles = True

    def __init__(self) -> None:
        self.verdict = "merge"

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        oldest_first = sorted(members, key=lambda member: (member.created_at, member.id))
        *older, newest = oldest_first
        if self.verdict == "merge":
            return Verdict(same=tuple(member.id for member in members), reason="scripted", judge=self.name)
        if self.verdict == "supersede" and all(member.created_at < newest.created_at for member in older):
            replaced = {member.id: newest.id for member in older}
            return Verdict(superseded=replaced, reason="scripted", judge=self.name)
        return Verdict(reason="scripted", judge=self.name)

    def most_tokens(self, members: Sequence[Member]) -> int:
        return 0


class StoreMachine(RuleBasedStateMachine):
    """The rules, on one memory whose tables are emptied before each run."""

    memory: ClassVar[Memory]
    dice: ClassVar[Dice]

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: set[UUID] = set()
        with self.memory.database.transaction() as connection:
            connection.execute("TRUNCATE memories, chunks, consolidations, dead_letters")

    def ids(self, where: str) -> list[UUID]:
        with self.memory.database.transaction() as connection:
            query = f"SELECT id FROM memories WHERE {where} ORDER BY created_at, id"
            return [row[0] for row in connection.execute(query.encode())]

    def some_active(self, picks: list[int]) -> set[UUID]:
        active = self.ids("is_active")
        return {active[pick % len(active)] for pick in picks} if active else set()

    def clusters(self, state: str) -> list[UUID]:
        with self.memory.database.transaction() as connection:
            query = "SELECT id FROM consolidations WHERE state = %s ORDER BY created_at, id"
            return [row[0] for row in connection.execute(query, [state])]

    @rule(text=st.sampled_from(TEXTS))
    def remember(self, text: str) -> None:
        self.memory.remember(text, project="shop")

    @rule(key=st.sampled_from("abc"), text=st.sampled_from(TEXTS))
    def index(self, key: str, text: str) -> None:
        new = NewMemory(content=text, project="shop", source_key=f"source:{key}")
        with self.memory.database.transaction() as connection:
            lineage.write_memories(connection, [new], self.memory.chunker)

    @rule(picks=PICKS, verdict=st.sampled_from(["merge", "supersede", "relate"]))
    def consolidate(self, picks: list[int], verdict: str) -> None:
        if len(chosen := self.some_active(picks)) > 1:
            self.dice.verdict = verdict
            self.memory.consolidate(*chosen)

    @rule(pick=PICK)
    def reject(self, pick: int) -> None:
        if waiting := self.clusters("waiting"):
            self.memory.reject(waiting[pick % len(waiting)])

    @rule(picks=PICKS)
    def propose(self, picks: list[int]) -> None:
        if len(chosen := self.some_active(picks)) > 1:
            with self.memory.database.transaction() as connection:
                store.Store(connection).propose(sorted(chosen), collection="memory", project="shop")

    @rule(pick=PICK, newest_wins=st.booleans())
    def decide(self, pick: int, newest_wins: bool) -> None:
        if previews := self.memory.previews():
            self.memory.accept(previews[pick % len(previews)], newest_wins=newest_wins)

    @rule(pick=PICK)
    def undo(self, pick: int) -> None:
        if merged := self.clusters("merged"):
            with contextlib.suppress(ConflictError):
                self.memory.undo(merged[pick % len(merged)])

    @rule()
    def undo_all(self) -> None:
        self.memory.undo_since(datetime(2000, 1, 1, tzinfo=UTC))

    @rule(pick=PICK)
    def forget(self, pick: int) -> None:
        if known := self.ids("NOT archived"):
            self.forgotten.update(self.memory.forget(known[pick % len(known)]))

    @rule()
    def sweep(self) -> None:
        consolidate.drop_stale(self.memory.database)

    @invariant()
    def nothing_forgotten_is_active(self) -> None:
        assert not self.forgotten.intersection(self.ids("is_active"))

    @invariant()
    def every_note_is_active_once(self) -> None:
        with self.memory.database.transaction() as connection:
            doubled = connection.execute(
                "SELECT content_hash FROM memories WHERE is_active AND source_key IS NULL"
                " GROUP BY content_hash HAVING count(*) > 1"
            ).fetchall()
        assert doubled == []

    @invariant()
    def lineage_ends_in_a_memory_that_is_recalled_or_was_forgotten(self) -> None:
        with self.memory.database.transaction() as connection:
            rows: dict[UUID, Any] = {
                row[0]: row[1:]
                for row in connection.execute("SELECT id, superseded_by, is_active, archived FROM memories")
            }
            undone = {
                row[0] for row in connection.execute("SELECT canonical FROM consolidations WHERE state = 'undone'")
            }
        for start, (by, active, archived) in rows.items():
            assert active or archived or by is not None, "lost: neither recalled nor replaced nor forgotten"
            end, steps = start, 0
            while rows[end][0] is not None:
                end, steps = rows[end][0], steps + 1
                assert steps <= len(rows), "the lineage is a circle"
            is_end_active, was_forgotten = rows[end][1], rows[end][2]
            assert is_end_active or was_forgotten
            # Not the tombstone of a merge that was taken back.
            assert end in self.forgotten or end not in undone or end == start

    @invariant()
    def chunks_are_as_active_as_their_memory(self) -> None:
        with self.memory.database.transaction() as connection:
            torn = connection.execute(
                "SELECT count(*) FROM chunks c JOIN memories m ON m.id = memory_id WHERE c.is_active <> m.is_active"
            ).fetchone()
        assert torn == (0,)


@pytest.mark.slow
def test_a_store_stays_whole_whatever_is_done_in_whatever_order(memory: Memory) -> None:
    dice = Dice()
    with Memory(settings=memory.settings, embedder=memory.embedder, judge=dice) as judged:
        run_state_machine_as_test(
            type("Bound", (StoreMachine,), {"memory": judged, "dice": dice}),
            settings=settings(
                max_examples=25,
                stateful_step_count=30,
                deadline=None,
                database=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
