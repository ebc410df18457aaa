"""The embedded stack: PostgreSQL, broker, embedding service, workers and beat, run and watched by one process.

Start: lock, clear leftovers, guardian, both servers, migration, embedding service, workers and beat, state file.
Stop, in the other direction: beat, workers, broker, PostgreSQL, guardian. A part that dies is started again.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from afterrun.errors import ConflictError, NotRunningError
from afterrun.local.broker import Broker, write_private
from afterrun.local.commands import Command, default_commands
from afterrun.local.embedding import EmbedService, LazyModel, LoadModel
from afterrun.local.leftovers import MARK, stop_leftovers
from afterrun.local.lock import StackLock
from afterrun.local.postgres import Postgres
from afterrun.local.processes import Child, Program, log_tail, make_private
from afterrun.local.sockets import socket_folder
from afterrun.settings import Settings, state_path

logger = logging.getLogger(__name__)

EMBED_SOCKET: Final = "embed.sock"
SERVER_SECONDS: Final = 90.0
"""How long a server may take to be ready: PostgreSQL may have a crash to recover from."""
WATCH_SECONDS: Final = 0.2
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stack:
    """The local stack of one home. Use it as a context manager, or call `run_forever()` as a program's main job.

    Args:
        settings: where the home is; a database or broker that they name by environment is used instead of ours.
        migrate: brings the database at the given URL to the schema of this release.
        load_model: for the embedding service: model id to what embeds with it; None runs no service.
        commands: the programs to run besides the servers; by default Celery workers and beat.
        environ: what the parts inherit, less the variables that Celery itself would read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        migrate: Callable[[str], None],
        load_model: LoadModel | None = None,
        commands: Sequence[Command] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.settings = settings
        self.home = settings.home.resolve()
        self._migrate = migrate
        self._load_model = load_model
        self._commands = default_commands(settings) if commands is None else commands
        self._environ = {name: value for name, value in environ.items() if not name.startswith("CELERY_")}
        self._postgres = None if _external(settings, "database_url") else Postgres(self.home, self._environ)
        self._broker = None if _external(settings, "redis_url") else Broker(self.home, self._environ)
        self._children: dict[str, Child] = {}
        self._undo = ExitStack()
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    @property
    def database_url(self) -> str:
        """Address of the database: the embedded one, or the environment's."""
        return self._postgres.url if self._postgres else self.settings.require_database()

    @property
    def redis_url(self) -> str:
        """Address of the broker: the embedded one, or the environment's."""
        return self._broker.url if self._broker else self.settings.require_broker()

    @property
    def embed_socket(self) -> Path:
        """Where the embedding service listens."""
        return socket_folder(self.home, EMBED_SOCKET) / EMBED_SOCKET

    def start(self) -> None:
        """Start everything, in order; what was started is stopped again if a step fails.

        Raises:
            ConflictError: a stack runs on this home already.
            NotRunningError: a part did not start; the message has the end of its log.
        """
        if self._children:
            raise ConflictError(f"this stack of {self.home} is started already")
        try:
            for step in self._steps():
                if self._requests.empty():
                    step()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Return when somebody asks the stack to stop."""
        while True:
            # A wait without end would never run the handler of a signal that the kernel gave to another thread.
            with suppress(queue.Empty):
                logger.info("stopping: %s", self._requests.get(timeout=WATCH_SECONDS))
                return

    def request_stop(self, reason: str) -> None:
        """Let `wait()` return; safe in a signal handler and from any thread."""
        self._requests.put(reason)

    def run_forever(self, on_started: Callable[[], None] = lambda: None) -> None:
        """Start, run until SIGINT, SIGTERM or SIGHUP, stop. For the main thread only."""
        before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        try:
            with self:
                if self._requests.empty():
                    on_started()
                self.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Stop everything in order, each part within its bound; does nothing on a stopped stack."""
        self._undo.close()
        self._children.clear()
        self._requests = queue.SimpleQueue()

    def healthy(self) -> dict[str, bool]:
        """Each part's name, and whether it works: servers answer, programs run."""
        state = {name: child.alive for name, child in self._children.items()}
        for name, server in self._servers().items():
            state[name] = state.get(name, False) and server.ready()
        return state

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _steps(self) -> tuple[Callable[[], None], ...]:
        return (
            self._open_home,
            self._start_guardian,
            self._start_servers,
            lambda: self._migrate(self.database_url),
            self._start_embedding,
            self._start_programs,
            self._publish,
            self._start_watching,
        )

    def _open_home(self) -> None:
        make_private(self.home)
        make_private(self._logs)
        lock = StackLock(self.home)
        lock.acquire()
        self._undo.callback(lock.release)
        state_path(self.home).unlink(missing_ok=True)
        if found := stop_leftovers(self.home):
            logger.warning("stopped %d processes that a killed stack had left", found)

    def _start_guardian(self) -> None:
        reading, writing = os.pipe()
        self._undo.callback(os.close, writing)
        self._undo.callback(os.close, reading)
        arguments = (sys.executable, "-m", "afterrun.local.guardian", str(self.home))
        environ = {**self._environ, MARK: str(self.home)}
        log = self._log("guardian")
        self._start(Program(name="guardian", command=arguments, environ=environ, cwd=self.home, log=log, stdin=reading))

    def _start_servers(self) -> None:
        programs = []
        for name, server in self._servers().items():
            server.prepare()
            programs.append(server.program(self._log(name)))
        for program in programs:
            self._start(program)
        for name, server in self._servers().items():
            _wait_ready(self._children[name], server.ready)
        if self._postgres:
            self._postgres.create_database()

    def _start_embedding(self) -> None:
        if self._load_model:
            service = EmbedService(self.embed_socket, LazyModel(self._load_model))
            service.start()
            self._undo.callback(service.stop)

    def _start_programs(self) -> None:
        beat = [self._program(command) for command in self._commands if command.name == "beat"]
        others = [self._program(command) for command in self._commands if command.name != "beat"]
        self._start(*others)
        self._start(*beat)

    def _publish(self) -> None:
        state = {
            "pid": os.getpid(),
            "database_url": self.database_url,
            "redis_url": self.redis_url,
            "embed_socket": str(self.embed_socket),
            "logs": str(self._logs),
        }
        self._undo.callback(state_path(self.home).unlink, missing_ok=True)
        write_private(state_path(self.home), json.dumps(state, indent=1))

    def _start_watching(self) -> None:
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), name="stack-watcher", daemon=True)
        watcher.start()
        self._undo.callback(watcher.join)
        self._undo.callback(ended.set)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(WATCH_SECONDS):
            for child in self._children.values():
                child.restart_if_dead()

    def _start(self, *programs: Program) -> None:
        group = [Child(program) for program in programs]
        self._undo.callback(Child.stop_all, group)
        for child in group:
            self._children[child.program.name] = child
            child.start()

    def _program(self, command: Command) -> Program:
        return Program(
            name=command.name,
            command=command.arguments,
            environ=self._child_environ(),
            cwd=self.home,
            log=self._log(command.name),
            stop_seconds=command.stop_seconds,
        )

    def _child_environ(self) -> dict[str, str]:
        return {
            **self._environ,
            **self.settings.environment(),
            "AFTERRUN_HOME": str(self.home),
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            MARK: str(self.home),
            # The package setproctitle, which Celery uses where it is installed, would overwrite the mark.
            "SPT_NOENV": "1",
        }

    def _servers(self) -> dict[str, Postgres | Broker]:
        both = {"postgres": self._postgres, "broker": self._broker}
        return {name: server for name, server in both.items() if server}

    @property
    def _logs(self) -> Path:
        return self.home / "logs"

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _on_signal(self, number: int, frame: object) -> None:
        self.request_stop(signal.Signals(number).name)


def _external(settings: Settings, name: str) -> bool:
    return getattr(settings, name) is not None and settings.origins.get(name) != "local stack"


def _wait_ready(child: Child, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while child.alive and time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.02)
    name, log = child.program.name, child.program.log
    raise NotRunningError(f"{name} did not start; the end of {log}:\n{log_tail(log)}")
