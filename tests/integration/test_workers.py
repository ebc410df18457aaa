"""What a real worker does with messages that no program of ours sends: none stops it, is lost or is shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pytest
from celery import Celery
from compose import until
from redis import Redis

from afterrun import schema
from afterrun.db import connect
from afterrun.embed import model_spec
from afterrun.local import Stack
from afterrun.models import Run
from afterrun.runs import RunStore
from afterrun.settings import Settings

MARKER: Final = "quartzzeppelin"
"""A word of every text here: where it is shown, memory text is shown."""


class Worker:
    """A worker process of one child on the queues of every public task, and what a test asks of it."""

    def __init__(self, home: Path, database_url: str, broker_url: str) -> None:
        self.home = home
        self.database_url = database_url
        self.broker_url = broker_url
        self._log = home / "worker.log"
        ours = {"AFTERRUN_HOME": str(home), "DATABASE_URL": database_url, "REDIS_URL": broker_url}
        programs = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.defpath)), "HOME": str(home)}
        command = "-m celery -A afterrun_workers.app worker -c 1 -Q index,celery,consolidate -l INFO --without-gossip"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command.split()],
                env={**programs, **ours, "ANTHROPIC_API_KEY": ""},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, task: str, *arguments: object, **keywords: object) -> None:
        """Publish a task by its name, as a foreign code base does."""
        app = Celery(broker=self.broker_url, set_as_current=False)
        with app.connection_for_write() as connection:
            app.send_task(task, args=arguments, kwargs=keywords, connection=connection, queue="celery")

    def send_raw(self, body: str, headers: Mapping[str, object] | None = None) -> None:
        """Publish a message of any body as JSON."""
        app = Celery(broker=self.broker_url, set_as_current=False)
        with app.connection_for_write() as connection, connection.Producer() as producer:
            producer.publish(
                body,
                routing_key="celery",
                content_type="application/json",
                content_encoding="utf-8",
                headers=dict(headers or {}),
            )

    def value(self, query: str, *parameters: object) -> Any:
        """The first column of the query's only row, None without a row."""
        with connect(self.database_url) as connection:
            row = connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def log(self) -> str:
        """What the worker has written so far, while it lives."""
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8")
        return self._log.read_text(encoding="utf-8")

    def logs(self, words: str) -> bool:
        """Whether the worker, which lives, has written these words."""
        return words in self.log()

    def is_idle(self) -> bool:
        """Whether no message waits or is at work."""
        self.log()
        with Redis.from_url(self.broker_url) as client:
            return not client.llen("celery") and not client.hlen("unacked")

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def worker(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    database_url = urlunsplit(urlsplit(servers.database_url)._replace(path="/foreign_messages"))
    with connect(servers.database_url) as connection:
        connection.execute("CREATE DATABASE foreign_messages")
    schema.migrate(database_url, model_spec(Settings.model))
    broker_url = urlunsplit(urlsplit(servers.redis_url)._replace(path="/0"))
    with Redis.from_url(broker_url) as client:
        client.flushdb()
    worker = Worker(tmp_path_factory.mktemp("worker"), database_url, broker_url)
    until(lambda: worker.logs(" ready."))
    yield worker
    worker.stop()
    with connect(servers.database_url) as connection:
        connection.execute("DROP DATABASE foreign_messages WITH (FORCE)")


@pytest.fixture(autouse=True)
def no_text_is_shown(worker: Worker) -> Iterator[None]:
    yield
    assert MARKER not in worker.log()


def metadata(worker: Worker, run_id: str) -> Any:
    """The metadata of the memory that the run becomes."""
    query = "SELECT metadata FROM memories WHERE metadata ->> 'run_id' = %s"
    return until(lambda: worker.value(query, run_id) if worker.log() else None)


def buried(worker: Worker) -> int:
    return int(worker.value("SELECT count(*) FROM dead_letters"))


def nested(levels: int) -> object:
    value: object = MARKER
    for level in range(levels):
        value = [value] if level % 2 else {"deeper": value}
    return value


@pytest.mark.parametrize("levels", [100, 500, 900])
def test_a_run_is_indexed_without_what_is_nested_too_deep(worker: Worker, levels: int) -> None:
    run_id = f"deep-{levels}"
    run = {"repo": "deep", "run_id": run_id, "summary": f"{MARKER} {levels}", "deep": nested(levels), "build": 7}
    worker.send("index_run", run=run)
    found = metadata(worker, run_id)
    assert found["build"] == 7
    assert "[too deep]" in json.dumps(found["deep"])
    until(worker.is_idle)


def test_an_old_style_message_nested_too_deep_is_indexed_too(worker: Worker) -> None:
    run = {"repo": "deep", "run_id": "old-style", "summary": f"{MARKER} old", "deep": nested(500)}
    worker.send_raw(json.dumps({"task": "index_run", "id": str(uuid.uuid4()), "args": [], "kwargs": {"run": run}}))
    assert "[too deep]" in json.dumps(metadata(worker, "old-style")["deep"])
    until(worker.is_idle)


def test_a_run_is_taken_flat_by_position_and_beside_other_keywords(worker: Worker) -> None:
    worker.send("index_run", repo="flat", run_id="flat", summary=f"{MARKER} flat", build=7)
    worker.send("index_run", {"repo": "flat", "run_id": "positional", "summary": f"{MARKER} positional"})
    worker.send("index_run", run={"repo": "flat", "run_id": "beside", "summary": f"{MARKER} beside"}, priority=MARKER)
    assert metadata(worker, "flat")["build"] == 7
    assert "priority" not in metadata(worker, "beside")
    assert metadata(worker, "positional")["repo"] == "flat"
    assert worker.logs("index_run(run=…) takes no other keywords")


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {}),
        (("billing", f"{MARKER} as text"), {}),
        ((7,), {"summary": MARKER}),
        ((), {"run": f"{MARKER} as text"}),
        ((), {"run": None}),
        ((), {"text": MARKER}),
    ],
)
def test_what_is_no_run_goes_to_the_dead_letters(
    worker: Worker, arguments: tuple[object, ...], keywords: dict[str, object]
) -> None:
    before = buried(worker)
    worker.send("index_run", *arguments, **keywords)
    until(lambda: buried(worker) == before + 1 if worker.log() else None)


