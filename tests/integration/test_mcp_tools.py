"""The MCP tools as a client in this process sees them: what they take, what they give, how they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import uuid4

import pytest
from mcp import Client
from mcp_clients import PROTOCOLS, call, calls_on, refused, run

from afterrun.client import Memory
from afterrun.db import connect
from afterrun.serve.mcp import make_server, owner
from afterrun.store import Store
from afterrun.testing import HashEmbedder

REQUIRED = {
    "search_codebase": ["query"],
    "search_memory": ["query"],
    "search_docs": ["query"],
    "search_standards": ["query"],
    "memory_recall": ["query"],
    "memory_search": ["query"],
    "memory_index": ["query"],
    "memory_timeline": [],
    "memory_get": ["ids"],
    "memory_remember": ["content"],
    "memory_summarize_session": ["text"],
    "memory_forget": ["ids"],
    "memory_status": [],
}
ARGUMENTS = {
    "search_codebase": ["query", "top_k", "project"],
    "search_memory": ["query", "top_k", "project"],
    "search_docs": ["query", "top_k", "project"],
    "search_standards": ["query", "top_k", "project"],
    "memory_get": ["ids"],
    "memory_forget": ["ids"],
    "memory_status": [],
}
Session = Callable[..., Any]
"""Takes a piece of work with a client, and the protocol's mode where it matters."""


@pytest.fixture
def session(memory: Memory, embedder: HashEmbedder) -> Iterator[Session]:
    """Runs a piece of work with a client of a server on the test's memory."""
    calls = calls_on(memory.settings, embedder)

    def with_client(work: Callable[[Client], Coroutine[Any, Any, Any]], mode: str = "auto") -> Any:
        async def connected() -> Any:
            async with Client(make_server(calls, owner), mode=mode) as client:
                return await work(client)

        return run(connected())

    yield with_client
    calls.close()


def one(session: Session, tool: str, /, **arguments: Any) -> Any:
    return session(lambda client: call(client, tool, **arguments))


def refusal(session: Session, tool: str, /, **arguments: Any) -> str:
    return str(session(lambda client: refused(client, tool, **arguments)))


def test_the_tools_are_the_ones_that_clients_are_configured_for(session: Session) -> None:
    tools = session(lambda client: client.list_tools()).tools
    assert {tool.name: tool.input_schema.get("required", []) for tool in tools} == REQUIRED
    schemas = {tool.name: tool.input_schema for tool in tools}
    assert {name: list(schemas[name]["properties"]) for name in ARGUMENTS} == ARGUMENTS
    assert all(schema["additionalProperties"] is False for schema in schemas.values())


def test_every_tool_says_when_to_use_it_and_what_every_argument_means(session: Session) -> None:
    for tool in session(lambda client: client.list_tools()).tools:
        assert "Use it" in tool.description or "begin with" in tool.description or "Layer" in tool.description
        assert tool.output_schema
        assert tool.annotations.read_only_hint is (tool.name not in _WRITING)
        unsaid = [name for name, schema in tool.input_schema["properties"].items() if not schema.get("description")]
        assert unsaid == []


_WRITING = {"memory_remember", "memory_summarize_session", "memory_forget"}


def test_what_is_remembered_is_found_shown_and_forgotten(session: Session) -> None:
    noted = one(
        session,
        "memory_remember",
        content="Orders are stored in Postgres since the outage.",
        project="shop",
        source_type="decision",
        metadata={"ticket": 12},
    )
    assert noted["created"]
    assert not one(
        session, "memory_remember", content="Orders are stored in Postgres since the outage.", project="shop"
    )["created"]
    for tool in ("search_memory", "memory_recall", "memory_search", "memory_index"):
        assert [hit["id"] for hit in one(session, tool, query="where are orders stored?")["hits"]] == [noted["id"]]
    (whole,) = one(session, "memory_get", ids=[noted["id"]])["memories"]
    assert (whole["state"], whole["seen"], whole["metadata"]) == ("active", 2, {"ticket": 12})
    assert one(session, "memory_forget", ids=[noted["id"]]) == {"forgotten": [noted["id"]], "before": []}
    assert one(session, "memory_forget", ids=[noted["id"]]) == {"forgotten": [], "before": [noted["id"]]}
    assert one(session, "search_memory", query="orders")["hits"] == []
    assert one(session, "memory_get", ids=[noted["id"]])["memories"][0]["state"] == "forgotten"


def test_each_search_looks_into_its_own_collection(session: Session, memory: Memory) -> None:
    for collection in ("codebase", "memory", "docs", "standards"):
        memory.remember(f"Retries in {collection}.", collection=collection)
    for collection in ("codebase", "memory", "docs", "standards"):
        (hit,) = one(session, f"search_{collection}", query="retries", top_k=3)["hits"]
        assert hit["content"] == f"Retries in {collection}."
    assert len(one(session, "memory_search", query="retries")["hits"]) == 4


