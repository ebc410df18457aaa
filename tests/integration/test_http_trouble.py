"""The HTTP server in trouble: Postgres away, everything busy, a model that loads slowly, a stop in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from http_server import Client, ServerThread
from numpy.typing import NDArray

from afterrun.client import Memory
from afterrun.db import connect
from afterrun.errors import EmbeddingError
from afterrun.local import Stack
from afterrun.serve.http.options import Limits
from afterrun.serve.http.service import Service
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder

QUICK = 3.0
"""Seconds within which a refusal must come, on a busy machine."""


class SlowEmbedder:
    """An embedder whose model is loaded when `loaded` is set."""

    def __init__(self, inner: HashEmbedder, *, fails: bool = False) -> None:
        self.spec = inner.spec
        self.loaded = threading.Event()
        self._inner = inner
        self._fails = fails

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        assert self.loaded.wait(60)
        if self._fails:
            raise EmbeddingError("the model's files are broken")
        return self._inner.encode(texts)


@contextmanager
def without_database(server_url: str, name: str) -> Iterator[None]:
    """Postgres refuses all connections to the database, and has ended those there were."""
    with connect(server_url) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    try:
        yield
    finally:
        with connect(server_url) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


def eventually(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_postgres_requests_fail_at_once_and_work_again_when_it_is_back(memory: Memory, servers: Stack) -> None:
    name = urlsplit(memory.settings.require_database()).path.removeprefix("/")
    with ServerThread(Service(memory)) as server:
        client = Client(server.url)
        assert client.post("/api/memory/event", {"content": "Before."}).status == 202
        with without_database(servers.database_url, name):
            client.get("/api/memory/status")
            client.get("/api/memory/status")
            started = time.monotonic()
            with ThreadPoolExecutor(32) as pool:
                answers = list(pool.map(lambda _: client.post("/api/memory/event", {"content": "x"}), range(64)))
            assert time.monotonic() - started < 10
            assert {answer.status for answer in answers} == {503}
            assert all(answer.headers["retry-after"] == "1" for answer in answers)
            assert all("postgresql" not in answer.error["message"] for answer in answers)
            assert client.get("/healthz").status == 200
            eventually(lambda: client.get("/readyz").status == 503)
            eventually(lambda: b"afterrun_database_up 0.0" in client.get("/metrics").body)
        eventually(lambda: client.get("/api/memory/status").status == 200)
        eventually(lambda: client.get("/readyz").status == 200)
    assert memory.status().memories.active == 1


def test_a_database_that_was_not_there_from_the_start(settings: Settings, embedder: HashEmbedder) -> None:
    away = replace(settings, database_url="postgresql://u:hunter2@127.0.0.1:1/x", database_timeout=1.0)
    with Memory(settings=away, embedder=embedder) as memory, ServerThread(Service(memory)) as server:
        answer = Client(server.url).post("/api/memory/recall", {"query": "a"})
    assert (answer.status, answer.error["type"]) == (503, "DatabaseUnavailableError")
    assert b"hunter2" not in answer.body


def test_a_database_without_this_versions_schema_says_what_to_run(
    settings: Settings, embedder: HashEmbedder, empty_database_url: str
) -> None:
    empty = replace(settings, database_url=empty_database_url)
    with Memory(settings=empty, embedder=embedder) as memory, ServerThread(Service(memory)) as server:
        client = Client(server.url)
        assert "afterrun migrate" in client.post("/api/memory/recall", {"query": "a"}).error["message"]
        ready = client.get("/readyz")
    assert ready.status == 503
    assert "afterrun migrate" in str(ready.json["problems"])


def test_overload_is_refused_with_503_and_the_probes_still_answer(memory: Memory) -> None:
    memory.remember("A note.")
    limits = Limits(threads=2, waiting=2, seconds=30)
    with ServerThread(Service(memory, limits=limits)) as server, memory.database.transaction() as blocker:
        client = Client(server.url)
        client.get("/api/memory/status")
        blocker.execute("LOCK TABLE memories IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(12) as pool:
            waiting = [pool.submit(client.post, "/api/memory/recall", {"query": "note"}) for _ in range(12)]
            eventually(lambda: sum(call.done() for call in waiting) >= 8)
            refused = [call.result() for call in waiting if call.done()]
            assert {answer.status for answer in refused} == {503}
            assert all(answer.headers["retry-after"] for answer in refused)
            started = time.monotonic()
            assert client.get("/healthz").status == 200
            assert time.monotonic() - started < QUICK
            blocker.rollback()
            assert [call.result().status for call in waiting].count(200) >= 2


def test_while_the_model_loads_notes_are_taken_and_questions_wait_or_are_told_to(
    settings: Settings, embedder: HashEmbedder
) -> None:
    slow = SlowEmbedder(embedder)
    with (
        Memory(settings=settings, embedder=slow) as memory,
        ServerThread(Service(memory, limits=Limits(model_seconds=0.2))) as server,
    ):
        client = Client(server.url)
        assert client.post("/api/memory/remember", {"content": "A note."}).status == 200
        assert len(client.post("/api/memory/recall", {}).json["hits"]) == 1
        told = client.post("/api/memory/recall", {"query": "note"})
        assert (told.status, told.headers["retry-after"]) == (503, "1")
        assert "loaded" in told.error["message"]
        assert client.get("/readyz").status == 503
        slow.loaded.set()
        eventually(lambda: client.post("/api/memory/recall", {"query": "note"}).status == 200)
        eventually(lambda: client.get("/readyz").status == 200)


def test_a_model_that_cannot_be_loaded_is_said_to_who_asks(settings: Settings, embedder: HashEmbedder) -> None:
    broken = SlowEmbedder(embedder, fails=True)
    broken.loaded.set()
    with Memory(settings=settings, embedder=broken) as memory, ServerThread(Service(memory)) as server:
        client = Client(server.url)
        answer = client.post("/api/memory/recall", {"query": "note"})
        assert (answer.status, answer.error["type"]) == (503, "EmbeddingError")
        assert client.post("/api/memory/event", {"content": "A note."}).status == 202
        assert client.get("/readyz").json["problems"] == ["the model's files are broken"]


def test_many_who_wait_for_a_vector_hold_neither_threads_nor_connections(memory: Memory) -> None:
    service = Service(memory, limits=Limits(threads=2, pollers=20))
    with ServerThread(service) as server:
        client = Client(server.url)
        receipt = client.post("/api/memory/event", {"content": "A note."}).json["receipts"][0]
        with ThreadPoolExecutor(20) as pool:
            path = f"/api/memory/event/{receipt}?wait=embedded&timeout=5"
            waiting = [pool.submit(client.get, path) for _ in range(20)]
            eventually(lambda: service._pollers == 20)
            assert client.get(path).status == 503
            assert client.post("/api/memory/event", {"content": "Another."}).status == 202
            assert {call.result().status for call in waiting} == {200}


def test_a_stop_ends_what_waits_for_a_vector_with_the_state_so_far(memory: Memory) -> None:
    service = Service(memory)
    with ServerThread(service) as server:
        client = Client(server.url)
        receipt = client.post("/api/memory/event", {"content": "A note."}).json["receipts"][0]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get, f"/api/memory/event/{receipt}?wait=embedded&timeout=60")
            eventually(lambda: service._pollers == 1)
            service.stop_waiting()
            assert waiting.result(10).json["state"] == "searchable"


@pytest.mark.parametrize("route", ["recall", "search"])
def test_a_memory_from_long_ago_fails_no_search(memory: Memory, route: str) -> None:
    memory.remember("A note from long ago.", created_at="0001-01-01", source_type="session_summary")
    with ServerThread(Service(memory)) as server:
        answer = Client(server.url).post(f"/api/memory/{route}", {"query": "note"})
    assert (answer.status, len(answer.json["hits"])) == (200, 1)
