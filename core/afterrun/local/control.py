"""Handle a stack from another process: stop it, or start it detached."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from afterrun.errors import AfterrunError, ConflictError, NotRunningError
from afterrun.local.leftovers import stop_leftovers
from afterrun.local.lock import StackLock, holder
from afterrun.local.processes import log_tail, make_private, open_log
from afterrun.settings import stack_runs, state_path

STOP_SECONDS: Final = 90.0
START_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.05


def stop_running(home: Path, timeout: float = STOP_SECONDS) -> bool:
    """Stop the stack of `home` and wait until all of it is gone; False if none ran.

    What a killed stack left running is stopped too.

    Raises:
        AfterrunError: the stack still runs after `timeout` seconds.
    """
    home = home.resolve()
    ran = stack_runs(home)
    asked: set[int] = set()

    def gone() -> bool:
        pid = holder(home)
        if pid is not None and pid not in asked:
            asked.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return not stack_runs(home)

    if not _poll(gone, timeout):
        raise AfterrunError(f"the local stack of {home} did not stop in {timeout:g} s; its process is {holder(home)}")
    return _clear(home) or ran


def detach(command: Sequence[str], home: Path, timeout: float = START_SECONDS) -> subprocess.Popen[bytes]:
    """Run `command`, which starts a stack on `home`, in a session of its own, and return once that stack is up.

    Its output goes to `home/logs/up.log`. The caller may leave the process alone: it goes on without its parent.

    Raises:
        ConflictError: a stack runs on this home already.
        NotRunningError: the command ended, or was not up in `timeout` seconds and was ended; with the end of its log.
    """
    home = home.resolve()
    if stack_runs(home):
        raise ConflictError(f"a local stack already runs on {home}: use it, or run `afterrun down`")
    log = home / "logs" / "up.log"
    make_private(home)
    make_private(log.parent)
    with open_log(log) as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    _poll(lambda: process.poll() is not None or _up(home, process.pid), timeout)
    if process.poll() is None and _up(home, process.pid):
        return process
    process.terminate()
    process.wait()
    raise NotRunningError(f"the local stack did not start; the end of {log}:\n{log_tail(log)}")


def _up(home: Path, pid: int) -> bool:
    return state_path(home).exists() and holder(home) == pid


def _clear(home: Path) -> bool:
    if not home.is_dir():
        return False
    lock = StackLock(home)
    try:
        lock.acquire()
    except ConflictError:
        return False
    try:
        state_path(home).unlink(missing_ok=True)
        return stop_leftovers(home) > 0
    finally:
        lock.release()


def _poll(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
