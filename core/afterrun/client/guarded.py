"""A memory as one API key may use it: what every network adapter goes through, and the only place that decides.

A project that is named and is not the key's gives ForbiddenError. A memory that is named by its id and lies in such a
project is not found, with the very error of an id that does not exist: an id tells a key nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from afterrun import care, events, remember
from afterrun.care import Lineage, ProjectStatus, Status
from afterrun.client.arguments import as_ids
from afterrun.client.memory import Memory
from afterrun.errors import NotFoundError
from afterrun.events import Accepted, Event
from afterrun.keys import EVERYBODY, Principal
from afterrun.models import GLOBAL_PROJECT, Hit, MemoryRecord, NewMemory, Recall, Remembered
from afterrun.remember import as_text
from afterrun.store import SearchFilter
from afterrun.summarize import Summarized
from afterrun.timeline import Timeline


class GuardedMemory:
    """The methods of `Memory` that may be called over the network, within what `principal` may do.

    All raise ForbiddenError, and otherwise as the methods of `Memory`, whose keyword arguments they take.
    """

    def __init__(self, memory: Memory, principal: Principal = EVERYBODY) -> None:
        self.memory = memory
        self.principal = principal

    def remember(self, content: str, *, project: str = GLOBAL_PROJECT, **fields: Any) -> Remembered:
        """See `Memory.remember`."""
        self._require_write(project)
        return self.memory.remember(content, project=project, **fields)

    def accept(self, batch: Sequence[NewMemory], *, idempotency_key: str | None = None) -> Accepted:
        """Commit a batch, see `events.accept`; whoever calls tells the workers. Raises BadEventsError, too."""
        self.principal.require("write")
        checked = events.at_the_door(batch)
        for event in checked:
            self.principal.require_write(event.project)
        memory, owner = self.memory, self.principal.key_id or ""
        return events.accept(memory.database, checked, memory.chunker, owner=owner, idempotency_key=idempotency_key)

    def event(self, receipt: UUID) -> Event:
        """How far an event is; a key sees those of all projects that it reads or writes. Raises NotFoundError."""
        project, event = events.progress(self.memory.database, receipt)
        reads = self.principal.may("read") and self.principal.may_read(project)
        if not (reads or (self.principal.may("write") and self.principal.may_write(project))):
            raise NotFoundError(events.unknown(receipt))
        return event

    def recall(self, query: str, **asked: Any) -> Recall:
        """See `Memory.recall`."""
        return self.memory.recall(query, **self._narrowed(**asked))

    def search(self, query: str, **asked: Any) -> list[Hit]:
        """See `Memory.search`."""
        return self.memory.search(query, **self._narrowed(**asked))

    def get(self, *ids: UUID | str) -> list[MemoryRecord]:
        """See `Memory.get`."""
        self.principal.require("read")
        return self._seen(ids)

    def find(self, *ids: UUID | str) -> list[MemoryRecord]:
        """See `Memory.find`."""
        self.principal.require("read")
        return self.memory.find(*ids, projects=self.principal.readable)

    def timeline(self, anchor: UUID | str, **asked: Any) -> Timeline:
        """See `Memory.timeline`. It stays within the project of its anchor."""
        self.principal.require("read")
        return self.memory.timeline(anchor, **asked, projects=self.principal.readable)

    def forget(self, *ids: UUID | str) -> list[UUID]:
        """See `Memory.forget`; what may be read but not written raises ForbiddenError, and none is forgotten."""
        self.principal.require("write")
        for memory in self._seen(ids):
            self.principal.require_write(memory.project)
        return self.memory.forget(*ids)

    def history(self, memory_id: UUID | str) -> Lineage:
        """See `Memory.history`. No merge crosses projects, so that a memory's relatives are of its project."""
        self.get(memory_id)
        return self.memory.history(memory_id)

    def status(self) -> Status | ProjectStatus:
        """With the scope admin and all projects see `Memory.status`, else the counts of the readable projects."""
        self.principal.require("read")
        if self.principal.may("admin") and self.principal.readable is None:
            return self.memory.status()
        return care.project_status(self.memory.database, self.principal.readable)

    def summarize_session(self, text: str, *, project: str = GLOBAL_PROJECT, **fields: Any) -> Summarized:
        """See `Memory.summarize_session`."""
        self._require_write(project)
        return self.memory.summarize_session(text, project=project, **fields)

    def _require_write(self, project: str) -> None:
        self.principal.require("write")
        # Spelled as it will be stored, since that is what the key's projects are compared with.
        self.principal.require_write(remember.as_name("project", project))

    def _narrowed(
        self, *, project: str | None = None, projects: Iterable[str] | None = None, **asked: Any
    ) -> dict[str, Any]:
        self.principal.require("read")
        where = self.principal.narrowed(
            SearchFilter(
                project=None if project is None else as_text("project", project),
                projects=None if projects is None else tuple(projects),
            )
        )
        return {**asked, "project": where.project, "projects": where.projects}

    def _seen(self, ids: Iterable[UUID | str]) -> list[MemoryRecord]:
        return care.get(self.memory.database, as_ids(ids), projects=self.principal.readable)