def test_the_index_is_one_line_a_memory_with_what_the_whole_would_cost(session: Session, memory: Memory) -> None:
    memory.remember("Why the  queue\nstalled: " + "the consumer waited for a lock. " * 300, project="shop")
    (line,) = one(session, "memory_index", query="queue stalled")["hits"]
    assert set(line) == {"id", "project", "source_type", "day", "line", "tokens"}
    assert line["line"].startswith("Why the queue stalled: the consumer")
    assert len(line["line"]) <= 120
    assert line["tokens"] > 1500
    (hit,) = one(session, "search_memory", query="queue stalled")["hits"]
    assert hit["truncated"]
    assert len(hit["content"]) < 3000


def test_the_timeline_holds_its_anchor_by_id_and_by_query(session: Session, memory: Memory) -> None:
    notes = [
        memory.remember(f"Step {word}.", project="shop", created_at=f"2026-01-0{day}").id
        for day, word in enumerate(("alpha", "beta", "gamma", "delta"), 1)
    ]
    for asked in ({"anchor": str(notes[2])}, {"query": "gamma", "project": "shop"}):
        shown = one(session, "memory_timeline", before=1, after=1, **asked)
        assert [moment["id"] for moment in shown["moments"]] == [str(note) for note in notes[1:]]
        assert [moment["anchor"] for moment in shown["moments"]] == [False, True, False]
        assert shown["note"] is None
    with memory.database.transaction() as connection:
        Store(connection).supersede([notes[0]], notes[1])
    moved = one(session, "memory_timeline", anchor=str(notes[0]), before=0, after=0)
    assert moved["anchor"] == str(notes[1])
    assert "superseded" in moved["note"]
    assert "either" in refusal(session, "memory_timeline")
    assert "either" in refusal(session, "memory_timeline", anchor=str(notes[0]), query="gamma")
    assert "no memory has the id" in refusal(session, "memory_timeline", anchor=str(uuid4()))
    assert "nothing in docs" in refusal(session, "memory_timeline", query="gamma", collection="docs")


def test_unknown_ids_are_said_and_are_an_error_where_no_id_is_known(session: Session, memory: Memory) -> None:
    known, unknown = str(memory.remember("Known.").id), str(uuid4())
    some = one(session, "memory_get", ids=[unknown, known, known])
    assert [whole["id"] for whole in some["memories"]] == [known]
    assert some["unknown"] == [unknown]
    assert unknown in refusal(session, "memory_get", ids=[unknown])
    assert unknown in refusal(session, "memory_forget", ids=[known, unknown])
    assert one(session, "memory_get", ids=[known])["memories"][0]["state"] == "active"


def test_a_session_becomes_facts(session: Session) -> None:
    text = "User: which database?\nAssistant: We decided to use Postgres 18 for orders because of full-text search.\n"
    done = one(session, "memory_summarize_session", text=text, project="shop", session="s1")
    assert done["read_by"] == "rules"
    assert done["parts_done"] == done["parts"] == 1
    assert all(fact["created"] for fact in done["facts"])
    assert "nothing to summarize" in refusal(session, "memory_summarize_session", text="<private>x</private>")


