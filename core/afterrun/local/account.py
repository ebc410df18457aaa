"""Under root, PostgreSQL runs as an account of its own: which one, and what it may reach.

PostgreSQL refuses to run as root, so a system account without a login is made on first use. Folders above the
data folder keep their modes; where the account cannot get through them, its files live in `ROOT_FOLDER` instead.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from afterrun.errors import ConfigurationError

ACCOUNT: Final = "afterrun_postgres"
ROOT_FOLDER: Final = Path("/var/lib/afterrun")


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account of the operating system."""

    uid: int
    gid: int


def server_account() -> Account | None:
    """The account for PostgreSQL, or None where the current user can run it.

    Raises:
        ConfigurationError: this is root, and the account cannot be made.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        entry = _make_account()
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def _make_account() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", ACCOUNT]
    try:
        subprocess.run(command, capture_output=True, check=False)
        return pwd.getpwnam(ACCOUNT)
    except (OSError, KeyError) as error:
        message = f"PostgreSQL does not run as root, and `{' '.join(command)}` failed"
        raise ConfigurationError(f"{message}: run as another user, or make that account") from error


def own(folder: Path, account: Account | None) -> None:
    """Make a folder of the account's own, closed to everybody else."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if account:
        os.chown(folder, account.uid, account.gid)


def let_through(folder: Path, account: Account) -> bool:
    """Whether the account can get into `folder`; one that is open to its owner only is opened to the account's group.

    The group may pass, not list. A folder that somebody has opened to another group stays as it is.
    """
    if not reaches(account, folder) and not folder.stat().st_mode & 0o077:
        os.chown(folder, -1, account.gid)
        folder.chmod(0o710)
    return reaches(account, folder)


def reaches(account: Account, path: Path) -> bool:
    """Whether the account can get to `path` and enter or execute it; asked of the kernel, so ACLs count."""
    command = ["test", "-x", str(path)]
    asked = subprocess.run(command, user=account.uid, group=account.gid, extra_groups=[], cwd="/", check=False)
    return asked.returncode == 0


def readable_copy(source: Path, name: str) -> Path:
    """A copy of a folder of programs that every account can use, made once under `ROOT_FOLDER`."""
    target = ROOT_FOLDER / name
    if not target.exists():
        ROOT_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = target.with_name(f"{name}.{os.getpid()}")
        shutil.copytree(source, draft, symlinks=True)
        subprocess.run(["chmod", "-R", "a+rX", str(draft)], check=True)
        draft.rename(target)
    return target