@pytest.mark.parametrize(
    "keywords",
    [{}, {"memory_ids": [MARKER]}, {"memory_ids": [str(uuid.uuid4())], "now": True}, {"memory_ids": MARKER}],
)
def test_a_cluster_of_no_memories_is_one_warning(worker: Worker, keywords: dict[str, object]) -> None:
    before = len(worker.log())
    worker.send("consolidate_cluster", **keywords)
    until(lambda: "succeeded in" in worker.log()[before:])
    assert worker.log()[before:].count("consolidate_cluster takes memory_ids, two or more ids of memories") == 1
    assert "Traceback" not in worker.log()[before:]


def test_contents_of_messages_that_celery_cannot_use_are_not_logged(worker: Worker) -> None:
    task = {"task": "index_run", "id": str(uuid.uuid4())}
    text = f"{MARKER} \N{HEAVY CHECK MARK}"
    worker.send("no.such_task", text, text=text)
    until(lambda: worker.logs("Received unregistered task of type 'no.such_task'; its contents are not logged"))
    worker.send_raw(f'{{"not JSON {text}', task)
    worker.send_raw(json.dumps({"note": text}))
    until(lambda: worker.logs("Can't decode message body (DecodeError); its contents are not logged"))
    until(lambda: worker.logs("Received and deleted unknown message"))
    worker.send_raw(json.dumps([[], {}, {}]), {**task, "eta": text})
    until(lambda: worker.logs("Received invalid task message (InvalidTaskError); its contents are not logged"))
    until(worker.is_idle)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (f'"{MARKER}"', {"id": "1"}),
        ("5", {"id": "1"}),
        ("null", {"id": "1"}),
        ("[[], {}]", {"id": "1"}),
        (f'{{"text": "{MARKER}"}}', {"id": "1"}),
        (f'[["{MARKER}"], "{MARKER}", {{}}]', {"id": "1"}),
        (f'[{{"text": "{MARKER}"}}, [], null]', {"id": "1"}),
        (f'[["{MARKER}"], {{}}, "{MARKER}"]', {"id": "1"}),
        (f'[["{MARKER}"], {{}}, {{}}]', {}),
        (f'{{"args": "{MARKER}", "kwargs": {{}}}}', {"id": "1"}),
        (f"[{'[' * 5000}", {"id": "1"}),
    ],
)
def test_a_message_of_another_shape_is_refused_and_the_worker_goes_on(
    worker: Worker, body: str, headers: dict[str, str]
) -> None:
    before = len(worker.log())
    worker.send_raw(body, {"task": "index_run", **headers})
    until(lambda: "its contents are not logged" in worker.log()[before:])
    until(worker.is_idle)


@pytest.mark.parametrize(
    "options",
    [{"timelimit": 5}, {"timelimit": ["x", "y"]}, {"expires": []}, {"eta": ""}, {"stamped_headers": 7, "stamps": 7}],
)
def test_a_run_is_indexed_without_options_that_celery_cannot_use(worker: Worker, options: dict[str, object]) -> None:
    new, old = str(uuid.uuid4()), str(uuid.uuid4())
    task = {"task": "index_run", **options}
    run = {"repo": "options", "summary": MARKER}
    worker.send_raw(json.dumps([[], {"run": {**run, "run_id": new}}, None]), {**task, "id": new})
    worker.send_raw(json.dumps({**task, "id": old, "args": [], "kwargs": {"run": {**run, "run_id": old}}}))
    assert metadata(worker, new)
    assert metadata(worker, old)
    until(worker.is_idle)


def test_runs_are_rolled_up(worker: Worker) -> None:
    with RunStore(worker.home / "memory.db") as store:
        store.save_many([Run(repo="rolled", summary=f"Part {n} of {MARKER} is built.") for n in range(10)])
    worker.send("roll_up")
    query = "SELECT metadata FROM memories WHERE project = 'rolled' AND metadata ->> 'tier' = 'monthly'"
    found: Any = until(lambda: worker.value(query) if worker.log() else None)
    assert found["rolled_up"] == list(range(1, 11))
    assert worker.value("SELECT count(*) FROM heartbeats WHERE task = 'roll_up'") == 1
    worker.send("roll_up")
    until(worker.is_idle)
    assert worker.value("SELECT count(*) FROM memories WHERE project = 'rolled'") == 1


def test_a_run_waits_for_a_database_that_is_not_migrated(worker: Worker) -> None:
    with connect(worker.database_url) as connection:
        connection.execute("ALTER TABLE embedding_models RENAME TO hidden_models")
        try:
            worker.send("index_run", run={"repo": "waits", "summary": f"Finished too early, {MARKER}."})
            until(lambda: worker.logs("the task goes back to its queue"))
        finally:
            connection.execute("ALTER TABLE hidden_models RENAME TO embedding_models")
    until(lambda: worker.value("SELECT count(*) FROM memories WHERE project = 'waits'") == 1)
