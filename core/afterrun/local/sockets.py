"""Where a Unix socket can lie: its path must fit into the kernel's 108 bytes (104 on macOS)."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from afterrun.errors import ConfigurationError
from afterrun.local.account import Account, own, reaches

LONGEST_PATH: Final = 103 if sys.platform == "darwin" else 107
"""Bytes of a socket's path, without the closing NUL (`sockaddr_un.sun_path`)."""


def socket_folder(preferred: Path, name: str, account: Account | None = None) -> Path:
    """`preferred`, which the caller makes; or, where `preferred/name` is too long, a private folder made for it.

    That one lies among the temporary files, by the same name each time, so that clients find a restarted stack again.

    Raises:
        ConfigurationError: somebody else has made the fallback, or it cannot be used either.
    """
    if _fits(preferred / name):
        return preferred
    digest = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:12]
    temporary = Path(tempfile.gettempdir())
    folder = temporary / f"afterrun-{digest}"
    if not _fits(folder / name) or (account and not reaches(account, temporary)):
        raise ConfigurationError(f"{preferred} is too long for a socket, and {temporary} cannot take it: shorten one")
    _make_private(folder, account)
    return folder


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_PATH


def _make_private(folder: Path, account: Account | None) -> None:
    owner = account.uid if account else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
            raise ConfigurationError(f"{folder} belongs to somebody else: remove it") from None
    own(folder, account)
