"""The main job on the real parts: Postgres, broker, Celery workers, beat, the packaged model, the Anthropic SDK."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import psutil
import pytest
from messages_api import MessagesApi, Reply, Request, merge_all, relate_all

from afterrun import hooks, schema
from afterrun.client import Memory
from afterrun.db import Database
from afterrun.embed import model_spec
from afterrun.local import Stack
from afterrun.models import Hit, Run
from afterrun.runs import RunStore
from afterrun.settings import Settings

ROOT = Path(__file__).parents[2]
T = TypeVar("T")

PARAPHRASES = [
    "Our main database is PostgreSQL 17.",
    "PostgreSQL 17 is our main database.",
    "The main database we use is PostgreSQL 17.",
    "We use PostgreSQL 17 as the main database.",
    "As our main database we use PostgreSQL 17.",
]


@pytest.fixture(scope="module")
def claude() -> Iterator[MessagesApi]:
    """A local server that speaks the Messages API; it merges what is said of PostgreSQL and nothing else."""

    def answer(request: Request) -> Reply:
        return merge_all(request) if "PostgreSQL" in str(request.memories) else relate_all(request)

    with MessagesApi(answer) as api:
        yield api


@pytest.fixture(scope="module")
def stack(claude: MessagesApi) -> Iterator[Stack]:
    """Everything that `afterrun up` starts, with short intervals, and with a key."""
    home = Path(tempfile.mkdtemp(prefix="afterrun-pipeline-"))
    settings = Settings(
        home=home,
        run_store=home / "memory.db",
        sweep_seconds=2,
        lease_seconds=4,
        judge_timeout=3,
        anthropic_api_key="key-of-the-test",
        anthropic_base_url=claude.url,
    )
    spec = model_spec(settings.model)

    def migrate(url: str) -> None:
        schema.migrate(url, spec)

    with Stack(settings, migrate=migrate) as stack:
        yield stack
    shutil.rmtree((home / "postgres").resolve(), ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def memory(stack: Stack) -> Iterator[Memory]:
    settings = replace(stack.settings, database_url=stack.database_url, redis_url=stack.redis_url)
    with Memory(settings=settings) as memory:
        yield memory


@pytest.fixture
def host(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a host program that the stack's owner runs."""
    monkeypatch.setenv("AFTERRUN_HOME", str(stack.home))


def until(condition: Callable[[], T], *, seconds: float = 120) -> T:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"nothing came of it within {seconds:.0f} s"
        time.sleep(0.05)
    return value


