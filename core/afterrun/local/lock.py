"""The lock that says whether a stack runs on a home, and whose it is.

The kernel frees it however its holder dies, so that it is never stale. The holder's process id stands in the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

import psutil

from afterrun import settings
from afterrun.errors import ConflictError

GLANCE_SECONDS: Final = 1.0
"""Whoever looks whether a stack runs holds the lock for a moment: only what is held for longer is a stack."""
RETRY_SECONDS: Final = 0.02


class StackLock:
    """An exclusive lock on a home, held by a running stack."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; wait for those who only look.

        Raises:
            ConflictError: a stack runs on this home already.
        """
        descriptor = os.open(settings.lock_path(self._home), os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + GLANCE_SECONDS
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise ConflictError(f"a local stack already runs on {self._home}: use it, or run `afterrun down`")
            time.sleep(RETRY_SECONDS)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.truncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(home: Path) -> int | None:
    """The process id of the stack that runs on `home`; None if none runs, or if it has only just taken the lock."""
    path = settings.lock_path(home)
    if not settings.stack_runs(home):
        return None
    try:
        pid = int(path.read_text(encoding="ascii"))
        # A process younger than the entry got the number of a killed holder; the new holder is about to write its own.
        return pid if psutil.Process(pid).create_time() <= path.stat().st_mtime else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
