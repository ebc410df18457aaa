"""The library as a host program uses it: from threads, from asyncio, after a fork, without a broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from afterrun.client import AsyncMemory, Memory
from afterrun.errors import InputError, NotFoundError, NotRunningError
from afterrun.queue import EMBED_QUEUE
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending


def test_the_public_names_load_lazily() -> None:
    heavy = "psycopg torch anthropic celery numpy openvino"
    check = f"import sys; from afterrun import finish; sys.exit(bool(set('{heavy}'.split()) & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_remember_tells_the_workers_and_a_broker_that_is_down_changes_nothing(memory: Memory) -> None:
    assert memory.remember("With a broker.").created
    assert memory.status().queues is not None
    assert (memory.status().queues or {})[EMBED_QUEUE] >= 1
    settings = replace(memory.settings, redis_url="redis://127.0.0.1:1/0")
    with Memory(settings=settings, embedder=memory.embedder) as without:
        assert without.remember("Without a broker.").created
        assert without.status().queues is None
        assert "redis" in str(without.status().broker_error)
    with Memory(settings=replace(settings, redis_url=None), embedder=memory.embedder) as none:
        assert none.remember("With none.").created


def test_waiting_for_the_vector_is_bounded_and_says_what_came_of_it(memory: Memory) -> None:
    assert not memory.remember("Nobody embeds this.", wait="embedded", timeout=0.1).embedded
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(memory.remember, "Somebody embeds this.", wait="embedded", timeout=30)
        while not waiting.done():
            embed_pending(memory.database, memory.embedder)
        assert waiting.result().embedded


def test_asyncio_has_the_same_methods(memory: Memory) -> None:
    async def many() -> int:
        async with AsyncMemory(memory, threads=4) as asynchronous:
            await asyncio.gather(*(asynchronous.remember(f"Note {number}.") for number in range(40)))
            recall = await asynchronous.recall("note", min_results=3)
            assert len(recall.hits) >= 3
            return (await asynchronous.status()).memories.active

    assert asyncio.run(many()) == 40


def test_many_threads_share_few_connections(memory: Memory) -> None:
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: memory.remember(f"Note {number}."), range(300)))
    with memory.database.transaction() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'afterrun'"
        ).fetchone()
    assert row is not None
    assert row[0] <= memory.settings.pool_size


def test_a_question_asked_again_is_not_embedded_again(memory: Memory) -> None:
    asked: list[str] = []

    def note(text: str) -> bool:
        asked.append(text)
        return False

    embedder = HashEmbedder(path=memory.chunker.spec.path, fail_on=note)
    with Memory(settings=memory.settings, embedder=embedder) as counting:
        for question in ("which port?", "which port?", "which host?", " which port? "):
            counting.recall(question)
            counting.search(question)
    assert asked == ["which port?", "which host?"]


def test_a_forked_child_opens_its_own_connections(memory: Memory) -> None:
    memory.remember("Before the fork.")
    child = os.fork()
    if child == 0:
        try:
            ok = memory.remember("In the child.").created and len(memory.search("fork", min_results=0)) >= 1
        except BaseException:  # noqa: BLE001 - the child must not run the rest of the test session
            ok = False
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.remember("After the fork.").created
    assert memory.status().memories.active == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"content": ""}, "nothing to remember"),
        ({"content": "  \x00 "}, "nothing to remember"),
        ({"content": "<private>x</private>"}, "nothing to remember"),
        ({"content": "x", "collection": "books"}, "books"),
        ({"content": "x", "importance": 2.0}, "0 to 1"),
        ({"content": "x", "project": " "}, "project"),
        ({"content": "x", "created_at": "yesterday"}, "ISO 8601"),
        ({"content": "x" * 5_000_001}, "split it"),
    ],
)
def test_bad_input_says_what_to_do_and_writes_nothing(memory: Memory, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory.remember(**fields)
    assert memory.status().memories.active == 0


def test_unknown_and_malformed_ids_are_told_apart(memory: Memory) -> None:
    with pytest.raises(NotFoundError):
        memory.get("0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11")
    with pytest.raises(InputError, match="UUID"):
        memory.forget("17")


def test_naive_times_are_read_as_utc(memory: Memory) -> None:
    note = memory.remember("A naive time.", created_at=datetime(2026, 1, 2, 3))  # noqa: DTZ001 - that is the point
    assert memory.get(note.id)[0].created_at == datetime(2026, 1, 2, 3, tzinfo=UTC)


def test_without_a_database_the_error_says_what_to_run(settings: Settings) -> None:
    with pytest.raises(NotRunningError, match="afterrun up"):
        Memory(settings=replace(settings, database_url=None))


def test_what_is_remembered_is_redacted(memory: Memory) -> None:
    note = memory.remember(
        "The key sk-ant-api03-" + "b" * 80 + " leaked.", metadata={"log": "password=hunter2hunter2", "n": 1}
    )
    (stored,) = memory.get(note.id)
    assert "bbbb" not in stored.content
    assert "hunter2" not in str(stored.metadata)
    assert stored.metadata["n"] == 1
