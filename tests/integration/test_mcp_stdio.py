"""`afterrun mcp` as a client starts it: a child process whose stdout carries nothing but the protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

import pytest
from mcp import Client
from mcp_clients import PROTOCOLS, call, program, refused, run

from afterrun.client import Memory
from afterrun.serve.mcp.transports import without_lone_surrogates

TOOLS: Final = 13
NEEDS: Final[dict[str, dict[str, Any]]] = {
    **{f"search_{collection}": {"query": "x"} for collection in ("codebase", "memory", "docs", "standards")},
    **{f"memory_{tool}": {"query": "x"} for tool in ("recall", "search", "index", "timeline")},
    **{f"memory_{tool}": {"ids": [str(uuid4())]} for tool in ("get", "forget")},
    "memory_remember": {"content": "x"},
    "memory_summarize_session": {"text": "x"},
    "memory_status": {},
}
HANDSHAKE: Final = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)
NOISY: Final = """
import ctypes, logging, os, subprocess, sys, warnings
from afterrun import keys
from afterrun.serve.mcp import Calls, make_server, owner, serve_stdio

def noisy(database, headers):
    print("a print")
    sys.stdout.write("a write\\n")
    sys.stdout.flush()
    os.write(1, b"a native library\\n")
    ctypes.CDLL(None).puts(b"the C library")
    ctypes.CDLL(None).fflush(None)
    subprocess.run(["echo", "a child"], check=True)
    logging.getLogger("noisy").error("a log line")
    warnings.warn("a warning")
    return owner(database, headers)

print("before the server", file=sys.stderr)
logging.basicConfig()
serve_stdio(make_server(Calls(), noisy))
"""


def test_without_a_stack_every_tool_says_what_to_run_and_the_server_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(program(tmp_path)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(NEEDS)
            for tool, arguments in NEEDS.items():
                assert "run `afterrun up`" in await refused(client, tool, **arguments)
            assert len((await client.list_tools()).tools) == TOOLS

    run(work())


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_whatever_prints_the_client_gets_the_protocol_alone(memory: Memory, tmp_path: Path, mode: str) -> None:
    server = program(tmp_path, "-c", NOISY, DATABASE_URL=memory.database.url)

    async def work() -> int:
        async with Client(server, mode=mode) as client:
            for _ in range(3):
                assert (await call(client, "memory_status"))["active"] == 1
            return len((await client.list_tools()).tools)

    memory.remember("One.")
    assert run(work()) == TOOLS


def test_every_line_on_stdout_is_a_message_whatever_comes_in(memory: Memory, tmp_path: Path) -> None:
    memory.remember("One.")
    with child(tmp_path, "-c", NOISY, DATABASE_URL=memory.database.url) as server:
        for message in HANDSHAKE:
            send(server, json.dumps(message).encode())
        assert answer(server, 1)["result"]["serverInfo"]["name"] == "afterrun"
        for line in (b"no json", b"{", b"[]", b"\xff\xfe", b"", b'{"jsonrpc":"2.0","id":2}', b'{"a":' * 2000):
            send(server, line)
        for number, text in enumerate((r"a\u0000b", r"a\ud800b", r"\udfff", "x" * 1_000_000), 10):
            arguments = f'{{"name":"search_memory","arguments":{{"query":"{text}","top_k":0}}}}'
            send(server, f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{arguments}}}'.encode())
            assert "top_k" in str(answer(server, number)["result"])
        send(server, b'{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"memory_status"}}')
        assert answer(server, 99)["result"]["structuredContent"]["active"] == 1
        pipe(server.stdin).close()
        assert server.wait(20) == 0


def test_a_client_does_not_wait_for_what_only_a_call_needs() -> None:
    heavy = "psycopg torch anthropic celery numpy openvino sentence_transformers fastapi"
    check = f"import sys; import afterrun.serve.mcp; sys.exit(repr(set('{heavy}'.split()) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (r"a\ud800b", "a\ufffdb"),
        (r"\udfff\uD83D", "\ufffd\ufffd"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\uD83D\uDE00\uDE00", "\U0001f600\ufffd"),
        (r"\\ud800", r"\ud800"),
        (r"\\\ud800", "\\\ufffd"),
        (r"\"\u00e9\n", '"\u00e9\n'),
    ],
)
def test_only_lone_surrogates_are_replaced(sent: str, meant: str) -> None:
    assert json.loads(without_lone_surrogates(f'"{sent}"'.encode())) == meant


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_while_its_client_is_silent(tmp_path: Path, number: signal.Signals) -> None:
    with child(tmp_path, "-m", "afterrun.serve.cli", "mcp") as server:
        send(server, json.dumps(HANDSHAKE[0]).encode())
        assert answer(server, 1)["result"]
        server.send_signal(number)
        assert server.wait(20) == -number


def test_options_of_http_without_http_are_wrong_usage(tmp_path: Path) -> None:
    for options in (("--port", "1"), ("--host", "::1"), ("--json",), ("--http", "--port", "65536")):
        done = command(tmp_path, *options)
        assert (done.returncode, done.stdout) == (2, "")


def test_an_address_that_others_reach_is_refused_without_keys(memory: Memory, tmp_path: Path) -> None:
    public = ("--http", "--host", "0.0.0.0", "--port", "0")
    done = command(tmp_path, *public, DATABASE_URL=memory.database.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "afterrun key create" in done.stderr
    assert "run `afterrun up`" in command(tmp_path, *public).stderr


def test_over_http_the_program_says_where_it_listens_and_stops_when_told(tmp_path: Path) -> None:
    with child(tmp_path, "-m", "afterrun.serve.cli", "mcp", "--http", "--port", "0", "--json") as server:
        told = b"".join(iter(pipe(server.stdout).readline, b"}\n")) + b"}"
        url = json.loads(told)["url"]

        async def tools() -> int:
            async with Client(url) as client:
                return len((await client.list_tools()).tools)

        assert run(tools()) == TOOLS
        server.terminate()
        assert server.wait(20) == 0
        assert pipe(server.stdout).read() == b""


@contextmanager
def child(home: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server whose bytes the test reads and writes itself."""
    server = program(home, *arguments, **environ)
    process = subprocess.Popen(
        [server.command, *server.args],
        env={"PATH": os.environ["PATH"], **(server.env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        yield process
        process.kill()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def send(server: subprocess.Popen[bytes], line: bytes) -> None:
    pipe(server.stdin).write(line + b"\n")
    pipe(server.stdin).flush()


def answer(server: subprocess.Popen[bytes], number: int) -> dict[str, Any]:
    """The answer with this id; every line before it is a message of the protocol, too."""
    while True:
        message: dict[str, Any] = json.loads(pipe(server.stdout).readline())
        assert message["jsonrpc"] == "2.0"
        if message.get("id") == number:
            return message


def command(home: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    server = program(home, "-m", "afterrun.serve.cli", "mcp", *options, **environ)
    return subprocess.run(
        [server.command, *server.args],
        env={"PATH": os.environ["PATH"], **(server.env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
