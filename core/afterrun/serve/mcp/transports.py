"""How the server is reached: standard input and output, or Streamable HTTP on a socket."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import uvicorn
from mcp.server import MCPServer
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from afterrun.errors import AfterrunError, ConfigurationError, ForbiddenError, UnauthenticatedError
from afterrun.serve.http.options import Limits
from afterrun.serve.http.rate import RateLimit
from afterrun.serve.mcp.calls import Calls
from afterrun.serve.mcp.gate import Gate

PATH: Final = "/mcp"
BODY_BYTES: Final = 24 * 1024 * 1024
"""The longest memory, of characters of four bytes each, and some room."""
STOP_SECONDS: Final = 5
# Escaped backslashes and pairs are passed over, so that what is left, and caught, is alone.
_SURROGATES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
DEFAULT_LIMITS: Final = Limits()


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve the program that started this one until it closes standard input.

    The SDK keeps the protocol's descriptor to itself and points standard output at standard error meanwhile, so that
    neither a `print` nor a native library can break a message.
    """
    # The SDK's thread that reads cannot be interrupted: Ctrl-C has to end the process, as SIGTERM does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _clean_stdin()
    asyncio.run(server.run_stdio_async())


def _clean_stdin() -> None:
    """Put a pipe in the place of standard input, through which a thread passes its lines, cleaned.

    A lone surrogate, such as half of a cut emoji, is no JSON to the SDK, which would leave its request unanswered.
    """
    source, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    os.close(reading)

    def pass_on() -> None:
        with suppress(BrokenPipeError), os.fdopen(source, "rb") as lines, os.fdopen(writing, "wb") as cleaned:
            for line in lines:
                cleaned.write(without_lone_surrogates(line))
                cleaned.flush()

    threading.Thread(target=pass_on, name="afterrun-mcp-stdin", daemon=True).start()


def without_lone_surrogates(line: bytes) -> bytes:
    """JSON whose escapes of lone surrogates are those of U+FFFD, as they are cleaned everywhere else."""
    return _SURROGATES.sub(lambda found: found[0] if found[1] is None else rb"\ufffd", line)


def serve_http(server: MCPServer[Any], calls: Calls, gate: Gate, listening: socket.socket) -> None:
    """Serve at this socket until the process is told to stop."""
    config = uvicorn.Config(
        http_app(server, calls, gate, host=listening.getsockname()[0]),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    # uvicorn raises the signal that stopped it once more at its end; to be told to stop is no error.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def http_app(
    server: MCPServer[Any], calls: Calls, gate: Gate, *, host: str, limits: Limits = DEFAULT_LIMITS
) -> ASGIApp:
    """The ASGI application. Bound to loopback it answers only requests that name it so (no DNS rebinding).

    It keeps no sessions: every request stands for itself, so that a restart of the server breaks none.
    """
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        max_request_body_size=BODY_BYTES,
        host=host,
    )
    return _Guarded(app, calls, gate, RateLimit(limits.rate, limits.burst))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigurationError where the address cannot be had."""
    # asyncio turns Nagle's delay of 40 ms off for sockets that name their protocol, and only for these.
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError, UnicodeError) as error:
        listening.close()
        raise ConfigurationError(f"cannot listen at {host}:{port} ({error}): choose another address") from error
    return listening


def require_keys(calls: Calls, host: str) -> None:
    """Refuse an address that others reach while no key was ever made. Raises ConfigurationError, DatabaseError."""
    from afterrun import keys

    if not asyncio.run(calls.run(lambda memory: keys.any_made(memory.database))):
        raise ConfigurationError(
            f"{host} can be reached by others, and there is no API key: make one with `afterrun key create`"
        )


class _Guarded:
    """Refuses a request without a valid key, or of a key that comes too often, before it reaches the protocol.

    While the database does not answer nobody can be told apart: then the protocol's own requests pass, and every tool,
    which asks the same gate again, says what is wrong.
    """

    def __init__(self, app: ASGIApp, calls: Calls, gate: Gate, rate: RateLimit) -> None:
        self._app = app
        self._calls = calls
        self._gate = gate
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if scope["type"] != "http" else await self._refusal(Headers(scope=scope)) or self._app
        await app(scope, receive, send)

    async def _refusal(self, headers: Headers) -> ASGIApp | None:
        try:
            principal = await self._calls.run(lambda memory: self._gate(memory.database, headers))
        except UnauthenticatedError as error:
            return _answer(401, str(error), {"WWW-Authenticate": "Bearer"})
        except ForbiddenError as error:
            return _answer(403, str(error))
        except AfterrunError:
            return None
        if principal.key_id is not None and (seconds := self._rate.wait(principal.key_id)):
            message = f"this API key sent too many requests: come again in {seconds} s"
            return _answer(429, message, {"Retry-After": str(seconds)})
        return None


def _answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> ASGIApp:
    return JSONResponse({"error": message}, status_code=status, headers=headers)
