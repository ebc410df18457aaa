"""MCP over Streamable HTTP: several sessions, restarts in the middle, API keys, and who may send requests at all."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp_clients import PROTOCOLS, call, calls_on, http_client, over_http, refused, run, wait_for

from afterrun import keys, schema
from afterrun import settings as settings_module
from afterrun.client import Memory
from afterrun.errors import ConfigurationError
from afterrun.local import Stack
from afterrun.serve.http.gate import Gate
from afterrun.serve.http.options import Limits
from afterrun.serve.mcp import listen, require_keys
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder

PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def url(memory: Memory, embedder: HashEmbedder) -> Iterator[str]:
    """A server on the test's memory."""
    calls = calls_on(memory.settings, embedder)
    with over_http(calls) as url:
        yield url
    calls.close()


def post(url: str, **headers: str) -> httpx2.Response:
    return httpx2.post(url, json=PING, headers=ACCEPT | headers, timeout=30)


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_several_sessions_at_once_see_the_same_memory(url: str, mode: str) -> None:
    async def writes(session: int) -> None:
        async with http_client(url, mode=mode) as client:
            for number in range(5):
                await call(client, "memory_remember", content=f"Note {number} of session {session}.")

    async def together() -> int:
        await asyncio.gather(*(writes(session) for session in range(6)))
        async with http_client(url, mode=mode) as client:
            return int((await call(client, "memory_status"))["active"])

    assert run(together()) == 30


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_a_session_outlives_broken_connections_to_the_database(url: str, memory: Memory, mode: str) -> None:
    async def work() -> None:
        async with http_client(url, mode=mode) as client:
            await call(client, "memory_remember", content="Before.")
            with memory.database.transaction() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            await call(client, "memory_remember", content="After.")
            assert len((await call(client, "memory_search", query=""))["hits"]) == 2

    run(work())


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_a_session_begins_before_the_stack_and_outlives_its_restart(embedder: HashEmbedder, mode: str) -> None:
    def migrate(url: str) -> None:
        schema.migrate(url, embedder.spec)

    home = Path(tempfile.mkdtemp(prefix="afterrun-mcp-"))
    stack = Stack(
        Settings(home=home, run_store=home / "memory.db"),
        migrate=migrate,
        commands=(),
    )
    calls = calls_on(lambda: settings_module.load({"AFTERRUN_HOME": str(home)}), embedder)

    async def work(url: str) -> None:
        async with http_client(url, mode=mode) as client:
            for tool in ("memory_status", "search_memory"):
                arguments = {"query": "x"} if tool == "search_memory" else {}
                assert "run `afterrun up`" in await refused(client, tool, **arguments)
            for number in range(1, 3):
                await asyncio.to_thread(stack.start)
                await call(client, "memory_remember", content=f"Note {number}.")
                assert (await call(client, "memory_status"))["active"] == number
                await asyncio.to_thread(stack.stop)
                assert "run `afterrun up`" in await refused(client, "memory_status")

    try:
        with over_http(calls) as url:
            run(work(url))
    finally:
        stack.stop()
        calls.close()
        shutil.rmtree(home, ignore_errors=True)


def test_a_database_that_is_down_is_said_and_not_an_empty_answer(settings: Settings, embedder: HashEmbedder) -> None:
    calls = calls_on(replace(settings, database_url="postgresql://nobody@127.0.0.1:9/none"), embedder)

    async def work(url: str) -> None:
        async with http_client(url) as client:
            for tool in ("search_memory", "memory_recall", "memory_search", "memory_index", "memory_timeline"):
                assert "cannot reach Postgres" in await refused(client, tool, query="x")
            for tool in ("memory_get", "memory_forget"):
                assert "cannot reach Postgres" in await refused(client, tool, ids=[str(uuid4())])

    with over_http(calls) as url:
        run(work(url))
    calls.close()


def test_without_keys_this_machine_needs_none_and_with_one_every_request_does(url: str, memory: Memory) -> None:
    assert post(url).status_code == 200
    made, token = keys.create(memory.database, "test")
    wait_for(lambda: post(url).status_code == 401)
    answer = post(url)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "API key" in answer.json()["error"]
    assert post(url, Authorization=f"Bearer {token}").status_code == 200
    for wrong in (token[:-1] + "x", "x", f"{token}x", "ark_000000000000_" + "0" * 64):
        assert post(url, Authorization=f"Bearer {wrong}").status_code == 401
    assert post(url, Authorization=f"Basic {token}").status_code == 401
    keys.revoke(memory.database, made.id)
    assert post(url, Authorization=f"Bearer {token}").status_code == 401


