"""The real parts that tests run on: one embedded Postgres and broker a session, a fresh database a test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from afterrun import schema
from afterrun.chunking import Chunker
from afterrun.client import Memory
from afterrun.db import Database, connect
from afterrun.embed import model_spec
from afterrun.local import Stack
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def servers() -> Iterator[Stack]:
    """A running Postgres and broker without workers; fast, since nothing need survive a power cut."""
    home = Path(tempfile.mkdtemp(prefix="afterrun-tests-"))
    stack = Stack(Settings(home=home, run_store=home / "memory.db"), migrate=lambda url: None, commands=())
    with stack:
        with connect(stack.database_url) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield stack
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def embedder() -> HashEmbedder:
    """A small deterministic embedder: texts that share words are near each other."""
    return HashEmbedder(path=model_spec(Settings.model).path)


@pytest.fixture(scope="session")
def template(servers: Stack, embedder: HashEmbedder) -> str:
    """The name of a migrated, empty database to copy."""
    name = "afterrun_template"
    with connect(servers.database_url) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    schema.migrate(of_database(servers.database_url, name), embedder.spec)
    return name


@pytest.fixture
def empty_database_url(servers: Stack) -> Iterator[str]:
    """A database without any schema."""
    yield from _database(servers.database_url, "template1")


@pytest.fixture
def database_url(servers: Stack, template: str) -> Iterator[str]:
    """A migrated, empty database."""
    yield from _database(servers.database_url, template)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with Database(database_url) as database:
        yield database


@pytest.fixture
def broker_url(servers: Stack) -> str:
    """A broker of the test's own: one of the server's numbered databases, emptied."""
    from redis import Redis

    url = urlunsplit(urlsplit(servers.redis_url)._replace(path=f"/{1 + next(_numbers) % 15}"))
    with Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def settings(tmp_path: Path, database_url: str, broker_url: str) -> Settings:
    return Settings(home=tmp_path, run_store=tmp_path / "memory.db", database_url=database_url, redis_url=broker_url)


@pytest.fixture
def memory(settings: Settings, embedder: HashEmbedder) -> Iterator[Memory]:
    """A memory on a database of its own; nothing embeds in the background."""
    with Memory(settings=settings, embedder=embedder) as memory:
        yield memory


@pytest.fixture
def chunker(embedder: HashEmbedder) -> Chunker:
    return Chunker(embedder.spec)


def of_database(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _database(server_url: str, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with connect(server_url) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield of_database(server_url, name)
    with connect(server_url) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
