"""`Memory` and `AsyncMemory` in a host program: from many threads, from asyncio, in forked and in spawned processes."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_type
from uuid import UUID

import pytest

import afterrun
from afterrun.chunking import Chunker
from afterrun.client import AsyncMemory, Memory
from afterrun.db import connect
from afterrun.embed import Embedder
from afterrun.models import Hit, Recall, Remembered
from afterrun.settings import Settings

CALLS: Final = 1_000
FOR_ADAPTERS: Final = {"nudge"}
"""Public for commands and routes; no verb of a memory."""
SPAWNING: Final = """
import multiprocessing, sys
from pathlib import Path
from afterrun import Memory
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder

def write(number):
    home = Path(sys.argv[2])
    settings = Settings(home=home, run_store=home / "memory.db", database_url=sys.argv[1])
    with Memory(settings=settings, embedder=HashEmbedder(path=sys.argv[3])) as memory:
        return memory.remember(f"From process {number}.").created

if __name__ == "__main__":
    assert write(0)
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        assert all(processes.map(write, range(1, 4)))
"""
CONNECTIONS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'afterrun'"
    " AND pid <> pg_backend_pid()"
)


@contextmanager
def most_connections(memory: Memory) -> Iterator[list[int]]:
    """How many connections the block had open at most, looked at again and again while it runs."""
    most = [0]
    done = threading.Event()

    def watch() -> None:
        with connect(memory.database.url) as connection:
            while not done.is_set():
                row = connection.execute(CONNECTIONS).fetchone()
                most[0] = max(most[0], int(row[0]) if row else 0)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        done.set()
        watching.join()


def exit_code_of_fork(work: Callable[[], bool]) -> int:
    """Run `work` in a forked child, which has a minute for it: 0 where it gave True."""
    child = os.fork()
    if child == 0:
        threading.Timer(60, os._exit, [3]).start()
        try:
            code = 0 if work() else 1
        except BaseException:  # noqa: BLE001 - the child must not run the rest of the test session
            code = 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_package_exports_its_names_lazily() -> None:
    assert {"AsyncMemory", "Memory", "RunStore", "finish"} <= set(afterrun.__all__)
    assert set(afterrun.__all__) <= set(dir(afterrun))
    check = (
        "import sys, afterrun; assert not {'psycopg', 'celery', 'torch', 'afterrun.client'} & sys.modules.keys()\n"
        "from afterrun import AsyncMemory, Memory, RunStore, finish\n"
        "assert Memory.__module__ == 'afterrun.client.memory' and callable(finish)\n"
        "assert not {'torch', 'openvino', 'celery', 'anthropic'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_asyncio_has_every_method_with_the_same_words() -> None:
    of_memory, of_asyncio = (
        {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        for kind in (Memory, AsyncMemory)
    )
    assert of_memory.keys() - FOR_ADAPTERS == of_asyncio.keys()
    for name, method in of_asyncio.items():
        assert inspect.iscoroutinefunction(method)
        if name != "close":
            assert inspect.signature(method) == inspect.signature(of_memory[name])
            assert method.__doc__ == of_memory[name].__doc__


async def types_are_those_of_the_originals(memory: AsyncMemory) -> None:
    """Never run: the type checker reads it."""
    assert_type(await memory.remember("a", project="shop"), Remembered)
    assert_type(await memory.recall("a", min_results=3), Recall)
    assert_type(await memory.search("a"), list[Hit])
    assert_type(await memory.forget("id"), list[UUID])
    async with memory as same:
        assert_type(same, AsyncMemory)


@pytest.mark.slow
def test_a_wrong_call_of_either_is_a_type_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from afterrun import AsyncMemory, Memory\n"
        "async def main(a: AsyncMemory, m: Memory) -> None:\n"
        "    await a.remember(content=1)\n"
        "    await a.recall('q', nonsense=True)\n"
        "    m.remember()\n"
        "    right: str = (await a.remember('x')).project\n"
        "    fine = (await a.remember('x', project='shop')).id\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        capture_output=True, text=True, cwd=tmp_path, timeout=250,
    )  # fmt: skip
    assert sorted({line.split(":")[1] for line in checked.stdout.splitlines() if ": error:" in line}) == list("3456")


def test_a_thousand_calls_from_threads_share_the_pool(memory: Memory) -> None:
    with most_connections(memory) as most, ThreadPoolExecutor(64) as threads:
        written = list(threads.map(lambda number: memory.remember(f"Note {number}."), range(CALLS)))
    assert all(one.created for one in written)
    assert 1 <= most[0] <= memory.settings.pool_size


def test_a_thousand_calls_from_asyncio_share_the_pool(memory: Memory) -> None:
    async def work() -> list[Remembered]:
        async with AsyncMemory(memory) as asynchronous:
            return await asyncio.gather(*(asynchronous.remember(f"Note {number}.") for number in range(CALLS)))

    with most_connections(memory) as most:
        written = asyncio.run(work())
    assert all(one.created for one in written)
    assert 1 <= most[0] <= memory.settings.pool_size


def test_a_cancelled_task_leaves_no_connection_behind(memory: Memory) -> None:
    async def work() -> int:
        async with AsyncMemory(memory, threads=16) as asynchronous:
            for at_once in (1, 40):
                tasks = [asyncio.create_task(asynchronous.remember(f"{at_once} {n}.")) for n in range(at_once)]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                assert await asyncio.gather(*tasks, return_exceptions=True)
                assert all(task.cancelled() for task in tasks)
            # As many as the pool has, at once: none is held by what was cancelled.
            whole = await asyncio.gather(*(asynchronous.search("", min_results=1) for _ in range(8)))
            return len(whole)

    assert asyncio.run(work()) == 8
    held = [memory.database.transaction() for _ in range(memory.settings.pool_size)]
    for each in held:
        each.__enter__()
    for each in held:
        each.__exit__(None, None, None)


def test_it_opens_again_after_it_was_closed_also_in_another_loop(memory: Memory) -> None:
    asynchronous = AsyncMemory(memory)

    async def once(text: str) -> bool:
        async with asynchronous as same:
            return (await same.remember(text)).created

    assert asyncio.run(once("First."))
    assert asyncio.run(once("Second."))


def test_parts_are_made_once_however_many_threads_ask_first(settings: Settings) -> None:
    made: list[Chunker] = []
    with Memory(settings=settings) as memory, ThreadPoolExecutor(16) as threads:
        start = threading.Barrier(16)

        def first(number: int) -> Embedder:
            start.wait()
            made.append(memory.chunker)
            return memory.embedder

        embedders = set(map(id, threads.map(first, range(16))))
    assert len(embedders) == len(set(map(id, made))) == 1


def test_a_forked_child_goes_on_with_both_and_the_parent_is_unharmed(memory: Memory) -> None:
    asynchronous = AsyncMemory(memory)

    async def write(text: str) -> bool:
        return (await asynchronous.remember(text)).created

    assert asyncio.run(write("Before the fork."))
    holding = threading.Thread(target=hold, args=(memory, done := threading.Event()))
    holding.start()
    # The child is forked while another thread holds the lock under which parts are made.
    assert exit_code_of_fork(lambda: asyncio.run(write("In the child.")) and memory.chunker.count("one") == 1) == 0
    done.set()
    holding.join()
    assert asyncio.run(write("After the fork."))
    asyncio.run(asynchronous.close())
    assert memory.status().memories.active == 3


def hold(memory: Memory, done: threading.Event) -> None:
    with memory.opening:
        done.wait(60)


def test_spawned_processes_open_their_own(memory: Memory, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNING)
    arguments = [str(memory.database.url), str(tmp_path), memory.embedder.spec.path]
    subprocess.run([sys.executable, str(program), *arguments], check=True, timeout=120)
    assert memory.status().memories.active == 4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_a_model_that_was_used_before_a_fork_answers_in_the_child(settings: Settings, backend: str) -> None:
    model = f"{Settings.model.partition('@')[0]}@{backend}"
    with Memory(settings=replace(settings, model=model)) as memory:
        texts = ["How are orders stored?", "A longer text. " * 40] * 8
        expected = memory.embedder.encode(texts)
        code = exit_code_of_fork(lambda: bool((memory.embedder.encode(texts) * expected).sum(axis=1).min() > 0.999))
    assert code == 0
