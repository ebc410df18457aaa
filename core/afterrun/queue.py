"""The way to the broker: what publishers and workers share (from `broker`), and a publisher that never waits for long.

Celery and kombu are imported on first use, inside the publisher's own thread. That thread is also what bounds every
call: a refused, frozen or black-holed broker, or a name server that does not answer, holds the thread, not the caller.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakSet

from afterrun.broker import (
    CONSOLIDATE_CLUSTER,
    CONSOLIDATE_QUEUE,
    DEFAULT_QUEUE,
    EMBED,
    EMBED_QUEUE,
    FIND_CLUSTERS,
    INDEX_QUEUE,
    INDEX_RUN,
    MAINTENANCE_QUEUE,
    PURGE,
    QUEUES,
    ROLL_UP,
    ROUTES,
    SWEEP,
    Job,
    Line,
    celery_app,
)
from afterrun.errors import QueueError
from afterrun.masking import masked_text, masked_url
from afterrun.models import Run

__all__ = [
    "CONSOLIDATE_CLUSTER",
    "CONSOLIDATE_QUEUE",
    "DEFAULT_QUEUE",
    "EMBED",
    "EMBED_QUEUE",
    "FIND_CLUSTERS",
    "INDEX_QUEUE",
    "INDEX_RUN",
    "MAINTENANCE_QUEUE",
    "PURGE",
    "QUEUES",
    "REST_SECONDS",
    "ROLL_UP",
    "ROUTES",
    "SWEEP",
    "Publisher",
    "celery_app",
    "run_kwargs",
]

REST_SECONDS: Final = 3.0
"""After a failure, how long the publisher refuses at once instead of letting each caller wait in turn."""
EXIT_SECONDS: Final = 0.5
"""How long a process that exits waits at most for a message that is still on its way."""
ONLY_COPY_EXIT_SECONDS: Final = 3.0
"""The same for a message sent by `force`: its run store failed, so that the run is lost if the message is."""
MOST_WAITING: Final = 1000
"""Messages that wait for a stuck publishing thread at most: they are the only copy of a run whose store failed too."""
_SHOWN: Final = 60

_open_publishers: WeakSet[Publisher] = WeakSet()
_abandoned: list[Line] = []


def run_kwargs(run: Run) -> tuple[dict[str, object], str]:
    """The arguments of `index_run` for `run`, and their representation for logs and Flower, free of its text."""
    shown = f"repo={run.repo[:_SHOWN]!r} run_id={(run.run_id or '')[:_SHOWN]!r} id={run.id} {len(run.summary)} chars"
    return {"run": run.to_message()}, f"{{'run': <{shown}>}}"


class Publisher:
    """Hands messages to the broker at `broker_url` and waits at most `timeout` seconds for each.

    One daemon thread a process does the work, in order; a fork gets its own. While it is stuck, and for `rest` seconds
    after a failure (by `clock`), a new call fails at once unless it says `force`. A message whose wait ran out may
    still arrive: the caller must count it as not sent, and its task must bear being run twice.
    """

    def __init__(
        self,
        broker_url: str,
        *,
        visibility_timeout: int = 900,
        timeout: float = 0.2,
        rest: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = broker_url
        self._visibility_timeout = visibility_timeout
        self._timeout = timeout
        self._rest = rest
        self._clock = clock
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._rests_until: float | None = None
        self._only_copies: list[Job] = []
        _open_publishers.add(self)

    def publish(
        self,
        task: str,
        kwargs: Mapping[str, object],
        *,
        kwargsrepr: str | None = None,
        timeout: float | None = None,
        force: bool = False,
        keep: bool = True,
    ) -> None:
        """Send one message for `task` and return when the broker has it.

        Args:
            kwargsrepr: what logs and Flower show of the arguments; give one wherever they hold memory text.
            timeout: seconds to wait at most, instead of the publisher's own.
            force: try, and wait, even where the broker has just failed: the caller has no other copy.
            keep: send it even after the wait ran out; False withdraws it then, unless it is on the wire.

        Raises:
            QueueError: the broker did not take the message in time.
        """

        def send(line: Line) -> None:
            line.send(task, dict(kwargs), kwargsrepr, wanted=lambda: keep or not job.overdue)

        job = Job(send, keep=keep)
        if force and keep:
            self._only_copies = [*(copy for copy in self._only_copies if not copy.done.is_set()), job]
        self._do(job, timeout, force=force)

    def ping(self, timeout: float | None = None) -> None:
        """Ask the broker for a sign of life.

        Raises:
            QueueError: it gave none in time.
        """
        self.lengths(timeout, queues=(INDEX_QUEUE,))

    def lengths(self, timeout: float | None = None, queues: tuple[str, ...] = QUEUES) -> dict[str, int]:
        """Messages that wait in each queue; 0 for a queue that does not exist yet. Any broker that kombu speaks to.

        Raises:
            QueueError: the broker did not answer in time.
        """
        found: dict[str, int] = {}

        def count(line: Line) -> None:
            found.update((queue, line.length(queue)) for queue in queues)

        self._do(Job(count), timeout, force=True)
        return found

    def close(self, wait: float = 0.0) -> None:
        """Let the publishing thread end once it has sent what is left, and wait for it for at most `wait` seconds.

        A later call starts another thread.
        """
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.end()
            line.thread.join(wait)

    @property
    def holds_only_copies(self) -> bool:
        """Whether a message that was sent by `force` is still on its way."""
        return any(not copy.done.is_set() for copy in self._only_copies)

    def _do(self, job: Job, timeout: float | None, *, force: bool) -> None:
        line = self._thread()
        if not force and (line.stuck or self._is_resting()):
            raise QueueError(f"broker {masked_url(self._url)} failed a moment ago: not tried again yet")
        if line.jobs.qsize() >= MOST_WAITING:
            raise QueueError(f"broker {masked_url(self._url)} is stuck and {MOST_WAITING} messages wait for it")
        wait = self._timeout if timeout is None else timeout
        line.jobs.put(job)
        if not job.done.wait(wait):
            job.overdue = True
            if not line.ready:
                # The first message of a process: nothing says that the broker is down, and it is sent all the same.
                raise QueueError(f"not confirmed within {wait:.2f} s, in which Celery is still loading; it follows")
            self._rests_until = self._clock() + self._rest
            raise QueueError(f"broker {masked_url(self._url)} did not answer within {wait:.2f} s")
        if job.error is not None:
            self._rests_until = self._clock() + self._rest
            raise QueueError(f"broker {masked_url(self._url)} failed: {self._told(job.error)}") from None
        self._rests_until = None

    def _is_resting(self) -> bool:
        until = self._rests_until
        return until is not None and self._clock() < until

    def _thread(self) -> Line:
        with self._lock:
            if self._line is None:
                self._line = Line(self._url, self._visibility_timeout, self._recovered)
            return self._line

    def _recovered(self) -> None:
        self._rests_until = None

    def _told(self, error: BaseException) -> str:
        return masked_text(f"{type(error).__name__}: {error}", self._url)

    def _after_fork(self) -> None:
        # The thread did not survive the fork and its socket is the parent's: the child neither uses nor closes it.
        self._lock = threading.Lock()
        self._rests_until = None
        self._only_copies = []
        if self._line is not None:
            _abandoned.append(self._line)
            self._line = None


def _forget_threads() -> None:
    for publisher in list(_open_publishers):
        publisher._after_fork()


def _send_what_is_left() -> None:
    started = time.monotonic()
    for publisher in list(_open_publishers):
        most = ONLY_COPY_EXIT_SECONDS if publisher.holds_only_copies else EXIT_SECONDS
        publisher.close(max(started + most - time.monotonic(), 0.0))


os.register_at_fork(after_in_child=_forget_threads)
atexit.register(_send_what_is_left)
