"""What the routes share: the memory, the bounded workers, who asks, and what happens in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar
from uuid import UUID

from afterrun import care
from afterrun.care import ProjectStatus
from afterrun.client import GuardedMemory, Memory
from afterrun.errors import AfterrunError, EmbeddingError
from afterrun.events import Event
from afterrun.keys import Principal
from afterrun.queue import EMBED
from afterrun.serve.http.gate import Gate
from afterrun.serve.http.measures import Measures
from afterrun.serve.http.options import Limits
from afterrun.serve.http.rate import RateLimit
from afterrun.serve.http.recent import Recent
from afterrun.serve.http.workers import OverloadedError, Workers

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NUDGE_PAUSE: Final = 0.05
"""Seconds between two messages to the workers: one message stands for all events that came meanwhile."""
_POLL_SECONDS: Final = (0.05, 0.1, 0.2, 0.5)
_DONE: Final = ("embedded", "failed")


class Service:
    """One server's memory and all that bounds its use. `running` is its life."""

    def __init__(self, memory: Memory, *, always_keys: bool = False, limits: Limits | None = None) -> None:
        self.memory = memory
        self.limits = limits or Limits()
        self.measures = Measures()
        self.gate = Gate(always=always_keys)
        self.rate = RateLimit(self.limits.rate, self.limits.burst)
        self.workers = Workers(threads=self.limits.threads, waiting=self.limits.waiting, seconds=self.limits.seconds)
        self._model = asyncio.Event()
        self._model_error: EmbeddingError | None = None
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._pollers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._status = Recent(self._read_status)
        self._database_problem = Recent(self._look_for_problem)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the model and tell the workers of news in the background; close everything at the end."""
        self._loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(self._load_model()), asyncio.create_task(self._tell_workers())]
        for task in tasks:
            task.add_done_callback(_log_end)
        try:
            yield
        finally:
            self.stop_waiting()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.workers.close()
            await asyncio.to_thread(self.memory.close)

    async def identify(self, headers: Mapping[str, str]) -> Principal:
        """Who asks. Raises UnauthenticatedError, ForbiddenError, DatabaseError, OverloadedError."""
        return await self.workers.run(lambda: self.gate(self.memory.database, headers))

    async def do(self, principal: Principal, work: Callable[[GuardedMemory], T]) -> T:
        """What `work` gives on the memory as `principal` may use it. Raises what `Workers.run` and `work` do."""
        return await self.workers.run(lambda: work(GuardedMemory(self.memory, principal)))

    async def ask(self, principal: Principal, query: str, work: Callable[[GuardedMemory], T]) -> T:
        """The same for a question; one with words waits until the model that embeds it is loaded."""
        if query.strip():
            await self._model_ready()
        return await self.do(principal, work)

    async def embedded(self, principal: Principal, receipt: UUID, timeout: float) -> Event:
        """How far an event is, when it is done with or `timeout` seconds are over; no thread waits for it meanwhile."""
        if self._pollers >= self.limits.pollers:
            raise OverloadedError("too many requests wait for an embedding already: ask without wait")
        self._pollers += 1
        try:
            return await self._poll(principal, receipt, min(timeout, self.limits.poll_seconds))
        finally:
            self._pollers -= 1

    async def status(self) -> ProjectStatus | None:
        """Counts of everything, at most some seconds old; None where the database does not answer."""
        return await self._status.value()

    async def database_problem(self) -> str | None:
        """Why the database cannot serve requests, or None; at most some seconds old."""
        return await self._database_problem.value()

    def has_news(self) -> None:
        """Have the workers told soon that there are new chunks."""
        self._news.set()

    def stop_waiting(self) -> None:
        """Let every request that waits for an embedding end now. May be called from a signal handler or a thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing.set)

    @property
    def not_ready(self) -> str | None:
        """Why questions cannot be answered yet."""
        if self._model_error is not None:
            return str(self._model_error)
        return None if self._model.is_set() else "the embedding model is being loaded"

    async def _poll(self, principal: Principal, receipt: UUID, timeout: float) -> Event:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pauses = iter(_POLL_SECONDS)
        pause = 0.0
        while True:
            event = await self.do(principal, lambda memory: memory.event(receipt))
            left = deadline - loop.time()
            if event.state in _DONE or left <= 0 or self._closing.is_set():
                return event
            pause = next(pauses, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), min(pause, left))

    async def _read_status(self) -> ProjectStatus | None:
        try:
            return await self.workers.run(lambda: care.project_status(self.memory.database))
        except AfterrunError as error:
            logger.warning("the database tells no measures: %s", error)
            return None

    async def _look_for_problem(self) -> str | None:
        try:
            pending = await self.workers.run(lambda: care.pending_migrations(self.memory.database))
        except AfterrunError as error:
            logger.warning("not ready: %s", error)
            return "the database or the server's threads do not answer: see the server's log"
        return f"migrations are missing ({', '.join(pending)}): run `afterrun migrate`" if pending else None

    async def _model_ready(self) -> None:
        try:
            await asyncio.wait_for(self._model.wait(), self.limits.model_seconds)
        except TimeoutError:
            raise OverloadedError(
                "the embedding model is still being loaded: try again in a moment, or ask for the newest"
            ) from None

    async def _load_model(self) -> None:
        try:
            await asyncio.to_thread(self.memory.embedder.encode, ["ready?"])
        except EmbeddingError as error:
            # Every question tries again, and tells its caller; this is for whoever reads the log.
            logger.error("questions cannot be embedded: %s", error)
            self._model_error = error
        finally:
            self._model.set()

    async def _tell_workers(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.to_thread(self.memory.nudge, EMBED)
            await asyncio.sleep(_NUDGE_PAUSE)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.error("what runs in the background ended with %s", type(error).__name__)
