"""The HTTP routes over a real socket, on a real Postgres: what they do, and what is refused with which status."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID, uuid4

import numpy as np
import pytest
from http_server import Client, ServerThread
from numpy.typing import NDArray

from afterrun import keys
from afterrun.client import Memory
from afterrun.events import MAX_EVENTS
from afterrun.models import ModelSpec
from afterrun.serve.http.options import Limits
from afterrun.serve.http.service import Service
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

JSON: Final = {"Content-Type": "application/json"}
LINES: Final = {"Content-Type": "application/x-ndjson"}
POSTS: Final = ("event", "remember", "recall", "search", "forget")


@pytest.fixture
def client(memory: Memory) -> Iterator[Client]:
    with ServerThread(Service(memory)) as server:
        yield Client(server.url)


def test_what_is_remembered_is_found_read_and_forgotten(client: Client) -> None:
    note = {"content": "Orders are stored in Postgres.", "project": "shop", "metadata": {"by": ["me"]}}
    written = client.post("/api/memory/remember", note).json
    assert (written["created"], written["embedded"]) == (True, False)
    assert client.post("/api/memory/remember", note).json == {**written, "created": False, "chunks": 0}
    record = client.get(f"/api/memory/{written['id']}").json
    assert (record["content"], record["metadata"], record["seen"]) == (note["content"], note["metadata"], 2)
    assert [hit["id"] for hit in client.post("/api/memory/search", {"query": "orders"}).json["hits"]] == [written["id"]]
    recall = client.post("/api/memory/recall", {"query": "where are orders?", "project": "shop", "explain": True}).json
    assert "Postgres" in recall["text"]
    assert recall["hits"][0]["affinity"] == 1.5
    assert client.post("/api/memory/forget", {"ids": [written["id"]]}).json == {"forgotten": [written["id"]]}
    assert client.post("/api/memory/recall", {"query": "orders"}).json["hits"] == []
    assert client.get(f"/api/memory/{written['id']}").json["archived"] is True


def test_status_tells_what_waits_and_since_when(client: Client) -> None:
    client.post("/api/memory/event", {"content": "One."})
    status = client.get("/api/memory/status").json
    assert (status["memories"]["active"], status["pending_chunks"]) == (1, 1)
    assert status["oldest_pending"]


def test_events_come_one_by_one_as_a_list_and_as_lines(client: Client) -> None:
    one = client.post("/api/memory/event", {"content": "One."})
    many = client.post("/api/memory/event", [{"content": "Two."}, {"content": "Three."}, {"content": "Two."}])
    lines = client.send("POST", "/api/memory/event", b'{"content": "Four."}\r\n\n{"content": "Five."}', LINES)
    assert [answer.status for answer in (one, many, lines)] == [202, 202, 202]
    receipts = [*one.json["receipts"], *many.json["receipts"], *lines.json["receipts"]]
    assert len(receipts) == 6
    assert receipts[1] == receipts[3]
    texts = [client.get(f"/api/memory/{receipt}").json["content"] for receipt in receipts]
    assert texts == ["One.", "Two.", "Three.", "Two.", "Four.", "Five."]
    assert client.post("/api/memory/search", {"query": "five"}).json["hits"][0]["content"] == "Five."


def test_of_a_batch_with_bad_events_none_is_written_and_each_bad_one_is_named(client: Client) -> None:
    batch = [
        {"content": "Fine."},
        {"content": 7},
        {"content": "Fine.", "colour": "red"},
        {"content": "<private>all of it</private>"},
    ]
    wrong = client.post("/api/memory/event", batch)
    assert wrong.status == 422
    assert [detail["where"] for detail in wrong.error["details"]] == ["1.content", "2.colour"]
    private = client.post("/api/memory/event", [batch[0], batch[3]])
    assert (private.status, [detail["where"] for detail in private.error["details"]]) == (422, ["1"])
    late = client.post("/api/memory/event", [{"content": "Fine.", "created_at": "yesterday"}])
    assert [detail["where"] for detail in late.error["details"]] == ["0.created_at"]
    cut = client.send("POST", "/api/memory/event", b'{"content": "Fine."}\n{"content": "Cut', LINES)
    assert cut.status == 400
    assert cut.error["message"].startswith("line 2:")
    assert client.post("/api/memory/event", []).status == 422
    assert client.post("/api/memory/event", [{"content": "x"}] * (MAX_EVENTS + 1)).status == 422
    assert client.get("/api/memory/status").json["memories"]["active"] == 0


def test_the_same_request_again_gets_the_same_receipts_also_from_another_server(client: Client, memory: Memory) -> None:
    batch = [{"content": "One."}, {"content": "Two."}]
    first = client.post("/api/memory/event", batch, Idempotency_Key="7")
    assert first.json["replayed"] is False
    memory.forget(*first.json["receipts"])
    again = client.send(
        "POST", "/api/memory/event", b'{"content":"One."}\n{"content":"Two."}\n', {**LINES, "Idempotency-Key": "7"}
    )
    assert again.json == {"receipts": first.json["receipts"], "replayed": True}
    with Memory(settings=memory.settings, embedder=memory.embedder) as restarted, ServerThread(Service(restarted)) as s:
        assert Client(s.url).post("/api/memory/event", batch, Idempotency_Key="7").json == again.json
    assert memory.status().memories.active == 0


def test_another_body_with_the_same_key_is_refused(client: Client) -> None:
    client.post("/api/memory/event", {"content": "One."}, Idempotency_Key="7")
    other = client.post("/api/memory/event", {"content": "Two."}, Idempotency_Key="7")
    assert (other.status, other.error["type"]) == (409, "ConflictError")
    assert client.post("/api/memory/event", {"content": "Two."}, Idempotency_Key="x" * 201).status == 422


def test_the_same_request_at_the_same_time_is_one_request(client: Client, memory: Memory) -> None:
    def send(number: int) -> Any:
        batch = [{"content": f"Note {place}."} for place in range(20)]
        return client.post("/api/memory/event", batch, Idempotency_Key="7").json

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(16)))
    assert len({tuple(answer["receipts"]) for answer in answers}) == 1
    assert sum(not answer["replayed"] for answer in answers) == 1
    assert {found.seen for found in memory.get(*answers[0]["receipts"])} == {1}


def test_batches_with_the_same_notes_in_any_order_do_not_block_each_other(client: Client) -> None:
    def send(number: int) -> int:
        notes = [{"content": f"Note {place}."} for place in range(50)]
        return client.post("/api/memory/event", notes[::-1] if number % 2 else notes).status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(24))) == {202}


def test_a_receipt_tells_how_far_its_event_is(client: Client, memory: Memory) -> None:
    receipt = client.post("/api/memory/event", {"content": "One."}).json["receipts"][0]
    assert client.get(f"/api/memory/event/{receipt}").json["state"] == "searchable"
    short = client.get(f"/api/memory/event/{receipt}?wait=embedded&timeout=0.2")
    assert (short.status, short.json["state"]) == (200, "searchable")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"/api/memory/event/{receipt}?wait=embedded&timeout=30")
        while not waiting.done():
            embed_pending(memory.database, memory.embedder)
        assert waiting.result().json == {"receipt": receipt, "state": "embedded", "detail": None}
    lost = client.post("/api/memory/event", {"content": "Two."}).json["receipts"][0]
    memory.forget(lost)
    forgotten = client.get(f"/api/memory/event/{lost}?wait=embedded").json
    assert (forgotten["state"], forgotten["detail"]) == ("failed", "the memory was forgotten")


def test_an_event_that_cannot_be_embedded_says_so(client: Client, memory: Memory) -> None:
    receipt = client.post("/api/memory/event", {"content": "One."}).json["receipts"][0]
    with memory.database.transaction() as connection:
        connection.execute("UPDATE chunks SET failed = true")
    assert client.get(f"/api/memory/event/{receipt}?wait=embedded").json["state"] == "failed"


def test_remember_can_wait_for_the_vector(client: Client, memory: Memory) -> None:
    assert not client.post("/api/memory/remember", {"content": "A.", "wait": "embedded", "timeout": 0}).json["embedded"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/api/memory/remember", {"content": "B.", "wait": "embedded"})
        while not waiting.done():
            embed_pending(memory.database, memory.embedder)
        assert waiting.result().json["embedded"] is True


def test_what_does_not_exist_is_404_and_says_what_it_was(client: Client) -> None:
    nobody = str(uuid4())
    for answer in (
        client.get(f"/api/memory/{nobody}"),
        client.get(f"/api/memory/event/{nobody}"),
        client.post("/api/memory/forget", {"ids": [nobody]}),
    ):
        assert (answer.status, answer.error["type"]) == (404, "NotFoundError")
        assert nobody in answer.error["message"]
    assert client.get("/api/memory/no-uuid").status == 404
    assert client.get("/nothing").status == 404


@pytest.mark.parametrize("route", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"content": "cut',
        b"\xff\xfe",
        b"NaN",
        b'{"query": Infinity}',
        b'{"content": "a", "content": "b"}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"importance": ' + b"9" * 5_000 + b"}",
    ],
)
def test_what_is_no_json_is_400(client: Client, route: str, body: bytes) -> None:
    answer = client.send("POST", f"/api/memory/{route}", body, JSON)
    assert (answer.status, answer.error["type"]) == (400, "MalformedError") if body else answer.status in {400, 422}
    assert len(answer.body) < 500


@pytest.mark.parametrize(
    ("route", "value"),
    [
        *((route, value) for route in POSTS for value in (None, 7, "text", {"colour": "red"})),
        ("remember", [{"content": "a"}]),
        ("remember", {}),
        ("remember", {"content": ""}),
        ("remember", {"content": "\x00"}),
        ("remember", {"content": "a", "importance": 2}),
        ("remember", {"content": "a", "importance": "0.5"}),
        ("remember", {"content": "a", "importance": 10**400}),
        ("remember", {"content": "a", "session_ordinal": 2**31}),
        ("remember", {"content": "a", "session_ordinal": True}),
        ("remember", {"content": "a", "project": ""}),
        ("remember", {"content": "a", "project": "x" * 301}),
        ("remember", {"content": "a", "collection": "books"}),
        ("remember", {"content": "a", "created_at": "yesterday"}),
        ("remember", {"content": "a", "metadata": []}),
        ("remember", {"content": "a", "source_key": "run:1"}),
        ("recall", {"query": "a", "only_project": True}),
        ("recall", {"query": "a", "token_budget": 0}),
        ("recall", {"query": "a", "min_results": 1.5}),
        ("recall", {"query": "a", "since": "0000-00-00"}),
        ("search", {"query": ["a"]}),
        ("search", {"query": "a", "limit": 10**30}),
        ("search", {"query": "a", "projects": ["bank"]}),
        ("forget", {"ids": []}),
        ("forget", {"ids": ["17"]}),
        ("forget", {"ids": [str(uuid4())] * 101}),
    ],
)
def test_wrong_fields_are_422_and_nothing_of_them_is_repeated(client: Client, route: str, value: object) -> None:
    answer = client.post(f"/api/memory/{route}", value)
    assert answer.status == 422, answer
    assert answer.error["message"]
    assert "yesterday" not in answer.body.decode()


@pytest.mark.parametrize(
    "note",
    [
        {"content": "lone \ud800 surrogate and \x00 NUL", "metadata": {"\udfff": "\x00\ud83d"}},
        {"content": "word " * 100_000},
        {"content": "a", "metadata": {"deep": json.loads("[" * 300 + "]" * 300)}},
        {"content": "a", "metadata": {"n": 10**4_000, "x": 1e308, "": None}},
        {"content": "a", "importance": 5e-324},
        {"content": "a", "created_at": "0001-01-01T00:00:00+14:00"},
        {"content": "a", "created_at": "9999-12-31T23:59:59-14:00"},
        {"content": "a", "session_ordinal": 5.0},
    ],
    ids=lambda note: str(note)[:40],
)
def test_what_is_strange_is_stored_or_refused_and_never_a_fault(client: Client, note: Mapping[str, object]) -> None:
    answer = client.post("/api/memory/remember", note)
    assert answer.status in {200, 422}, answer
    if answer.status == 200:
        assert client.get(f"/api/memory/{answer.json['id']}").status == 200
    assert client.post("/api/memory/recall", {"query": note["content"], "explain": True}).status == 200
    assert client.post("/api/memory/search", {}).status == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a/b/c"]
)
def test_other_content_types_are_415_and_say_which_is_right(client: Client, kind: str) -> None:
    for route in POSTS:
        answer = client.send("POST", f"/api/memory/{route}", b'{"content": "a"}', {"Content-Type": kind})
        assert answer.status == 415
        assert "application/json" in answer.error["message"]
    assert client.send("POST", "/api/memory/recall", b"{}", LINES).status == 415


def test_what_is_too_large_is_413_whether_its_size_is_declared_or_not(memory: Memory) -> None:
    with ServerThread(Service(memory, limits=Limits(body=1_000))) as server:
        client = Client(server.url)
        assert client.post("/api/memory/event", {"content": "a" * 900}).status == 202
        assert client.post("/api/memory/event", {"content": "a" * 1_100}).status == 413
        for route in POSTS:
            answer = client.send_in_pieces(f"/api/memory/{route}", [b'{"content": "' + b"a" * 600, b"a" * 600 + b'"}'])
            assert (answer.status, answer.error["type"]) == (413, "TooLargeError")


def test_other_methods_are_405(client: Client) -> None:
    for method, path in (("GET", "recall"), ("PUT", "event"), ("DELETE", str(uuid4())), ("POST", "status")):
        answer = client.send(method, f"/api/memory/{path}")
        assert (answer.status, bool(answer.headers["allow"])) == (405, True)


def test_every_error_has_one_shape_that_the_description_names(client: Client) -> None:
    described = client.get("/openapi.json").json
    for path, operations in described["paths"].items():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if path.startswith("/api/") and status >= "400":
                    assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
    assert client.get("/docs").status == 200


def test_no_text_and_no_secret_reaches_the_log(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    _, token = keys.create(memory.database, "ci")
    caplog.set_level(logging.DEBUG)
    with ServerThread(Service(memory)) as server:
        client = Client(server.url, token)
        assert client.post("/api/memory/event", {"content": "The word is xylophone."}).status == 202
        assert client.post("/api/memory/recall?xylophone=1", {"query": "xylophone"}).status == 200
        assert client.post("/api/memory/recall", {"query": "xylophone", "xylophone": 1}).status == 422
        assert client.send("POST", "/api/memory/event", b'{"xylophone', JSON).status == 400
        assert client.get("/xylophone").status == 404
        assert client.with_key(token[:-1] + "x").get("/api/memory/status").status == 401
    assert "/api/memory/recall 200" in caplog.text
    assert "xylophone" not in caplog.text
    assert token.rsplit("_", 1)[1][:20] not in caplog.text


def test_a_database_that_is_not_migrated_says_what_to_run(client: Client, memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute("ALTER TABLE memories RENAME COLUMN content TO contents")
    answer = client.get(f"/api/memory/{UUID(int=0)}")
    assert (answer.status, answer.error["type"]) == (503, "SchemaError")
    assert "afterrun migrate" in answer.error["message"]


class FaultyEmbedder:
    """An embedder with a fault that nobody has thought of."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise KeyError(f"xylophone {texts}")


def test_a_fault_of_ours_is_a_500_that_tells_nothing_and_is_logged(
    settings: Settings, embedder: HashEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Memory(settings=settings, embedder=FaultyEmbedder(embedder.spec)) as memory,
        ServerThread(Service(memory)) as s,
    ):
        answer = Client(s.url).post("/api/memory/recall", {"query": "marimba"})
    assert (answer.status, answer.error["type"]) == (500, "ServerError")
    assert b"xylophone" not in answer.body
    assert "KeyError" in caplog.text
    assert "in encode" in caplog.text
    assert "marimba" not in caplog.text
