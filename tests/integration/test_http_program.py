"""`afterrun serve` as a user runs it, a process of its own: where it listens, how it ends, and a fuzzer on it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

import pytest
from http_server import Client, fresh_database

from afterrun import keys, schema
from afterrun.db import Database
from afterrun.embed import model_spec
from afterrun.local import Stack
from afterrun.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES: Final = 15
"""Requests that the fuzzer makes up for each route and kind of data, beside those it works through."""


class Program:
    """`afterrun serve` on a database."""

    def __init__(self, home: Path, database_url: str, *arguments: str) -> None:
        environ = {**os.environ, "AFTERRUN_HOME": str(home), "DATABASE_URL": database_url, "REDIS_URL": ""}
        self.log = home / "serve.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command(*arguments), env=environ, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.url = self._listens()

    def _listens(self) -> str:
        assert self.process.stdout
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("}"):
                return str(json.loads(said)["url"])
        raise AssertionError(self.log.read_text())

    def stop(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()
        return code


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "afterrun.serve.cli", "serve", *(arguments or ("--port", "0")), "--json"]


@pytest.fixture(scope="module")
def url(servers: Stack) -> Iterator[str]:
    """A database for the packaged model."""
    with fresh_database(servers.database_url, "http_program") as url:
        schema.migrate(url, model_spec(Settings.model))
        yield url


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def program(home: Path, url: str) -> Iterator[Program]:
    program = Program(home, url)
    yield program
    assert program.stop() == 0
    assert "Traceback" not in program.log.read_text()


def refused(home: Path, url: str, arguments: Sequence[str]) -> str:
    environ = {**os.environ, "AFTERRUN_HOME": str(home), "DATABASE_URL": url, "REDIS_URL": ""}
    done = subprocess.run(command(*arguments), env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    return str(json.loads(done.stdout)["error"]["message"])


def test_it_answers_with_the_packaged_model(program: Program) -> None:
    client = Client(program.url)
    assert client.post("/api/memory/event", {"content": "Orders are stored in Postgres."}).status == 202
    answer = client.post("/api/memory/recall", {"query": "in which database are orders?"})
    while answer.status == 503:  # while the model loads
        answer = client.post("/api/memory/recall", {"query": "in which database are orders?"})
    assert "Postgres" in answer.json["text"]


def test_small_answers_on_a_kept_connection_come_at_once(program: Program) -> None:
    # An answer in two parts that waits for the client's confirmation takes 40 ms, however quick the server is.
    connection = HTTPConnection(program.url.removeprefix("http://"), timeout=30)
    took: list[float] = []
    for _ in range(40):
        started = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        took.append(time.perf_counter() - started)
    connection.close()
    assert median(took[20:]) < 0.03


def test_a_port_that_is_taken_is_a_clear_error(program: Program, home: Path, url: str) -> None:
    port = program.url.rpartition(":")[2]
    assert re.search(rf"another program listens on 127\.0\.0\.1:{port}.*--port", refused(home, url, ["--port", port]))


def test_an_address_that_is_none_is_a_clear_error(home: Path, url: str) -> None:
    assert "no address" in refused(home, url, ["--host", "no.such.host.invalid"])


def test_where_others_reach_it_there_must_be_a_key(home: Path, servers: Stack) -> None:
    with fresh_database(servers.database_url, "http_keys") as url, Database(url) as database:
        schema.migrate(url, model_spec(Settings.model))
        message = refused(home, url, ["--host", "0.0.0.0", "--port", "0"])
        assert "afterrun key create" in message
        made, _ = keys.create(database, "old")
        keys.revoke(database, made.id)
        assert "afterrun key create" in refused(home, url, ["--host", "::", "--port", "0"])
        _, token = keys.create(database, "ci")
        program = Program(home, url, "--host", "0.0.0.0", "--port", "0")
        client = Client(program.url.replace("0.0.0.0", "127.0.0.1"))
        assert client.get("/api/memory/status").status == 401
        assert client.with_key(token).get("/api/memory/status").status == 200
        assert program.stop(signal.SIGINT) == 0


def test_a_stop_lets_a_request_end_first(home: Path, url: str) -> None:
    program = Program(home, url)
    host, port = program.url.removeprefix("http://").split(":")
    body = b'{"content": "Sent in two parts."}'
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /api/memory/remember HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        Client(program.url).get("/healthz")
        program.process.send_signal(signal.SIGTERM)
        connection.sendall(body[10:])
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert program.stop() == 0


def test_a_schema_fuzzer_finds_no_fault(program: Program, tmp_path: Path) -> None:
    fuzzer = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [fuzzer, "run", f"{program.url}/openapi.json", f"--max-examples={EXAMPLES}", "--no-color"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