def test_status_tells_what_waits(session: Session, memory: Memory) -> None:
    memory.remember("Not embedded yet.")
    status = one(session, "memory_status")
    assert (status["active"], status["waiting_to_be_embedded"], status["dead_letters"]) == (1, 1, 0)
    assert status["oldest_waiting"]


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        *[("search_memory", {"query": "x", "top_k": number}, "top_k") for number in (0, -1, 51, 10**9, 10**30)],
        ("search_memory", {"query": "x", "top_k": "many"}, "top_k"),
        ("search_memory", {"query": "x", "top_k": None}, "top_k"),
        ("search_memory", {"query": ["x"]}, "query"),
        ("search_memory", {}, "query"),
        ("search_memory", {"query": "x", "limit": 3}, "it takes query, top_k, project"),
        ("search_memory", {"query": "x", "project": ""}, "project"),
        ("search_memory", {"query": "x", "project": "p" * 301}, "project"),
        ("memory_search", {"query": "x", "collections": ["books"]}, "collections"),
        ("memory_search", {"query": "x", "collections": []}, "collections"),
        ("memory_search", {"query": "x", "since": "yesterday"}, "ISO 8601"),
        ("memory_search", {"query": "x", "only_project": True}, "only_project needs a project"),
        ("memory_recall", {"query": "x", "token_budget": 0}, "token_budget"),
        ("memory_get", {"ids": []}, "ids"),
        ("memory_get", {"ids": ["17"]}, "UUID"),
        ("memory_get", {"ids": [str(uuid4())] * 101}, "100"),
        ("memory_timeline", {"anchor": "17"}, "anchor"),
        ("memory_timeline", {"query": "x", "before": -1}, "before"),
        ("memory_remember", {"content": ""}, "content"),
        ("memory_remember", {"content": " \x00 "}, "nothing to remember"),
        ("memory_remember", {"content": "x", "importance": 2}, "importance"),
        ("memory_remember", {"content": "x", "project": "\x00"}, "project"),
        ("memory_remember", {"content": "x", "metadata": [1]}, "metadata"),
        ("memory_remember", {"content": "x", "created_at": "soon"}, "ISO 8601"),
        ("no_such_tool", {}, "no_such_tool"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_says_why(
    session: Session, tool: str, arguments: dict[str, Any], says: str
) -> None:
    assert says in refusal(session, tool, **arguments)


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_hostile_text_is_taken_as_text(session: Session, memory: Memory, mode: str) -> None:
    async def all_of_it(client: Client) -> None:
        for text in ("a\x00b", "'; DROP TABLE memories; --", "x" * 1_000_000, "\u202e\ufeff", "(((", '{"a":', ""):
            await call(client, "search_memory", query=text)
            await call(client, "memory_search", query=text, project=text[:300] or None)
            if text:
                await call(client, "memory_remember", content=text, metadata={"t": text[:1000], "n": [[[1]]]})

    session(all_of_it, mode)
    assert memory.status().memories.active == 6


def test_whatever_an_argument_holds_the_answer_is_a_result_or_says_what_is_wrong(
    session: Session, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    known = str(memory.remember("Known.", session="s").id)
    needed = {"query": "x", "ids": [known], "content": "x", "text": "Assistant: We decided to use Postgres."}

    async def every_tool(client: Client) -> None:
        for tool in (await client.list_tools()).tools:
            usual = {name: needed[name] for name in tool.input_schema.get("required", [])}
            for name in tool.input_schema["properties"]:
                for value in _HOSTILE:
                    result = await client.call_tool(tool.name, {**usual, name: value})
                    assert result.is_error == (result.structured_content is None), (tool.name, name, value)

    session(every_tool)
    assert "unexpected" not in caplog.text


_HOSTILE: list[Any] = [
    *(None, True, -1, 0, 3, 2**31, 2**63, 10**30, 0.5, 1e308, float("inf")),
    *(
        "",
        " ",
        "\x00",
        "x",
        "x" * 400,
        "%s' -- \\",
        "[]",
        '["memory"]',
        "{}",
        "\u202e",
        "0001-01-01",
        "9999-12-31T23:59:59-23:59",
    ),
    *([], ["memory"], [None], ["x"] * 200, {}, {"a": {"b": [{"\x00": "\x00"}]}}, {"": float("nan")}, [[[[]]]]),
]


def test_what_is_remembered_is_redacted(session: Session) -> None:
    secret = "sk-ant-api03-" + "b" * 80
    noted = one(session, "memory_remember", content=f"The key {secret} leaked.", metadata={"key": secret})
    assert "bbbb" not in str(one(session, "memory_get", ids=[noted["id"]]))


def test_many_calls_at_once_are_all_answered(session: Session, memory: Memory) -> None:
    async def many(client: Client) -> None:
        await asyncio.gather(*(call(client, "memory_remember", content=f"Note {number}.") for number in range(60)))
        found = await asyncio.gather(*(call(client, "search_memory", query=f"note {number}") for number in range(60)))
        assert all(len(hits["hits"]) >= 5 for hits in found)

    session(many)
    assert memory.status().memories.active == 60


def test_a_database_that_hangs_holds_up_neither_the_list_of_tools_nor_the_error(
    memory: Memory, embedder: HashEmbedder
) -> None:
    calls = calls_on(memory.settings, embedder, threads=2, seconds=1.0)

    async def hung(client: Client) -> None:
        answers = asyncio.gather(
            *(refused(client, "memory_remember", content=f"Note {number}.") for number in range(5))
        )
        assert len((await asyncio.wait_for(client.list_tools(), 0.9)).tools) == len(REQUIRED)
        assert all("no answer within 1 s" in error for error in await answers)

    async def connected() -> None:
        async with Client(make_server(calls, owner)) as client:
            await hung(client)

    with connect(memory.database.url) as locking:
        locking.execute("BEGIN")
        locking.execute("LOCK TABLE memories")
        run(connected())
        locking.execute("ROLLBACK")
    calls.close()


def test_an_error_that_nobody_expected_tells_the_client_nothing_but_that(
    memory: Memory, embedder: HashEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object, __: object) -> Any:
        raise ZeroDivisionError("the secret is 17")

    calls = calls_on(memory.settings, embedder)

    async def asked() -> str:
        async with Client(make_server(calls, broken)) as client:
            return await refused(client, "memory_status")

    assert run(asked()) == "Error executing tool memory_status"
    assert "the secret is 17" in caplog.text
    calls.close()
