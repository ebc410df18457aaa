"""`Memory`: every verb as a method, with what it needs opened on first use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal
from uuid import UUID

from afterrun import care, consolidate, index, recall, remember, repair, spool
from afterrun import settings as settings_module
from afterrun.care import Lineage, Status
from afterrun.chunking import Chunker
from afterrun.client.arguments import as_ids, as_time, search_filter
from afterrun.consolidate import Outcome
from afterrun.db import Database
from afterrun.embed import CachedEmbedder, Embedder, model_spec, query_embedder
from afterrun.errors import InputError, QueueError
from afterrun.index import Indexed
from afterrun.judge import Judge, choose_judge
from afterrun.models import GLOBAL_PROJECT, Cluster, Hit, MemoryRecord, NewMemory, Recall, Remembered
from afterrun.queue import CONSOLIDATE_CLUSTER, EMBED, Publisher
from afterrun.recall import DEFAULT_MIN_RESULTS, DEFAULT_TOKEN_BUDGET
from afterrun.runs import RunStore, registered
from afterrun.settings import Settings

log = logging.getLogger(__name__)


class Memory:
    """A memory in Postgres, as the settings say or at `database_url`.

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

    def remember(
        self,
        content: str,
        *,
        project: str = GLOBAL_PROJECT,
        source_type: str = "fact",
        collection: str = "memory",
        category: str | None = None,
        importance: float = 0.5,
        session: str | None = None,
        session_ordinal: int | None = None,
        metadata: Mapping[str, object] | None = None,
        created_at: str | datetime | None = None,
        wait: Literal["embedded"] | None = None,
        timeout: float = 30.0,
    ) -> Remembered:
        """Commit a note; it is found by its words when this returns.

        With `wait="embedded"` it is also found by its meaning, if a worker embeds it within `timeout` seconds; the
        result says whether. The exact repeat of a note reinforces it. Raises InputError, DatabaseError.
        """
        if wait not in (None, "embedded"):
            raise InputError(f"wait is None or 'embedded', not {wait!r}")
        note = NewMemory(
            content=content,
            project=project,
            source_type=source_type,
            collection=collection,
            category=category,
            importance=importance,
            session=session,
            session_ordinal=session_ordinal,
            metadata=metadata or {},
            created_at=None if created_at is None else as_time("created_at", created_at),
        )
        written = remember.remember(self.database, [note], self.chunker)[0]
        self.nudge(EMBED)
        if wait is None:
            return written
        return replace(written, embedded=remember.wait_until_embedded(self.database, written.id, timeout=timeout))

    def recall(
        self,
        query: str,
        *,
        project: str | None = None,
        only_project: bool = False,
        collections: Iterable[str] | None = None,
        source_types: Iterable[str] | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        min_results: int = DEFAULT_MIN_RESULTS,
        token_budget: int = DEFAULT_TOKEN_BUDGET,
        explain: bool = False,
    ) -> Recall:
        """What is worth knowing for `query`, best first, within `token_budget` tokens; see `recall.recall`.

        `project` prefers its own memories and hides none; `only_project` returns no others. `since` and `until` bound
        the time of a memory; naive times are UTC. Raises InputError, DatabaseError, EmbeddingError.
        """
        return recall.recall(
            self.database,
            query,
            self.embedder,
            search_filter(project, only_project, collections, source_types, since, until),
            tokens=self.chunker,
            min_results=min_results,
            token_budget=token_budget,
            explain=explain,
        )

    def search(
        self,
        query: str,
        *,
        project: str | None = None,
        only_project: bool = False,
        collections: Iterable[str] | None = None,
        source_types: Iterable[str] | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        limit: int = 20,
        min_results: int = DEFAULT_MIN_RESULTS,
    ) -> list[Hit]:
        """The raw list of hits, unpacked and whole. Raises as `recall`."""
        where = search_filter(project, only_project, collections, source_types, since, until)
        return recall.search(self.database, query, self.embedder, where, limit=limit, min_results=min_results)

    def search_plans(
        self,
        query: str,
        *,
        project: str | None = None,
        only_project: bool = False,
        collections: Iterable[str] | None = None,
        source_types: Iterable[str] | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        limit: int = 20,
        min_results: int = DEFAULT_MIN_RESULTS,
    ) -> list[str]:
        """How Postgres runs this `search`: a plan for each statement with times and buffers. Raises as `recall`."""
        where = search_filter(project, only_project, collections, source_types, since, until)
        return recall.search_plans(self.database, query, self.embedder, where, limit=limit, min_results=min_results)

    def get(self, *ids: UUID | str) -> list[MemoryRecord]:
        """The memories with these ids, in whatever state, newest first. Raises NotFoundError."""
        return care.get(self.database, as_ids(ids))

    def forget(self, *ids: UUID | str) -> list[UUID]:
        """Take memories out of recall for good; the ids that were not forgotten before. Raises NotFoundError."""
        return care.forget(self.database, as_ids(ids))

    def history(self, memory_id: UUID | str) -> Lineage:
        """Where a memory comes from and what became of it. Raises NotFoundError."""
        return care.history(self.database, as_ids([memory_id])[0])

    def status(self) -> Status:
        """How everything is: counts, what waits and since when, what failed. Raises DatabaseError."""
        return care.status(self.database, self.run_stores(), self.publisher)

    def index_runs(
        self,
        store: RunStore,
        *,
        full: bool = False,
        on_progress: Callable[[Indexed], None] = lambda done: None,
    ) -> Indexed:
        """Index a run store's unindexed runs (with `full` all of them); the workers embed them meanwhile."""

        def progress(done: Indexed) -> None:
            if done.added:
                self.nudge(EMBED)
            on_progress(done)

        return index.index_store(self.database, store, self.chunker, full=full, on_progress=progress)

    def find_clusters(self) -> list[tuple[UUID, ...]]:
        """Compare every memory that has not been compared since it changed; the clusters proposed now."""
        proposed: list[tuple[UUID, ...]] = []
        while True:
            found, looked_at = consolidate.find_clusters(self.database, self.chunker.spec.id, at_least=self.similarity)
            proposed += found
            if not looked_at:
                return proposed

    def waiting_clusters(self) -> list[tuple[UUID, ...]]:
        """The members of clusters that wait for this memory's judge."""
        return consolidate.waiting(self.database, self.judge.name)

    def consolidate(self, *memory_ids: UUID | str) -> Outcome:
        """Judge one cluster and merge what is the same in it. Raises InputError, JudgeRejectedError, DatabaseError."""
        outcome = consolidate.consolidate_cluster(
            self.database,
            as_ids(memory_ids),
            judge=self.judge,
            chunker=self.chunker,
            max_attempts=self.settings.max_attempts,
            lease=self.settings.lease_seconds,
        )
        if outcome.canonical:
            self.nudge(EMBED)
        return outcome

    def undo(self, consolidation: UUID | str) -> Cluster:
        """Take one merge back. Raises NotFoundError, ConflictError."""
        return consolidate.undo(self.database, as_ids([consolidation])[0])

    def undo_since(self, since: str | datetime) -> list[Cluster]:
        """Take back every merge since a time, newest first."""
        return consolidate.undo_since(self.database, as_time("since", since))

    def retry(self, *dead_letters: int) -> int:
        """Bring dead letters back, these or all; how many."""
        count = repair.retry(self.database, dead_letters or None, self.chunker)
        self.nudge(EMBED)
        return count

    def bring_in_spooled(self) -> int:
        """Put runs that were only spooled into their run stores; how many."""
        return spool.bring_in(self.settings.home)

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

    def nudge_clusters(self, clusters: Iterable[tuple[UUID, ...]]) -> None:
        """Have the workers judge these clusters."""
        for members in clusters:
            self.nudge(CONSOLIDATE_CLUSTER, memory_ids=[str(member) for member in members])

    def close(self) -> None:
        """Close connections; the next use opens them again."""
        self.database.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def chunker(self) -> Chunker:
        """The current embedding model's chunker, which also counts tokens."""
        return Chunker(self._embedder.spec if self._embedder else model_spec(self.settings.model))

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder of questions: the local stack's where one runs, else a model loaded here; repeats are cached."""
        return CachedEmbedder(self._embedder or self._query_embedder())

    def _query_embedder(self) -> Embedder:
        return query_embedder(self.chunker.spec, socket=self.settings.embed_socket, cache=self.settings.home / "models")

    @cached_property
    def judge(self) -> Judge:
        """Claude Haiku with a key, else the deterministic judge."""
        return self._judge or choose_judge(self.settings)

    @cached_property
    def publisher(self) -> Publisher | None:
        """The way to the workers, where a broker is configured."""
        if self.settings.redis_url is None:
            return None
        return Publisher(
            self.settings.redis_url,
            visibility_timeout=self.settings.visibility_timeout,
            timeout=self.settings.publish_timeout,
        )

    @property
    def similarity(self) -> float:
        """Cosine from which memories become candidates for merging."""
        return consolidate.cluster_similarity(self.chunker.spec.id, self.settings.cluster_similarity)
