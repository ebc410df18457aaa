"""One supervised child process: start, log, restart with backoff, stop with its whole process group."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from afterrun.errors import ConfigurationError
from afterrun.local.account import Account

logger = logging.getLogger(__name__)

LOG_BYTES: Final = 10 * 1024 * 1024
"""A log longer than this is moved to `<name>.log.1` when its process starts."""
BACKOFF_SECONDS: Final = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before the first, second, … restart in a row; the last one repeats."""
STEADY_SECONDS: Final = 60.0
"""A process that lived this long starts again at the first wait."""
PRIVATE_UMASK: Final = 0o077


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run and how to stop it."""

    name: str
    command: Sequence[str | Path]
    environ: Mapping[str, str]
    cwd: Path
    log: Path
    account: Account | None = None
    stdin: int = subprocess.DEVNULL
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    """How long it may take to stop before it and its process group are killed."""


class Child:
    """A running `Program` in a session of its own, so that Ctrl-C on a terminal reaches only the stack itself.

    Not safe for several threads: one thread at a time starts, watches and stops it.
    """

    def __init__(self, program: Program, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.program = program
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._failures = 0
        self._due: float | None = None
        self._deadline = 0.0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, also the id of its session and process group; None before the first start."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the program; its output is appended to its log."""
        program = self.program
        account = program.account
        with open_log(program.log) as log:
            self._process = subprocess.Popen(
                [str(part) for part in program.command],
                stdin=program.stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(program.environ),
                cwd=program.cwd,
                start_new_session=True,
                umask=PRIVATE_UMASK,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        self._started = self._clock()
        self._due = None

    def restart_if_dead(self) -> None:
        """Notice a death, and start again when its wait is over; a start that fails counts as a death."""
        if self.alive or self._process is None:
            return
        if self._due is None:
            self._note_death(f"ended with exit code {self._process.returncode}")
        elif self._clock() >= self._due:
            try:
                self.start()
            except OSError as error:
                self._note_death(f"cannot be started: {error}")

    def _note_death(self, what: str) -> None:
        self._kill_group()
        steady = self._clock() - self._started > STEADY_SECONDS
        self._failures = 0 if steady else self._failures
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._due = self._clock() + wait
        logger.warning("%s %s; it starts again in %g s; see %s", self.program.name, what, wait, self.program.log)

    def _ask_to_stop(self) -> None:
        self._deadline = self._clock() + self.program.stop_seconds
        if self._process is not None:
            self._process.send_signal(self.program.stop_signal)

    def _wait_or_kill(self) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._deadline - self._clock()))
        if self.alive:
            logger.warning("%s did not stop in %g s and is killed", self.program.name, self.program.stop_seconds)
        self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @staticmethod
    def stop_all(children: Iterable[Child]) -> None:
        """Ask all of them to stop, wait for each within its bound, then kill what is left of their process groups.

        Only the leader gets the polite signal: a Celery pool process that gets SIGTERM itself drops its task.
        """
        asked = list(children)
        for child in asked:
            child._ask_to_stop()
        for child in asked:
            child._wait_or_kill()


def package_folder(name: str) -> Path:
    """Where a package of bundled programs is installed; it is not imported, which may have effects of its own."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"the package {name} is not installed, so its server cannot be run")
    return Path(spec.origin).parent


def make_private(folder: Path) -> None:
    """Make a folder for the user alone; one that exists keeps its mode."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_log(path: Path) -> BinaryIO:
    """Open a log for appending, readable by its owner only; a long one is moved aside first."""
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error message; empty where there is none."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
