"""Names and routes, the application's own broker, and the publisher's bound against servers that do not answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from afterrun.errors import QueueError
from afterrun.models import Run
from afterrun.queue import INDEX_RUN, QUEUES, ROUTES, Publisher, celery_app, run_kwargs

SLACK = 0.05
"""Seconds above its timeout that a call may take."""


@contextmanager
def black_hole() -> Iterator[int]:
    """A port whose listener accepts nothing and whose queue of connections is full: a further connect hangs."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def silence() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def failure_of(call: Callable[[], None]) -> tuple[float, str]:
    started = time.monotonic()
    with pytest.raises(QueueError) as caught:
        call()
    return time.monotonic() - started, str(caught.value)


def test_every_task_has_its_queue() -> None:
    assert ROUTES == {
        "index_run": "index",
        "embed": "embed",
        "consolidate_cluster": "consolidate",
        "sweep": "maintenance",
        "find_clusters": "maintenance",
        "roll_up": "maintenance",
        "purge": "maintenance",
    }
    assert set(ROUTES.values()) | {"celery"} == set(QUEUES)


def test_the_arguments_of_a_run_are_shown_without_its_text() -> None:
    run = Run(repo="r" * 200, summary="the secret story", run_id="i" * 200, id=7, tags=("tagged",))
    kwargs, shown = run_kwargs(run)
    assert kwargs == {"run": run.to_message()}
    assert json.loads(json.dumps(kwargs)) == kwargs
    assert "story" not in shown
    assert "tagged" not in shown
    assert "id=7 16 chars" in shown
    assert len(shown) < 200


FOREIGN = """
from afterrun.queue import celery_app
app = celery_app("redis://ours:6379/3", visibility_timeout=900)
for connection in (app.connection_for_read(), app.connection_for_write(), app.connection(), app.pool.connection):
    print(connection.hostname, connection.virtual_host)
print(type(app.backend).__name__)
"""


def test_a_foreign_broker_in_the_environment_does_not_win() -> None:
    names = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
    environ = {**os.environ, **dict.fromkeys(names, "redis://foreign:6379/9")}
    done = subprocess.run([sys.executable, "-c", FOREIGN], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ours 3"] * 4 + ["DisabledBackend"]


def test_the_application_takes_json_only_and_bounds_its_sockets() -> None:
    app = celery_app("redis://nowhere:1/0", visibility_timeout=77)
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_ignore_result is True
    options = app.conf.broker_transport_options
    assert (options["visibility_timeout"], options["max_retries"], options["retry_on_timeout"]) == (77, 0, False)
    assert options["socket_timeout"] > 0
    assert options["socket_connect_timeout"] > 0


def test_a_refused_broker_is_told_at_once_and_without_its_password() -> None:
    publisher = Publisher(f"redis://user:hunter2@127.0.0.1:{refused_port()}/0", timeout=10)
    _, told = failure_of(lambda: publisher.publish(INDEX_RUN, {}))
    assert "Connection refused" in told
    assert "hunter2" not in told
    publisher.close(5)


@pytest.mark.parametrize("server", [black_hole, silence])
def test_a_broker_that_does_not_answer_costs_the_timeout_once(
    server: Callable[[], AbstractContextManager[int]],
) -> None:
    with server() as port:
        publisher = Publisher(f"redis://127.0.0.1:{port}/0", timeout=0.2)
        took, told = failure_of(lambda: publisher.publish(INDEX_RUN, {}))
        assert took < 0.2 + SLACK
        assert "did not answer within 0.20 s" in told
        took, told = failure_of(lambda: publisher.publish(INDEX_RUN, {}))
        assert took < SLACK
        assert "failed a moment ago" in told
        took, _ = failure_of(lambda: publisher.publish(INDEX_RUN, {}, timeout=0.1, force=True))
        assert 0.09 < took < 0.1 + SLACK
        took, _ = failure_of(lambda: publisher.ping(0.1))
        assert took < 0.1 + SLACK
    publisher.close(5)


def test_after_its_rest_the_publisher_tries_again() -> None:
    now = [0.0]
    publisher = Publisher(f"redis://127.0.0.1:{refused_port()}/0", timeout=10, rest=3, clock=lambda: now[0])
    assert "refused" in failure_of(lambda: publisher.publish(INDEX_RUN, {}))[1]
    now[0] = 2.9
    assert "a moment ago" in failure_of(lambda: publisher.publish(INDEX_RUN, {}))[1]
    now[0] = 3.1
    assert "refused" in failure_of(lambda: publisher.publish(INDEX_RUN, {}))[1]
    publisher.close(5)


def test_threads_that_meet_a_silent_broker_are_all_bounded() -> None:
    took: list[float] = []
    with black_hole() as port:
        publisher = Publisher(f"redis://127.0.0.1:{port}/0", timeout=0.2)
        threads = [
            threading.Thread(target=lambda: took.append(failure_of(lambda: publisher.publish(INDEX_RUN, {}))[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(took) == 8
    assert max(took) < 0.2 + 2 * SLACK
    publisher.close(10)


def test_an_url_that_nothing_can_read_is_an_error_without_its_parts() -> None:
    publisher = Publisher("redis://u:hunter2@[::1/0", timeout=10)
    assert "hunter2" not in failure_of(lambda: publisher.publish(INDEX_RUN, {}))[1]
    publisher.close(5)
