"""What happened around a memory: the anchor is always inside the window, the order is that of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afterrun.client import Memory
from afterrun.errors import InputError, NotFoundError
from afterrun.store import Store

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def note(memory: Memory, number: int, *, day: int | None = None, project: str = "shop", **fields: Any) -> UUID:
    created = DAY + timedelta(days=number if day is None else day)
    return memory.remember(f"Note {number} of {project}.", project=project, created_at=created, **fields).id


def around(memory: Memory, anchor: UUID, **asked: Any) -> list[UUID]:
    return [one.id for one in memory.timeline(anchor, **asked).memories]


def test_the_anchor_stands_between_what_came_before_and_after_it(memory: Memory) -> None:
    notes = [note(memory, number) for number in range(10)]
    assert around(memory, notes[5], before=2, after=3) == notes[3:9]
    assert around(memory, notes[0], before=2, after=1) == notes[:2]
    assert around(memory, notes[9], before=1, after=4) == notes[8:]
    assert around(memory, notes[4], before=0, after=0) == [notes[4]]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    days=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    place=st.integers(0, 11),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
)
def test_any_window_is_a_piece_of_the_one_order_with_the_anchor_in_its_place(
    memory: Memory, days: list[int], place: int, before: int, after: int
) -> None:
    project = uuid4().hex
    notes = [note(memory, number, day=day, project=project) for number, day in enumerate(days)]
    anchor = notes[place % len(notes)]
    order = around(memory, notes[0], before=100, after=100)
    assert sorted(order) == sorted(notes)
    there = order.index(anchor)
    assert around(memory, anchor, before=before, after=after) == order[max(0, there - before) : there + after + 1]


def test_at_one_time_the_place_in_the_session_orders(memory: Memory) -> None:
    turns = [note(memory, number, day=0, session="s", session_ordinal=5 - number) for number in range(5)]
    assert around(memory, turns[2]) == turns[::-1]


def test_other_projects_collections_and_forgotten_memories_are_not_around(memory: Memory) -> None:
    first, second = note(memory, 1), note(memory, 3)
    note(memory, 2, project="bank")
    note(memory, 2, collection="docs")
    memory.forget(note(memory, 2))
    assert around(memory, first) == [first, second]


def test_within_a_session_nothing_else_is_around(memory: Memory) -> None:
    first, _, third = note(memory, 1, session="a"), note(memory, 2), note(memory, 3, session="a")
    assert around(memory, first, in_session=True) == [first, third]
    with pytest.raises(InputError, match="no session"):
        memory.timeline(note(memory, 4), in_session=True)


def test_a_superseded_anchor_leads_to_the_memory_that_took_its_place(memory: Memory) -> None:
    old, middle, new = (note(memory, number) for number in range(3))
    with memory.database.transaction() as connection:
        Store(connection).supersede([old], middle)
        Store(connection).supersede([middle], new)
    found = memory.timeline(old)
    assert (found.asked, found.anchor) == (old, new)
    assert [one.id for one in found.memories] == [new]


def test_an_unknown_forgotten_or_foreign_anchor_is_not_found(memory: Memory) -> None:
    with pytest.raises(NotFoundError, match="no memory has the id"):
        memory.timeline(uuid4())
    gone, foreign = note(memory, 1), note(memory, 2, project="bank")
    memory.forget(gone)
    with pytest.raises(NotFoundError, match="forgotten"):
        memory.timeline(gone)
    with pytest.raises(NotFoundError, match="no memory has the id"):
        memory.timeline(foreign, projects=["shop"])


@pytest.mark.parametrize("wrong", [{"before": -1}, {"after": 101}, {"before": True}, {"after": 1.5}])
def test_a_window_that_cannot_be_is_refused(memory: Memory, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="0 to 100"):
        memory.timeline(note(memory, 1), **wrong)


def test_each_side_of_a_timeline_is_read_from_the_index(memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute(
            "INSERT INTO memories (project, content, content_hash, created_at, search)"
            " SELECT 'big', 'n' || i, sha256(('n' || i)::bytea), now() - i * interval '1 minute', ''"
            " FROM generate_series(1, 20000) i"
        )
        row = connection.execute("SELECT id FROM memories WHERE content = 'n10000'").fetchone()
        connection.execute("ANALYZE memories")
    assert row is not None
    with memory.database.transaction() as connection:
        before = _rows_read(connection)
        assert len(Store(connection).timeline(row[0], before=5, after=5, in_session=False)) == 11
        assert _rows_read(connection) - before < 1000


def _rows_read(connection: Any) -> int:
    query = (
        "SELECT pg_stat_get_xact_tuples_returned('memories'::regclass)"
        " + pg_stat_get_xact_tuples_fetched('memories'::regclass)"
    )
    return int(connection.execute(query).fetchone()[0])
