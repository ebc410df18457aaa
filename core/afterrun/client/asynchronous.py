"""`AsyncMemory`: the methods of `Memory` as coroutines, each made from its original."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from afterrun.client.memory import Memory

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[Memory, P], T],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]:
    async def call(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = functools.partial(method, self.memory, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    functools.update_wrapper(call, method)
    return call


class AsyncMemory:
    """`Memory` for asyncio: the same methods as coroutines, run in at most `threads` threads."""

    def __init__(self, memory: Memory | None = None, *, threads: int = 8) -> None:
        self.memory = memory or Memory()
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="afterrun")

    remember = _in_thread(Memory.remember)
    recall = _in_thread(Memory.recall)
    search = _in_thread(Memory.search)
    get = _in_thread(Memory.get)
    forget = _in_thread(Memory.forget)
    history = _in_thread(Memory.history)
    status = _in_thread(Memory.status)
    consolidate = _in_thread(Memory.consolidate)
    undo = _in_thread(Memory.undo)

    async def close(self) -> None:
        """Close connections and threads, after what runs in them has ended."""
        await asyncio.to_thread(self._threads.shutdown)
        self.memory.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
