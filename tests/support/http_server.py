"""A real HTTP server in a thread of the test's process, and a client for whatever a test wants to send to one."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import uvicorn

from afterrun.db import connect
from afterrun.serve.http.app import create_app
from afterrun.serve.http.service import Service


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class Client:
    """Sends requests to the server at `url`, each over a connection of its own, with `token` where there is one."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 90.0) -> None:
        self._url = url
        self._address = urlsplit(url).netloc
        self._timeout = timeout
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def with_key(self, token: str) -> Client:
        return Client(self._url, token, timeout=self._timeout)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, None, headers)

    def post(self, path: str, value: object, **headers: str) -> Answer:
        return self.send("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return self._send(method, path, body, headers or {})

    def send_in_pieces(self, path: str, pieces: Iterable[bytes]) -> Answer:
        """A POST of JSON whose length the server is not told."""
        return self._send("POST", path, pieces, {"Content-Type": "application/json"})

    def _send(self, method: str, path: str, body: bytes | Iterable[bytes] | None, headers: Mapping[str, str]) -> Answer:
        connection = HTTPConnection(self._address, timeout=self._timeout)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {**self._headers, **named})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def fresh_database(server_url: str, name: str) -> Iterator[str]:
    """The URL of an empty database of this name, which is dropped at the end."""
    with connect(server_url) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    with connect(server_url) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class ServerThread:
    """The app of a service behind a port of its own."""

    def __init__(self, service: Service) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            create_app(service), log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()