def test_a_key_reads_and_writes_within_its_scopes_and_projects_by_every_tool(url: str, memory: Memory) -> None:
    secret = memory.remember("The vault code of the bank is violet.", project="bank", session="s").id
    shared = memory.remember("The vault code of all is vermilion.").id
    own = memory.remember("The vault code of the shop is vanilla.", project="shop").id
    _, both = keys.create(memory.database, "both", projects=["shop"])
    _, reads = keys.create(memory.database, "reads", scopes=["read"], projects=["shop"], reads_global=False)
    _, writes = keys.create(memory.database, "writes", scopes=["write"], projects=["shop"])

    async def as_reader() -> None:
        async with http_client(url, reads) as client:
            for tool, asked in _SEARCHES:
                assert [hit["id"] for hit in (await call(client, tool, **asked))["hits"]] == [str(own)]
            await _sees_nothing_of(client, secret, "bank")
            await _sees_nothing_of(client, shared, "global")
            for tool, asked in _WRITES:
                assert "scope write" in await refused(client, tool, **asked, project="shop")
            assert "scope write" in await refused(client, "memory_forget", ids=[str(own)])
            status = await call(client, "memory_status")
            assert (status["active"], status["dead_letters"], status["queues"]) == (1, None, None)

    async def as_both() -> None:
        async with http_client(url, both) as client:
            for tool, asked in _SEARCHES:
                found = {hit["id"] for hit in (await call(client, tool, **asked))["hits"]}
                assert found == {str(own), str(shared)}
            await _sees_nothing_of(client, secret, "bank")
            for project in ("bank", "global", " bank ", "bank\x00"):
                for tool, asked in _WRITES:
                    assert "writes to shop only" in await refused(client, tool, **asked, project=project)
            assert "writes to shop only" in await refused(client, "memory_forget", ids=[str(own), str(shared)])
            assert (await call(client, "memory_remember", content="Allowed.", project="shop"))["created"]
            assert (await call(client, "memory_forget", ids=[str(own)]))["forgotten"] == [str(own)]

    async def as_writer() -> None:
        async with http_client(url, writes) as client:
            for tool, asked in (*_SEARCHES, ("memory_get", {"ids": [str(own)]}), ("memory_status", {})):
                assert "scope read" in await refused(client, tool, **asked)
            assert "scope read" in await refused(client, "memory_timeline", anchor=str(own))
            assert (await call(client, "memory_remember", content="Written.", project="shop"))["created"]

    run(as_reader())
    run(as_both())
    run(as_writer())
    assert {one.id: one.archived for one in memory.get(secret, shared, own)} == {
        secret: False,
        shared: False,
        own: True,
    }


_SEARCHES: list[tuple[str, dict[str, Any]]] = [
    *[
        (tool, {"query": query})
        for tool in ("search_memory", "memory_recall", "memory_search", "memory_index")
        for query in ("vault code", "")
    ],
    (
        "memory_search",
        {"query": "vault violet", "collections": ["memory"], "source_types": ["fact"], "since": "2000-01-01"},
    ),
    ("memory_recall", {"query": "vault violet", "min_results": 50}),
]
_WRITES: list[tuple[str, dict[str, Any]]] = [
    ("memory_remember", {"content": "Not allowed."}),
    ("memory_summarize_session", {"text": "Assistant: We decided to use Postgres."}),
]


async def _sees_nothing_of(client: Any, hidden: Any, project: str) -> None:
    for tool in ("search_memory", "memory_recall", "memory_search", "memory_index", "memory_timeline"):
        assert "reads" in await refused(client, tool, query="vault", project=project)
    assert "reads" in await refused(client, "memory_search", query="", project=project, only_project=True)
    for tool, asked in (
        ("memory_get", {"ids": [str(hidden)]}),
        ("memory_timeline", {"anchor": str(hidden)}),
        ("memory_timeline", {"anchor": str(hidden), "in_session": True}),
    ):
        assert "no memory has the id" in await refused(client, tool, **asked)


def test_a_page_in_a_browser_cannot_reach_a_server_on_this_machine(url: str) -> None:
    assert post(url, Host="evil.example").status_code == 403
    assert post(url, Origin="https://evil.example").status_code == 403
    assert post(url, Origin="http://localhost:3000").status_code == 200


def test_an_address_that_others_reach_needs_keys_from_the_first_request_on(
    memory: Memory, embedder: HashEmbedder
) -> None:
    calls = calls_on(memory.settings, embedder)
    with pytest.raises(ConfigurationError, match="afterrun key create"):
        require_keys(calls, "0.0.0.0")
    with over_http(calls, Gate(always=True)) as url:
        assert post(url).status_code == 401
    keys.create(memory.database, "test")
    require_keys(calls, "0.0.0.0")
    calls.close()


def test_a_key_that_comes_too_often_is_told_when_to_come_again(memory: Memory, embedder: HashEmbedder) -> None:
    _, token = keys.create(memory.database, "test")
    calls = calls_on(memory.settings, embedder)
    with over_http(calls, limits=Limits(rate=0.01, burst=2)) as url:
        answers = [post(url, Authorization=f"Bearer {token}") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) > 0
    calls.close()


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigurationError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigurationError, match="cannot listen"):
        listen("no.such.host.invalid", 0)


def test_small_answers_are_not_held_back_by_the_network() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP, "asyncio turns Nagle's delay off for these only"


def test_requests_that_are_no_protocol_are_refused_and_break_nothing(url: str) -> None:
    for body in (b"", b"{", b"[]", b'{"jsonrpc":"2.0"}', b'"\\ud800"', b"\xff", b'{"a":' * 5000):
        answer = httpx2.post(url, content=body, headers=ACCEPT | {"Content-Type": "application/json"}, timeout=30)
        assert 400 <= answer.status_code < 500
    big = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"' + b"x" * (25 * 1024 * 1024) + b'"}}'
    assert httpx2.post(url, content=big, headers=ACCEPT | {"Content-Type": "application/json"}).status_code == 413
    assert post(url).status_code == 200
