"""Runs the tools' work in a bounded number of threads, on the memory that the settings name at that moment.

The server outlives the local stack: it may start before `afterrun up` and see it stop and come back elsewhere. So each
call reads the settings, and the memory is opened anew when they have changed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from afterrun import settings as settings_module
from afterrun.errors import AfterrunError
from afterrun.settings import Settings

if TYPE_CHECKING:
    from afterrun.client import Memory

T = TypeVar("T")

THREADS: Final = 8
SLOW_THREADS: Final = 2
"""For what asks a language model many times: it must not take the threads of what takes milliseconds."""
SECONDS: Final = 60.0
SLOW_SECONDS: Final = 3_600.0
BROKER_SECONDS: Final = 2.0
"""How long a call waits for the broker: longer than a pipeline's hook, since the first one also imports Celery."""


class BusyError(AfterrunError):
    """A call got no answer in time."""


def open_memory(settings: Settings) -> Memory:
    """The memory of these settings. Raises NotRunningError where they name no database."""
    settings.require_database()
    # Only now: what a memory needs takes longer to import than a client waits gladly for the list of tools.
    from afterrun.client import Memory

    return Memory(settings=replace(settings, publish_timeout=BROKER_SECONDS))


class Calls:
    """Runs work on the current memory. `seconds` bounds a call, the wait for a thread included."""

    def __init__(
        self,
        *,
        load: Callable[[], Settings] = settings_module.load,
        open_memory: Callable[[Settings], Memory] = open_memory,
        threads: int = THREADS,
        seconds: float = SECONDS,
    ) -> None:
        self._load = load
        self._open = open_memory
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="afterrun-mcp")
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="afterrun-mcp-slow")
        self._lock = threading.Lock()
        self._settings: Settings | None = None
        self._memory: Memory | None = None

    async def run(self, work: Callable[[Memory], T], *, slow: bool = False) -> T:
        """What `work` gives for the current memory.

        Raises:
            BusyError: no answer in time; what runs in its thread goes on there.
            AfterrunError: whatever the settings, the memory or `work` raise.
        """
        threads, seconds = (self._slow_threads, SLOW_SECONDS) if slow else (self._threads, self._seconds)
        future = threads.submit(lambda: work(self._current()))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError as error:
            raise BusyError(
                f"no answer within {seconds:g} s: the database is busy or hangs, see `afterrun status`; what was asked"
                " may still be carried out"
            ) from error

    def close(self) -> None:
        """Close the memory; calls that wait are given up, calls that run go on."""
        for threads in (self._threads, self._slow_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._put_away()

    def _current(self) -> Memory:
        settings = self._load()
        with self._lock:
            if self._memory is None or settings != self._settings:
                self._put_away()
                self._memory, self._settings = self._open(settings), settings
            return self._memory

    def _put_away(self) -> None:
        memory, self._memory, self._settings = self._memory, None, None
        if memory is not None:
            memory.close()
