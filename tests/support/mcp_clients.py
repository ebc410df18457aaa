"""MCP clients for tests: the SDK's own, to a server in this process, in a child, or over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from afterrun.client import Memory
from afterrun.embed import Embedder
from afterrun.serve.http.gate import Gate as KeyGate
from afterrun.serve.http.options import Limits
from afterrun.serve.mcp import Calls, Gate, http_app, listen, make_server
from afterrun.settings import Settings

T = TypeVar("T")
PROTOCOLS: Final = ("auto", "legacy")
"""The SDK's two ways to begin: with discovery, and with the handshake that older clients use."""


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured answer of a tool, which must not be an error."""
    result, text = await _answer(client, tool, arguments)
    assert not result.is_error, text
    assert json.loads(text) == result.structured_content
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a tool's error, which its answer must be."""
    result, text = await _answer(client, tool, arguments)
    assert result.is_error, text
    assert result.structured_content is None
    assert "Traceback" not in text
    return text


async def _answer(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[CallToolResult, str]:
    result = await client.call_tool(tool, arguments)
    return result, "".join(getattr(block, "text", "") for block in result.content)


def run(work: Coroutine[Any, Any, T], *, seconds: float = 120) -> T:
    """Run to the end, within a bound."""
    return asyncio.run(asyncio.wait_for(work, seconds))


def calls_on(settings: Settings | Callable[[], Settings], embedder: Embedder, **bounds: Any) -> Calls:
    """Calls on a memory with a small embedder; `settings` may be what reads them anew for each call."""
    load = settings if callable(settings) else lambda: settings
    return Calls(load=load, open_memory=lambda read: Memory(settings=read, embedder=embedder), **bounds)


@contextmanager
def over_http(calls: Calls, gate: Gate | None = None, limits: Limits | None = None) -> Iterator[str]:
    """The address of a server at a port of its own, in a thread."""
    gate = gate or KeyGate(always=False)
    with listen("127.0.0.1", 0) as listening:
        app = http_app(make_server(calls, gate), calls, gate, host="127.0.0.1", limits=limits or Limits())
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join(20)


@asynccontextmanager
async def http_client(url: str, token: str | None = None, mode: str = "auto") -> AsyncIterator[Client]:
    """A client over HTTP, with an API key if one is given."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def program(home: Path, *command: str, **environ: str) -> StdioServerParameters:
    """A server as a child process on this data folder; without a command `afterrun mcp`."""
    arguments: Sequence[str] = command or ("-m", "afterrun.serve.cli", "mcp")
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return StdioServerParameters(
        command=sys.executable, args=list(arguments), env=kept | {"AFTERRUN_HOME": str(home)} | environ
    )


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
