"""Runs the server: checks where it may listen, listens, and ends in order when it is told to."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import uvicorn

from afterrun import keys
from afterrun.client import Memory
from afterrun.errors import ConfigurationError, ConflictError
from afterrun.serve.http.app import create_app
from afterrun.serve.http.gate import is_loopback
from afterrun.serve.http.options import Limits
from afterrun.serve.http.service import Service
from afterrun.settings import Settings

STOP_SECONDS: Final = 20
"""How long running requests may take to end before a stop cuts them off."""
BACKLOG: Final = 512
MOST_CONNECTIONS: Final = 2_000


def serve(settings: Settings, *, host: str, port: int, limits: Limits, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `on_listening` hears the address.

    Raises:
        ConfigurationError: the address is not this machine's own loopback, and there is no key; or it is no address.
        ConflictError: another program listens there.
        NotRunningError: no database is configured and no local stack runs.
        DatabaseError: the address needs keys, and the database does not tell whether there are any.
    """
    open_settings = replace(settings, pool_size=max(settings.pool_size, limits.threads))
    with Memory(settings=open_settings) as memory, _listening(host, port) as listener:
        local = is_loopback(listener.getsockname()[0])
        if not local and not any(key.revoked_at is None for key in keys.listed(memory.database)):
            raise ConfigurationError(
                f"{host} can be reached from other machines, and there is no API key that could guard it: make one"
                " with `afterrun key create --name NAME`, or use --host 127.0.0.1"
            )
        service = Service(memory, always_keys=not local, limits=limits)
        on_listening(_address(listener))
        _Server(service).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Lets what waits for an embedding end as soon as a stop is asked for."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            # Requests are logged by their route: an address may hold what a client put into it.
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=STOP_SECONDS,
            lifespan="on",
        )
        super().__init__(config)
        self._service = service

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; a stop by signal is no error, so that the signal is not raised once more at the end."""
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            super().run(sockets)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn."""
        super().handle_exit(sig, frame)
        self._service.stop_waiting()


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)[0]
        return _bound(socket.socket(family, kind, protocol), address)
    except socket.gaierror as error:
        raise ConfigurationError(f"{host} is no address of this machine: use --host 127.0.0.1") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"another program listens on {host}:{port}: stop it, or choose another --port"
            raise ConflictError(message) from error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _bound(listener: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    # Of the protocol TCP by name, which `create_server` leaves open: only then does asyncio send small answers at once,
    # instead of holding their second part back until the client has confirmed the first, 40 ms later.
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
