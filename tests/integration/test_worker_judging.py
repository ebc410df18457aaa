"""A real worker whose key is refused: it says so, asks once, and every cluster waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from compose import until
from messages_api import MessagesApi, error

from afterrun import schema
from afterrun.client import Memory
from afterrun.embed import model_spec
from afterrun.settings import Settings
from afterrun.store import Store

KEY = "sk-ant-test-" + "k" * 30

pytestmark = pytest.mark.slow


@contextmanager
def worker(home: Path, memory: Memory, url: str) -> Iterator[Path]:
    """A worker of the queue consolidate; gives its log."""
    log = home / "worker.log"
    environ = {**memory.settings.environment(), "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}
    programs = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.defpath)), "HOME": str(home)}
    command = "-m celery -A afterrun_workers.app worker -c 1 -Q consolidate -l INFO --without-gossip"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command.split()], env={**programs, **environ}, cwd=home, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: " ready." in log.read_text(encoding="utf-8"))
        yield log
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_refused_key_is_asked_once_and_all_clusters_wait(
    tmp_path: Path, empty_database_url: str, broker_url: str
) -> None:
    schema.migrate(empty_database_url, model_spec(Settings.model))
    settings = Settings(
        home=tmp_path, run_store=tmp_path / "memory.db", database_url=empty_database_url, redis_url=broker_url
    )
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with MessagesApi(error(401, "authentication_error", f"invalid {KEY}")) as api, Memory(settings=settings) as memory:
        clusters = []
        for number in range(5):
            ids = [
                memory.remember(f"Port {port} of service {number}.", created_at=begin + timedelta(days=port)).id
                for port in (1, 2)
            ]
            with memory.database.transaction() as connection:
                Store(connection).propose(ids, collection="memory", project="global")
            clusters.append(tuple(ids))
        with worker(tmp_path, memory, api.url) as log:
            memory.nudge_clusters(clusters)
            until(lambda: log.read_text(encoding="utf-8").count("cluster of 2 memories: skipped") == 4)
            said = log.read_text(encoding="utf-8")
        assert "check ANTHROPIC_API_KEY" in said
        assert KEY not in said
        assert "Traceback" not in said
        assert len(api.requests) == 1
        assert memory.status().paused == {"key": 5}
        assert memory.status().clusters == {"waiting": 5}
