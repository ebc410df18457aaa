"""Runs the verbs in a bounded number of threads, so that the event loop never waits for a database or a model.

Three bounds keep a request from hanging: a full queue refuses at once, a deadline ends the wait, and while Postgres is
away requests fail at once instead of each waiting for a connection of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from afterrun.errors import AfterrunError, ContendedError, DatabaseUnavailableError

T = TypeVar("T")

RETRY_SECONDS: Final = 1
"""When a refused request may come again."""
FAILURES: Final = 2
"""Failures in a row after which Postgres counts as away: a single one may be a connection that broke."""


class OverloadedError(AfterrunError):
    """The server has as much to do as it takes, or did not answer in time."""


class Workers:
    """A bounded pool of `threads`; at most `waiting` pieces of work wait for one, and none longer than `seconds`."""

    def __init__(self, *, threads: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="afterrun-http")
        self._most = threads + waiting
        self._seconds = seconds
        self._breaker = Breaker()
        self._lock = threading.Lock()
        self._admitted = 0

    @property
    def admitted(self) -> int:
        """Pieces of work that run or wait."""
        return self._admitted

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives.

        Raises:
            OverloadedError: too much waits already, or there is no answer in time; what runs then goes on unheard.
            DatabaseUnavailableError: Postgres was away a moment ago.
        """
        finds_out = self._breaker.passes()
        with self._lock:
            if self._admitted >= self._most:
                raise OverloadedError("the server is busy: try again in a moment, and send events in batches")
            self._admitted += 1
        future = self._pool.submit(self._breaker.guard, work, finds_out)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            raise OverloadedError(
                f"no answer within {self._seconds:g} s: the server or the database is busy; what was asked may still be"
                " carried out"
            ) from None

    def close(self) -> None:
        """Give up what waits; what runs goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: Future[T]) -> None:
        with self._lock:
            self._admitted -= 1


class Breaker:
    """Lets one caller at a time find out whether Postgres is back, and refuses the others at once meanwhile."""

    def __init__(self, *, rest: float = RETRY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest = rest
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._message = ""
        self._until = 0.0

    def passes(self) -> bool:
        """Whether the caller is the one that finds out. Raises DatabaseUnavailableError while Postgres is away."""
        with self._lock:
            if self._failures < FAILURES:
                return False
            if self._clock() < self._until:
                raise DatabaseUnavailableError(self._message)
            self._until = self._clock() + self._rest
            return True

    def guard(self, work: Callable[[], T], finds_out: bool) -> T:
        """Do `work` and learn from it."""
        if self._failures >= FAILURES and not finds_out:
            # It was let in before, and waited while others failed.
            raise DatabaseUnavailableError(self._message)
        try:
            result = work()
        except ContendedError:
            raise
        except DatabaseUnavailableError as error:
            with self._lock:
                self._failures += 1
                self._message, self._until = str(error), self._clock() + self._rest
            raise
        self._failures = 0
        return result
