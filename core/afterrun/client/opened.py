"""What every verb needs, opened on first use: the database, the model, the judge, the way to the workers."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Self
from weakref import WeakSet

from afterrun import settings as settings_module
from afterrun.budget import Budget
from afterrun.chunking import Chunker
from afterrun.client.once import once
from afterrun.db import Database
from afterrun.embed import CachedEmbedder, Embedder, model_spec, query_embedder
from afterrun.errors import QueueError
from afterrun.judge import Judge, choose_judge
from afterrun.queue import Publisher
from afterrun.runs import registered
from afterrun.settings import Settings

log = logging.getLogger(__name__)

_opened: WeakSet[Opened] = WeakSet()
_abandoned: list[object] = []


class Opened:
    """The parts behind a memory, as the settings say or at `database_url`.

    Connections, the model and the broker are opened on first use. Usable from threads; a forked child opens its own
    connections. Use it as a context manager, or call `close`.

    Raises:
        NotRunningError: no database is configured and no local stack runs.
    """

    def __init__(
        self,
        *,
        database_url: str | None = None,
        settings: Settings | None = None,
        embedder: Embedder | None = None,
        judge: Judge | None = None,
    ) -> None:
        settings = settings or settings_module.load()
        self.settings = replace(settings, database_url=database_url) if database_url else settings
        self.database = Database(
            self.settings.require_database(), timeout=self.settings.database_timeout, size=self.settings.pool_size
        )
        self._embedder = embedder
        self._judge = judge
        self.opening = threading.RLock()
        _opened.add(self)

    def run_stores(self) -> list[Path]:
        """Every run store that this host knows: registered ones and those of the settings."""
        known = [*registered(self.settings.home), *self.settings.run_stores]
        return list(dict.fromkeys(path for path in (*known, self.settings.run_store) if path.is_file()))

    def nudge(self, task: str, **kwargs: object) -> bool:
        """Tell the workers that there is work; whether the broker took it. The sweep finds it anyway."""
        if self.publisher is None:
            return False
        try:
            self.publisher.publish(task, kwargs)
        except QueueError as error:
            log.info("the workers are not told of new work (%s); the sweep will find it", error)
            return False
        return True

    def close(self) -> None:
        """Close connections; the next use opens them again."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @once
    def chunker(self) -> Chunker:
        """The current embedding model's chunker, which also counts tokens."""
        return Chunker(self._embedder.spec if self._embedder else model_spec(self.settings.model))

    @once
    def embedder(self) -> Embedder:
        """The embedder of questions: the local stack's where one runs, else a model loaded here; repeats are cached."""
        return CachedEmbedder(self._embedder or self._query_embedder())

    def _query_embedder(self) -> Embedder:
        return query_embedder(self.chunker.spec, socket=self.settings.embed_socket, cache=self.settings.home / "models")

    @once
    def judge(self) -> Judge:
        """Claude Haiku with a key, else the deterministic judge."""
        return self._judge or choose_judge(self.settings)

    @property
    def budget(self) -> Budget:
        """What the language model may cost."""
        return Budget.of(self.settings)

    @once
    def publisher(self) -> Publisher | None:
        """The way to the workers, where a broker is configured."""
        if self.settings.redis_url is None:
            return None
        return Publisher(
            self.settings.redis_url,
            visibility_timeout=self.settings.visibility_timeout,
            timeout=self.settings.publish_timeout,
        )


def _after_fork() -> None:
    # Another thread may have held a lock, of this object or in its model: the child loads a model of its own.
    for memory in list(_opened):
        memory.opening = threading.RLock()
        _abandoned.append(vars(memory).pop("embedder", None))


os.register_at_fork(after_in_child=_after_fork)
