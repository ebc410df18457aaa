"""`Memory`: every verb as a method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal
from uuid import UUID

from afterrun import care, index, recall, remember, repair, spool, timeline
from afterrun.care import Lineage, Status
from afterrun.client.archives import Archives
from afterrun.client.arguments import as_ids, as_names, as_time, search_filter
from afterrun.client.gathering import Gathering
from afterrun.client.sessions import Sessions
from afterrun.client.upkeep import Upkeep
from afterrun.errors import InputError
from afterrun.index import Indexed
from afterrun.models import GLOBAL_PROJECT, Hit, MemoryRecord, NewMemory, Recall, Remembered
from afterrun.queue import EMBED
from afterrun.recall import DEFAULT_MIN_RESULTS, DEFAULT_TOKEN_BUDGET
from afterrun.runs import RunStore
from afterrun.timeline import DEFAULT_AROUND, Timeline


class Memory(Upkeep, Sessions, Archives, Gathering):
    """A memory in Postgres, as the settings say or at `database_url`: every verb as a method.

    Connections, the model and the broker are opened on first use. Usable from threads; a forked child opens its own
    connections. Use it as a context manager, or call `close`.

    Raises:
        NotRunningError: no database is configured and no local stack runs.
    """

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
        result says whether. What is remembered already, word for word or as recall gave it, is counted there instead:
        `created` is False then, and the id that memory's. Raises InputError, DatabaseError.
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
        projects: Iterable[str] | None = None,
        min_results: int = DEFAULT_MIN_RESULTS,
        token_budget: int = DEFAULT_TOKEN_BUDGET,
        explain: bool = False,
    ) -> Recall:
        """What is worth knowing for `query`, best first, within `token_budget` tokens; see `recall.recall`.

        `project` prefers its own memories and hides none; `only_project` returns no others, `projects` none but those
        of a list. `since` and `until` bound the time of a memory; naive times are UTC. Raises InputError,
        DatabaseError, EmbeddingError.
        """
        return recall.recall(
            self.database,
            query,
            self.embedder,
            search_filter(project, only_project, collections, source_types, since, until, projects),
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
        projects: Iterable[str] | None = None,
        limit: int = 20,
        min_results: int = DEFAULT_MIN_RESULTS,
    ) -> list[Hit]:
        """The raw list of hits, unpacked and whole. Raises as `recall`."""
        where = search_filter(project, only_project, collections, source_types, since, until, projects)
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
        projects: Iterable[str] | None = None,
        limit: int = 20,
        min_results: int = DEFAULT_MIN_RESULTS,
    ) -> list[str]:
        """How Postgres runs this `search`: a plan for each statement with times and buffers. Raises as `recall`."""
        where = search_filter(project, only_project, collections, source_types, since, until, projects)
        return recall.search_plans(self.database, query, self.embedder, where, limit=limit, min_results=min_results)

    def get(self, *ids: UUID | str) -> list[MemoryRecord]:
        """The memories with these ids, in whatever state, newest first. Raises NotFoundError."""
        return care.get(self.database, as_ids(ids))

    def find(self, *ids: UUID | str, projects: Iterable[str] | None = None) -> list[MemoryRecord]:
        """Those of these memories that exist, as `get` gives them; with `projects` only those of a list."""
        return care.find(self.database, as_ids(ids), projects=as_names("projects", projects))

    def timeline(
        self,
        anchor: UUID | str,
        *,
        before: int = DEFAULT_AROUND,
        after: int = DEFAULT_AROUND,
        in_session: bool = False,
        projects: Iterable[str] | None = None,
    ) -> Timeline:
        """What happened around a memory, in its project or session; see `timeline.timeline`. Raises NotFoundError."""
        return timeline.timeline(
            self.database,
            as_ids([anchor])[0],
            before=before,
            after=after,
            in_session=in_session,
            projects=as_names("projects", projects),
        )

    def forget(self, *ids: UUID | str) -> list[UUID]:
        """Take memories out of recall for good; the ids that were not forgotten before. Raises NotFoundError."""
        return care.forget(self.database, as_ids(ids))

    def history(self, memory_id: UUID | str) -> Lineage:
        """Where a memory comes from and what became of it. Raises NotFoundError."""
        return care.history(self.database, as_ids([memory_id])[0])

    def status(self) -> Status:
        """How everything is: counts, what waits and since when, what failed. Raises DatabaseError."""
        return care.status(self.database, self.run_stores(), self.publisher, self.budget)

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

    def retry(self, *dead_letters: int) -> int:
        """Bring dead letters back, these or all; how many."""
        count = repair.retry(self.database, dead_letters or None, self.chunker)
        self.nudge(EMBED)
        return count

    def bring_in_spooled(self) -> int:
        """Put runs that were only spooled into their run stores; how many."""
        return spool.bring_in(self.settings.home)
