"""The broker: names of tasks and queues, the one configured Celery application, and a thread that talks to it.

`queue` is the public face of all this. Celery and kombu are imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection, Producer

INDEX_RUN: Final = "index_run"
EMBED: Final = "embed"
CONSOLIDATE_CLUSTER: Final = "consolidate_cluster"
SWEEP: Final = "sweep"
FIND_CLUSTERS: Final = "find_clusters"
ROLL_UP: Final = "roll_up"
PURGE: Final = "purge"

INDEX_QUEUE: Final = "index"
DEFAULT_QUEUE: Final = "celery"
"""Celery's own default: the index worker consumes it too, so that a foreign `send_task` without a queue arrives."""
EMBED_QUEUE: Final = "embed"
CONSOLIDATE_QUEUE: Final = "consolidate"
MAINTENANCE_QUEUE: Final = "maintenance"
QUEUES: Final = (INDEX_QUEUE, DEFAULT_QUEUE, EMBED_QUEUE, CONSOLIDATE_QUEUE, MAINTENANCE_QUEUE)

ROUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        INDEX_RUN: INDEX_QUEUE,
        EMBED: EMBED_QUEUE,
        CONSOLIDATE_CLUSTER: CONSOLIDATE_QUEUE,
        SWEEP: MAINTENANCE_QUEUE,
        FIND_CLUSTERS: MAINTENANCE_QUEUE,
        ROLL_UP: MAINTENANCE_QUEUE,
        PURGE: MAINTENANCE_QUEUE,
    }
)
"""The queue of each task."""

RESTORE_SECONDS: Final = 2
"""Interval in which a worker looks for tasks of dead ones: 7.6 s to redelivery, where kombu's default took 102 s."""
SOCKET_SECONDS: Final = 5.0
"""Longest silence of the broker on an open connection, so that a frozen one stops nobody without a word."""
CONNECT_SECONDS: Final = 1.0
_LINE_SOCKET_SECONDS: Final = 1.0


def celery_app(
    broker_url: str, *, visibility_timeout: int, main: str = "afterrun", socket_timeout: float = SOCKET_SECONDS
) -> Celery:
    """The Celery application that publishers and workers share: JSON only, no results, tasks routed by name.

    Its connections go to `broker_url` whatever the environment says: Celery itself would prefer `CELERY_BROKER_URL`.
    `visibility_timeout` is in seconds and must be the same in every application on a broker, as the shortest one wins.
    """
    from celery import Celery

    class Bound(Celery):
        backend_cls = "disabled://"

        # Where Celery passes an address of its own, it is the environment's: `conf.broker_url` prefers that.
        def connection_for_read(self, url: str | None = None, **options: Any) -> Connection:
            return super().connection_for_read(broker_url, **options)

        def connection_for_write(self, url: str | None = None, **options: Any) -> Connection:
            return super().connection_for_write(broker_url, **options)

    app = Bound(main, broker=broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_routes={task: {"queue": queue} for task, queue in ROUTES.items()},
        task_default_queue=DEFAULT_QUEUE,
        task_publish_retry=False,
        broker_pool_acquire_timeout=CONNECT_SECONDS,
        broker_transport_options={
            "visibility_timeout": visibility_timeout,
            "unacked_restore_interval": RESTORE_SECONDS,
            "unacked_restore_throttle": 1,
            "max_retries": 0,
            "socket_timeout": socket_timeout,
            "socket_connect_timeout": CONNECT_SECONDS,
            "retry_on_timeout": False,
        },
    )
    return app


class Job:
    """One piece of work for the publishing thread; if `keep`, it is done even where nobody waits for it any more."""

    def __init__(self, work: Callable[[Line], None], *, keep: bool = False) -> None:
        self.work = work
        self.keep = keep
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.overdue = False


class Line:
    """A publishing thread and its connection, which no other thread touches.

    `recovered` is called on the thread after every success.
    """

    def __init__(self, url: str, visibility_timeout: int, recovered: Callable[[], None]) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._url = url
        self._visibility_timeout = visibility_timeout
        self._recovered = recovered
        self._app: Celery | None = None
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._current: Job | None = None
        self.thread = threading.Thread(target=self._run, name="afterrun-publisher", daemon=True)
        self.thread.start()

    @property
    def stuck(self) -> bool:
        """Whether the thread works on something that its caller has given up waiting for."""
        current = self._current
        return current is not None and current.overdue

    @property
    def ready(self) -> bool:
        """Whether Celery is loaded."""
        return self._app is not None

    def end(self) -> None:
        """Let the thread end once it has done what waits."""
        self.jobs.put(None)

    def send(self, task: str, kwargs: dict[str, object], kwargsrepr: str | None, wanted: Callable[[], bool]) -> None:
        """Send one message, on the thread, unless it is no longer `wanted` once the connection stands."""
        app, connection = self._opened()
        if self._producer is None:
            self._producer = app.amqp.Producer(connection.default_channel, auto_declare=False)
        if not wanted():
            return
        app.send_task(
            task, kwargs=kwargs, kwargsrepr=kwargsrepr, producer=self._producer, retry=False, ignore_result=True
        )

    def length(self, queue: str) -> int:
        """Messages that wait in `queue`, asked on the thread; 0 for a queue that does not exist."""
        from kombu import Queue

        _, connection = self._opened()
        with connection.channel() as channel:
            try:
                declared: Any = Queue(queue, channel=channel).queue_declare(passive=True)
            except connection.channel_errors:
                return 0
            return int(declared.message_count)

    def _run(self) -> None:
        # Part of Celery. It registers itself for the interpreter's exit, which is refused once that has begun; imported
        # first, it leaves the rest of Celery free to load, and what waits free to go out, while the process exits.
        # What fails here fails again for the first job, which hands it to its caller.
        with suppress(Exception):
            import_module("concurrent.futures.thread")
            self._application()
        while (job := self.jobs.get()) is not None:
            if job.keep or not job.overdue:
                self._current = job
                job.error = self._attempt(job)
                self._current = None
                if job.error is None:
                    self._recovered()
                job.done.set()
        self._drop_connection()

    def _attempt(self, job: Job) -> BaseException | None:
        reused = self._connection is not None
        error = self._try(job)
        # The broker may have closed a connection that lay idle: only a fresh one shows whether it is down.
        return self._try(job) if error is not None and reused else error

    def _try(self, job: Job) -> BaseException | None:
        try:
            job.work(self)
        except BaseException as error:  # noqa: BLE001 - it is the caller's: handed over, and raised there
            self._drop_connection()
            return error
        return None

    def _application(self) -> Celery:
        if self._app is None:
            self._app = celery_app(
                self._url, visibility_timeout=self._visibility_timeout, socket_timeout=_LINE_SOCKET_SECONDS
            )
        return self._app

    def _opened(self) -> tuple[Celery, Connection]:
        app = self._application()
        if self._connection is None:
            self._connection = app.connection_for_write()
        return app, self._connection

    def _drop_connection(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                connection.release()
