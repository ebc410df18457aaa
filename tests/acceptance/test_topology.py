"""The production topology for real: every service of ours from docker-compose.yml, as processes on embedded servers."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pytest
from celery import Celery
from compose import DEFAULT_GRACE, ROOT, Compose, Topology, until
from redis import Redis

from afterrun import finish
from afterrun.db import connect
from afterrun.local import Stack
from afterrun.queue import QUEUES
from afterrun.runs import RunStore

MARKER: Final = "quartzzeppelin"
"""A word of every summary here: where it is shown, memory text is shown."""
LOGIN: Final = "ops:letmein"
LONG_RUNNING: Final = ("worker", "upkeep", "embed", "beat", "flower")
NOWHERE: Final = "redis://127.0.0.1:1/0"
"""A foreign project's broker: nothing listens there."""


class Place:
    """A topology on a database and a broker, and what a test asks of them."""

    def __init__(
        self, folder: Path, database_url: str, broker_url: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.database_url = database_url
        self.broker_url = broker_url
        self.run_store = folder / "runs" / "memory.db"
        self.run_store.parent.mkdir()
        (folder / "home" / "beat").mkdir(parents=True)  # the image has it, for the volume
        self._flower_port = _free_port()
        compose = Compose(ROOT / "docker-compose.yml", self._variables())
        self.topology = Topology(compose, folder, self._moved(folder), environment)

    def send(self, *arguments: object, **keywords: object) -> None:
        """Publish `index_run` as a foreign code base does: by the task's name, to the default queue."""
        app = Celery(broker=self.broker_url, set_as_current=False)
        with app.connection_for_write() as connection:
            app.send_task("index_run", args=arguments, kwargs=keywords, connection=connection)

    def value(self, query: str, *parameters: object) -> Any:
        """The first column of the query's only row."""
        with connect(self.database_url) as connection:
            row = connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def queued(self) -> int:
        """Messages that wait in the default queue."""
        with Redis.from_url(self.broker_url) as client:
            return int(client.llen("celery"))

    def is_idle(self) -> bool:
        """Whether no message waits or is at work."""
        with Redis.from_url(self.broker_url) as client, client.pipeline() as pipeline:
            for queue in QUEUES:
                pipeline.llen(queue)
            return not any(pipeline.hlen("unacked").execute())

    def flower(self, path: str, login: str | None = LOGIN) -> tuple[int, str]:
        """The status and the body of Flower's answer."""
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self._flower_port, timeout=30)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    @contextmanager
    def memories_locked(self) -> Iterator[None]:
        """Hold every `index_run` in the middle of its work."""
        with connect(self.database_url) as connection, connection.transaction():
            connection.execute("LOCK TABLE memories IN ACCESS EXCLUSIVE MODE")
            yield

    def is_held(self) -> bool:
        """Whether a task waits for the lock."""
        return bool(self.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    def _variables(self) -> dict[str, str]:
        return {
            "POSTGRES_PASSWORD": "of-postgres",
            "REDIS_PASSWORD": "of-redis",
            "FLOWER_BASIC_AUTH": LOGIN,
            "RUNS_DIR": str(self.run_store.parent),
            "WORKER_CONCURRENCY": "1",
            "AFTERRUN_SWEEP_SECONDS": "2",
            "ANTHROPIC_API_KEY": "",
        }

    def _moved(self, folder: Path) -> dict[str, str]:
        return {
            "--address=0.0.0.0": "--address=127.0.0.1",
            "=5555": f"={self._flower_port}",
            ":5555": f":{self._flower_port}",
            "/var/lib/afterrun": str(folder / "home"),
            "postgresql://afterrun:of-postgres@postgres:5432/afterrun": self.database_url,
            "redis://:of-redis@redis:6379/0": self.broker_url,
        }


@pytest.fixture(scope="module")
def place(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    broker_url = _of_server(servers.redis_url, "0")
    with Redis.from_url(broker_url) as client:
        client.flushdb()
    with _database(servers.database_url, "topology") as database_url:
        place = Place(tmp_path_factory.mktemp("topology"), database_url, broker_url)
        with place.topology:
            yield place


@pytest.fixture(scope="module")
def migrations(place: Place) -> list[subprocess.CompletedProcess[str]]:
    """What came of running the migration twice."""
    return [place.topology.run("migrate") for _ in range(2)]


@pytest.fixture
def services(place: Place, migrations: object) -> Place:
    """All long-running services, healthy; those that a test has stopped are started again."""
    place.topology.start(*LONG_RUNNING)
    return place


@pytest.fixture
def foreign_host(tmp_path: Path, empty_database_url: str, broker_url: str) -> Iterator[Place]:
    """A place of the test's own, migrated, whose environment belongs to another Celery project."""
    environment = {"CELERY_BROKER_URL": NOWHERE, "CELERY_RESULT_BACKEND": NOWHERE}
    place = Place(tmp_path, empty_database_url, broker_url, environment)
    with place.topology:
        assert place.topology.run("migrate").returncode == 0
        yield place


def test_the_migration_ends_well_and_may_run_again(migrations: list[subprocess.CompletedProcess[str]]) -> None:
    assert [done.returncode for done in migrations] == [0, 0], migrations
    assert migrations[0].stdout != migrations[1].stdout


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_a_running_service_passes_its_health_check(services: Place, service: str) -> None:
    check = services.topology.check(service)
    assert check.returncode == 0, check.stdout + check.stderr


def test_a_run_sent_by_task_name_alone_is_recalled_by_its_meaning(services: Place) -> None:
    services.send(run=run("billing", "Customers are now charged in the currency of their own country"))
    services.send(run=run("billing", "The logo on the start page was drawn again, with rounder letters"))
    services.send(run=run("billing", "Old backups are removed from the disk after ninety days"))
    until(lambda: embedded(services) >= 3)
    found = services.topology.call(
        "worker", "afterrun", "search", "which money does a foreign buyer pay with", "--json"
    )
    assert found.returncode == 0, found.stderr
    assert "currency" in json.loads(found.stdout)[0]["content"]


def test_a_run_finished_on_the_host_is_marked_in_its_run_store(
    services: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_a_run(services, "marked", monkeypatch)
    with RunStore(services.run_store) as store:
        until(lambda: not store.unindexed())
    assert services.value("SELECT count(*) FROM memories WHERE metadata->>'run_id' = 'marked'") == 1


def test_beat_has_the_sweep_run_again_and_again(services: Place) -> None:
    beats = "SELECT succeeded_at FROM heartbeats WHERE task = 'sweep'"
    first = until(lambda: services.value(beats))
    until(lambda: services.value(beats) > first)


def test_flower_asks_for_its_login(services: Place) -> None:
    assert services.flower("/api/tasks", login=None)[0] == 401
    assert services.flower("/api/tasks", login="ops:wrong")[0] == 401
    assert services.flower("/api/tasks")[0] == 200


def test_flower_shows_what_ran_and_no_memory_text(services: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    finish_a_run(services, "from the hook", monkeypatch)
    services.send(run=run("from-keywords", "A foreign sender describes nothing"))
    services.send(run("from-arguments", "A foreign sender with a positional argument"))

    def shown() -> bool:
        done = " ".join(f"{task['args']} {task['kwargs']}" for task in tasks(services) if task["state"] == "SUCCESS")
        return all(name in done for name in ("from the hook", "from-keywords", "from-arguments"))

    until(shown)
    for path in ("/api/tasks", "/api/workers?refresh=1", "/tasks", "/metrics"):
        assert MARKER not in services.flower(path)[1].lower(), path
    for service in LONG_RUNNING:
        assert MARKER not in services.topology.log(service).lower(), service


def test_a_task_at_work_is_inspected_without_its_memory_text(services: Place) -> None:
    inspect = ["celery", "--app=afterrun_workers.app", "inspect", "active", "--json", "--timeout=20"]
    with services.memories_locked():
        services.send(run=run("inspected", "A summary that is just being indexed"))
        until(services.is_held)
        seen = services.topology.call("worker", *inspect, f"--destination=worker@{socket.gethostname()}")
    assert seen.returncode == 0, seen.stderr
    assert "repo='inspected'" in seen.stdout
    assert MARKER not in seen.stdout.lower()


def test_flower_leaves_nothing_on_its_read_only_file_system(services: Place) -> None:
    assert list(services.topology.workplace("flower").iterdir()) == []


def test_idle_services_stop_at_once_and_in_good_order(services: Place) -> None:
    stopped = {"beat": services.topology.stop("beat")}
    until(services.is_idle)
    stopped |= {service: services.topology.stop(service) for service in ("worker", "upkeep", "embed", "flower")}
    assert {service: code for service, (code, _) in stopped.items()} == dict.fromkeys(stopped, 0)
    assert max(seconds for _, seconds in stopped.values()) < DEFAULT_GRACE, stopped


def test_the_broker_of_a_foreign_project_does_not_win(foreign_host: Place) -> None:
    foreign_host.topology.start("worker", "beat", "flower")
    foreign_host.send(run=run("foreign", "The environment named another broker"))
    until(lambda: foreign_host.value("SELECT count(*) FROM memories") == 1)
    until(lambda: f"worker@{socket.gethostname()}" in foreign_host.flower("/api/workers?refresh=1")[1])
    logs = "".join(foreign_host.topology.log(service) for service in ("worker", "beat", "flower"))
    assert NOWHERE not in logs


@pytest.mark.slow
def test_a_worker_that_is_stopped_lets_a_task_end(foreign_host: Place) -> None:
    foreign_host.topology.start("worker")
    with foreign_host.memories_locked():
        foreign_host.send(run=run("stopped", "The task ends while the worker waits for it"))
        until(foreign_host.is_held)
        foreign_host.topology.ask_to_stop("worker")
        until(lambda: "Soft Shutdown" in foreign_host.topology.log("worker"))
    code, _ = foreign_host.topology.wait("worker")
    assert code == 0, foreign_host.topology.log("worker")
    assert foreign_host.value("SELECT count(*) FROM memories") == 1


@pytest.mark.slow
def test_a_task_that_does_not_end_before_its_worker_must_goes_back_to_the_queue(foreign_host: Place) -> None:
    foreign_host.topology.start("worker")
    with foreign_host.memories_locked():
        foreign_host.send(run=run("stopped", "The task is put back, and the next worker does it"))
        until(foreign_host.is_held)
        code, _ = foreign_host.topology.stop("worker")
    assert code == 0, foreign_host.topology.log("worker")
    assert foreign_host.queued() == 1
    foreign_host.topology.start("worker")
    until(lambda: foreign_host.value("SELECT count(*) FROM memories") == 1)
    assert foreign_host.queued() == 0


def run(repo: str, text: str) -> dict[str, object]:
    """A run as its message has it."""
    return {"repo": repo, "summary": f"{text}. {MARKER.capitalize()}."}


def finish_a_run(place: Place, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a pipeline on the host finish a run, and its message reach the broker."""
    monkeypatch.setenv("AFTERRUN_HOME", str(place.run_store.parent / "host"))
    monkeypatch.setenv("REDIS_URL", place.broker_url)
    summary = f"A pipeline on the host has ended: {run_id}, {MARKER}."
    until(lambda: finish("pipeline", summary, run_id=run_id, store=place.run_store).queued)


def embedded(place: Place) -> int:
    """How many memories have all their vectors."""
    return int(place.value("SELECT count(DISTINCT memory_id) FROM chunks WHERE embedding IS NOT NULL"))


def tasks(place: Place) -> list[dict[str, Any]]:
    """The `index_run` tasks that Flower knows."""
    status, body = place.flower("/api/tasks?taskname=index_run")
    assert status == 200
    return list(json.loads(body).values())


@contextmanager
def _database(server_url: str, name: str) -> Iterator[str]:
    with connect(server_url) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield _of_server(server_url, name)
    with connect(server_url) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _of_server(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