def kill(*names: str) -> None:
    """kill -9 the stack's processes whose command line has one of the names, their pool processes too."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie of the last kill, not yet reaped
            if any(name in " ".join(child.cmdline()) for name in names):
                child.kill()


def of_repo(database: Database, repo: str) -> list[str]:
    with database.transaction() as connection:
        rows = connection.execute(
            "SELECT source_key FROM memories WHERE project = %s AND source_key LIKE 'run:%%'", [repo]
        )
        return sorted(str(row[0]) for row in rows)


def pending(database: Database, repo: str) -> int:
    with database.transaction() as connection:
        row = connection.execute(
            "SELECT count(*) FROM chunks WHERE project = %s AND embedding IS NULL", [repo]
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_finished_run_is_found_by_words_and_by_meaning(host: None, memory: Memory) -> None:
    receipt = hooks.finish("acme/shop", "Replaced the payment provider: invoices now go through Adyen.")
    assert receipt.stored
    until(lambda: memory.search("Adyen invoices", min_results=0, only_project=True, project="acme/shop"))
    until(lambda: pending(memory.database, "acme/shop") == 0)
    (hit,) = memory.search("how are customers charged?", min_results=0, only_project=True, project="acme/shop")
    assert hit.vector is not None
    assert hit.source_type == "session_summary"


def test_a_store_is_indexed_completely_though_workers_are_killed_midway(stack: Stack, memory: Memory) -> None:
    words = random.Random(7)
    topics = ["cache", "login", "search", "billing", "export", "queue", "upload", "report"]
    summaries = [
        "" if number % 20 == 0 else f"Run {number} reworked the {words.choice(topics)} of module {number * 31}. " * 12
        for number in range(400)
    ]
    with RunStore(stack.home / "killed.db", home=stack.home, busy_timeout=5) as runs:
        saved = runs.save_many(
            [Run(repo="acme/killed", run_id=str(number), summary=text) for number, text in enumerate(summaries)]
        )
        expected = sorted(run.source_key for run in saved if run.summary)
        until(lambda: len(of_repo(memory.database, "acme/killed")) > 50)
        kill("worker@", "embed@")
        until(lambda: 0 < pending(memory.database, "acme/killed") < len(expected))
        kill("embed@", "worker@", "beat")
        until(lambda: not runs.unindexed() and not pending(memory.database, "acme/killed"))
        assert of_repo(memory.database, "acme/killed") == expected
        assert memory.index_runs(runs).seen == 0
        runs.save(Run(repo="acme/killed", summary="The one new run concerns the telescope."))
        assert memory.index_runs(runs).seen == 1
    hits = memory.search("Which run reworked module 3069?", project="acme/killed", limit=3)
    assert any("module 3069." in hit.content for hit in hits)


def test_a_run_that_was_never_announced_is_picked_up_by_the_sweep(host: None, stack: Stack, memory: Memory) -> None:
    port = f":{urlsplit(stack.redis_url).port}"
    (broker,) = [child for child in psutil.Process().children(recursive=True) if port in " ".join(child.cmdline())]
    broker.suspend()
    try:
        started = time.monotonic()
        receipt = hooks.finish("acme/frozen", "Finished while the broker was frozen.")
        assert time.monotonic() - started < 1
        assert receipt.stored
        assert not receipt.queued
    finally:
        broker.resume()
    until(lambda: of_repo(memory.database, "acme/frozen"))


def test_fix_4_five_paraphrases_become_one_canonical_fact(memory: Memory, claude: MessagesApi) -> None:
    ids = [memory.remember(text, project="acme/facts").id for text in PARAPHRASES]

    def active() -> list[Hit]:
        return memory.search("Which database?", project="acme/facts", only_project=True)

    until(lambda: len(active()) == 1)
    (hit,) = active()
    origins = hit.metadata["consolidated_from"]
    assert isinstance(origins, list)
    assert set(origins) == {str(one) for one in ids}
    assert {original.superseded_by for original in memory.get(*ids)} == {hit.id}
    assert claude.requests
    assert "key-of-the-test" not in str([request.body for request in claude.requests])


@pytest.mark.parametrize("broker", ["up", "down"])
def test_the_example_orchestrator_remembers_with_the_broker_up_and_down(
    stack: Stack, memory: Memory, broker: str
) -> None:
    repo = f"acme/example-{broker}"
    environ = {**os.environ, "AFTERRUN_HOME": str(stack.home)}
    if broker == "down":
        environ["REDIS_URL"] = "redis://127.0.0.1:1/0"
    command = [sys.executable, str(ROOT / "examples" / "orchestrator.py"), repo]
    first = subprocess.run([*command, "Add a login page"], env=environ, capture_output=True, text=True, timeout=60)
    assert first.returncode == 0, first.stderr
    assert "without any memory yet" in first.stdout
    assert "not queued" in first.stderr or broker == "up"
    second = subprocess.run([*command, "Test it"], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert "of memory at hand" in second.stdout
    until(lambda: len(of_repo(memory.database, repo)) == 2)


def test_a_worker_without_any_configuration_says_what_to_do(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("AFTERRUN", "DATABASE", "REDIS"))}
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "afterrun_workers.app", "worker"],
        env={**environ, "AFTERRUN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "afterrun up" in done.stderr


def test_the_stack_is_healthy_after_all_that(stack: Stack) -> None:
    until(lambda: all(stack.healthy().values()))
