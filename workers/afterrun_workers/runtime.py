"""What a worker process holds: one `Memory`, opened in the child that uses it, and its embedder.

Nothing is loaded before the first task: a model that ran in the parent hangs in a forked child, and a slow start of a
replacement child is killed as dead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from celery.exceptions import Reject
from celery.utils.log import get_task_logger

from afterrun.client import Memory
from afterrun.embed import Embedder, load_embedder
from afterrun.errors import DatabaseError, EmbeddingError
from afterrun_workers.app import settings

log = get_task_logger(__name__)

_PAUSE_WHEN_DOWN: Final = 2.0


def memory() -> Memory:
    """This process's memory."""
    return _memory(os.getpid())


def embedder() -> Embedder:
    """This process's embedding model, loaded on first use."""
    return _embedder(os.getpid())


@contextmanager
def requeued_while_down() -> Iterator[None]:
    """Put the message back when Postgres or the model cannot take its run: it may be the only copy that there is.

    A database that is down, not migrated, without rights or of another model is nothing that the run could help.
    The pause keeps a worker from turning in circles; a countdown would pile the queue up in the worker instead.
    """
    try:
        yield
    except (DatabaseError, EmbeddingError) as error:
        log.warning("the task goes back to its queue: %s", error)
        time.sleep(_PAUSE_WHEN_DOWN)
        raise Reject(str(error), requeue=True) from error


@cache
def _memory(pid: int) -> Memory:
    return Memory(settings=settings)


@cache
def _embedder(pid: int) -> Embedder:
    return load_embedder(_memory(pid).chunker.spec, cache=settings.home / "models")
