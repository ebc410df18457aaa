"""`AsyncMemory`: the methods of `Memory` as coroutines, each made from its original."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakSet

from afterrun.client.memory import Memory

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[Memory, P], T],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]:
    async def call(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = functools.partial(method, self.memory, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    functools.update_wrapper(call, method)
    return call


class AsyncMemory:
    """`Memory` for asyncio: the same methods as coroutines, run in at most `threads` threads.

    A task that is cancelled while it waits ends at once; what runs in a thread comes to its end, and its connection
    goes back to the pool. Usable from several event loops; a forked child starts threads of its own. Use it as an
    asynchronous context manager, or await `close`, which closes `memory`, too.

    Raises:
        NotRunningError: no memory is given, no database is configured and no local stack runs.
    """

    def __init__(self, memory: Memory | None = None, *, threads: int = 8) -> None:
        self.memory = memory or Memory()
        self._most_threads = threads
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        _all.add(self)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads, started on first use."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._most_threads, thread_name_prefix="afterrun")
            return self._executor

    remember = _in_thread(Memory.remember)
    recall = _in_thread(Memory.recall)
    search = _in_thread(Memory.search)
    search_plans = _in_thread(Memory.search_plans)
    get = _in_thread(Memory.get)
    find = _in_thread(Memory.find)
    timeline = _in_thread(Memory.timeline)
    forget = _in_thread(Memory.forget)
    history = _in_thread(Memory.history)
    status = _in_thread(Memory.status)
    consolidate = _in_thread(Memory.consolidate)
    undo = _in_thread(Memory.undo)
    summarize_session = _in_thread(Memory.summarize_session)
    roll_up = _in_thread(Memory.roll_up)
    index_folder = _in_thread(Memory.index_folder)
    index_urls = _in_thread(Memory.index_urls)
    find_clusters = _in_thread(Memory.find_clusters)
    scan = _in_thread(Memory.scan)
    waiting_clusters = _in_thread(Memory.waiting_clusters)
    resume_clusters = _in_thread(Memory.resume_clusters)
    previews = _in_thread(Memory.previews)
    accept = _in_thread(Memory.accept)
    reject = _in_thread(Memory.reject)
    undo_since = _in_thread(Memory.undo_since)
    index_runs = _in_thread(Memory.index_runs)
    retry = _in_thread(Memory.retry)
    bring_in_spooled = _in_thread(Memory.bring_in_spooled)
    run_stores = _in_thread(Memory.run_stores)
    nudge_clusters = _in_thread(Memory.nudge_clusters)
    export_to = _in_thread(Memory.export_to)
    import_from = _in_thread(Memory.import_from)

    async def close(self) -> None:
        """Close connections and threads, after what runs in them has ended; the next use opens them again."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown)
        await asyncio.to_thread(self.memory.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _after_fork(self) -> None:
        # The threads did not survive the fork: a child that waited for them would wait for ever.
        self._lock = threading.Lock()
        self._executor = None


_all: WeakSet[AsyncMemory] = WeakSet()


def _forget_threads() -> None:
    for memory in list(_all):
        memory._after_fork()


os.register_at_fork(after_in_child=_forget_threads)
