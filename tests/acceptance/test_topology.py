"""The production topology for real: every service of ours from docker-compose.yml, as processes on embedded servers."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pytest
import urllib3
from celery import Celery
from compose import ROOT, Compose, Topology, until
from redis import Redis

from afterrun import finish
from afterrun.db import Connection, connect
from afterrun.local import Stack
from afterrun.runs import RunStore

MARKER: Final = "quartzzeppelin"
"""A word of every summary here: wherever it is shown, memory text is shown."""
LOGIN: Final = "ops:letmein"
LONG_RUNNING: Final = ("worker", "embed", "beat", "flower")
NOWHERE: Final = "redis://127.0.0.1:1/0"

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def place(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(servers, tmp_path_factory.mktemp("topology"), broker_number=0) as place:
        assert place.topology.run("migrate").returncode == 0
        yield place


@pytest.fixture
def services(place: Place) -> Place:
    """All services, running and healthy."""
    place.topology.start(*LONG_RUNNING)
    return place


@pytest.fixture
def lone(servers: Stack, tmp_path: Path) -> Iterator[Place]:
    """A place of the test's own, on a host whose environment belongs to another Celery project."""
    foreign = {"CELERY_BROKER_URL": NOWHERE, "CELERY_RESULT_BACKEND": NOWHERE}
    with Place(servers, tmp_path, broker_number=0, extra=foreign) as place:
        assert place.topology.run("migrate").returncode == 0
        yield place


class Place:
    """A topology with a database of its own, and what a test asks of it."""

    def __init__(
        self, servers: Stack, folder: Path, *, broker_number: int, extra: dict[str, str] | None = None
    ) -> None:
        self._server_url = servers.database_url
        self._name = f"topology_{next(_numbers)}"
        self.database_url = _with_path(servers.database_url, self._name)
        self.broker_url = _with_path(servers.redis_url, str(broker_number))
        self.run_store = folder / "runs" / "memory.db"
        self.run_store.parent.mkdir()
        self.flower_port = _free_port()
        compose = Compose(
            ROOT / "docker-compose.yml",
            {
                "POSTGRES_PASSWORD": "of-postgres",
                "REDIS_PASSWORD": "of-redis",
                "FLOWER_BASIC_AUTH": LOGIN,
                "RUNS_DIR": str(self.run_store.parent),
                "WORKER_CONCURRENCY": "1",
                "AFTERRUN_SWEEP_SECONDS": "2",
                "ANTHROPIC_API_KEY": "",
            },
        )
        self.topology = Topology(compose, folder, self._moved(folder), extra)
        self._undo = ExitStack()

    def send(self, run: dict[str, object], *arguments: object) -> None:
        """Publish as a foreign code base does: by the task's name alone, with nothing of ours installed."""
        app = Celery(broker=self.broker_url, set_as_current=False)
        with app.connection_for_write() as connection:
            app.send_task("index_run", args=arguments, kwargs={"run": run} if run else {}, connection=connection)

    def query(self, sql: str, *values: object) -> Any:
        """The first column of the first row."""
        with connect(self.database_url) as connection:
            row = connection.execute(sql.encode(), values).fetchone()
        return row[0] if row else None

    def queue_length(self) -> int:
        with Redis.from_url(self.broker_url) as client:
            return client.llen("celery")

    def flower(self, path: str, login: str | None = LOGIN) -> urllib3.BaseHTTPResponse:
        headers = urllib3.make_headers(basic_auth=login) if login else {}
        with urllib3.PoolManager() as http:
            return http.request("GET", f"http://127.0.0.1:{self.flower_port}{path}", headers=headers)

    def __enter__(self) -> Place:
        with connect(self._server_url) as connection:
            connection.execute(f"CREATE DATABASE {self._name}".encode())
        with Redis.from_url(self.broker_url) as client:
            client.flushdb()
        self._undo.callback(self._drop_database)
        self._undo.enter_context(self.topology)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _drop_database(self) -> None:
        with connect(self._server_url) as connection:
            connection.execute(f"DROP DATABASE {self._name} WITH (FORCE)".encode())

    def _moved(self, folder: Path) -> dict[str, str]:
        return {
            "0.0.0.0": "127.0.0.1",  # noqa: S104
            "=5555": f"={self.flower_port}",
            ":5555": f":{self.flower_port}",
            "/var/lib/afterrun": str(folder / "home"),
            "postgresql://afterrun:of-postgres@postgres:5432/afterrun": self.database_url,
            "redis://:of-redis@redis:6379/0": self.broker_url,
        }
