"""Find and stop what a killed stack left running.

There are no pid files to go stale. A leftover is known by what the kernel says about it: the programs by a mark in
their environment, the servers (which overwrite theirs) by their name and their working folder.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "AFTERRUN_STACK"
"""Environment variable of every program of a stack except its servers; its value is the stack's home."""
PROGRAM_SECONDS: Final = 10.0
SERVER_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.02


def data_folders(home: Path) -> tuple[Path, Path]:
    """The working folders of PostgreSQL and of the broker, as the kernel names them."""
    return (home / "postgres").resolve() / "data", (home / "broker").resolve()


def stop_leftovers(home: Path) -> int:
    """Stop programs, then servers, of a stack of `home` that itself no longer runs; gives how many were found.

    The caller makes sure that no stack of `home` runs, by holding its lock or by being its guardian.
    """
    programs = list(_programs(home))
    _stop([p for p in programs if _leads(p)], programs, signal.SIGTERM, PROGRAM_SECONDS)
    postgres, broker = (list(_servers(folder)) for folder in data_folders(home))
    _stop(_roots(broker), broker, signal.SIGTERM, SERVER_SECONDS)
    _stop(_roots(postgres), postgres, signal.SIGINT, SERVER_SECONDS)
    return len(programs) + len(postgres) + len(broker)


def _programs(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == str(home):
                yield process


def _servers(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.name().startswith(("postgres", "valkey")) and process.cwd() == str(folder):
                yield process


def _leads(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def _roots(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those whose parent is not among them: the server itself, not its helpers."""
    pids = {process.pid for process in processes}
    roots = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.ppid() not in pids:
                roots.append(process)
    return roots


def _stop(asked: list[psutil.Process], everything: list[psutil.Process], how: signal.Signals, seconds: float) -> None:
    for process in asked:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(how)
    _wait(asked, seconds)
    for process in everything:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(everything, seconds)


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_runs(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _runs(process: psutil.Process) -> bool:
    """Not so for a zombie: in a container without an init, nobody may ever collect it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
