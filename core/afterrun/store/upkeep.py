"""What workers need: the database's identity, pending chunks, dead letters, heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pgvector import HalfVector
from psycopg.types.json import Jsonb

from afterrun.models import PendingChunk
from afterrun.store.base import Queries
from afterrun.store.memories import Vector


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """What could not be processed: the `task` that failed on `subject`, with its error and the run where one failed."""

    id: int
    task: str
    subject: str
    memory_id: UUID | None
    payload: Mapping[str, object] | None
    error: str
    attempts: int
    created_at: datetime


class UpkeepQueries(Queries):
    """The queries of `upkeep.sql`."""

    def installation_id(self) -> UUID:
        """The id of this database."""
        return UUID(str(self.value("installation_id")))

    def current_model(self) -> tuple[str, int] | None:
        """Id and dimension of the embedding model of this database."""
        row = self.run("current_model").fetchone()
        return (row[0], row[1]) if row else None

    def claim_chunks(self, model: str, *, limit: int, lease: float) -> list[PendingChunk]:
        """Lease up to `limit` pending chunks of `model` for `lease` seconds; none that another worker holds."""
        return self.records(PendingChunk, "claim_chunks", model=model, limit=limit, lease=lease)

    def write_vectors(self, vectors: Sequence[tuple[int, Vector]]) -> None:
        """Give each chunk its vector and end its lease."""
        self.many("write_vector", [{"id": chunk, "vector": HalfVector(vector)} for chunk, vector in vectors])

    def release_chunks(self, ids: Sequence[int], *, wait: float = 0) -> None:
        """End the leases of these chunks `wait` seconds from now."""
        self.run("release_chunks", ids=list(ids), wait=wait)

    def fail_chunk(self, chunk: int, error: str, *, max_attempts: int, wait: float) -> bool:
        """Count a failure of the chunk's own; True when it was its last attempt."""
        return bool(self.value("fail_chunk", id=chunk, error=error, max_attempts=max_attempts, wait=wait))

    def pending_chunks(self, projects: Sequence[str] | None = None) -> tuple[int, datetime | None]:
        """How many chunks of these projects (default: of all) wait for a vector, and since when the oldest does."""
        row = self.run("pending_chunks", projects=None if projects is None else list(projects)).fetchone()
        return (row[0], row[1]) if row else (0, None)

    def claimable(self) -> bool:
        """Whether a chunk could be claimed right now."""
        return bool(self.value("claimable"))

    def bury(
        self,
        task: str,
        subject: str,
        error: str,
        *,
        attempts: int,
        memory_id: UUID | None = None,
        payload: object = None,
    ) -> None:
        """Write a dead letter; the same subject of a task has one."""
        self.run(
            "bury",
            task=task,
            subject=subject,
            error=error,
            attempts=attempts,
            memory_id=memory_id,
            payload=None if payload is None else Jsonb(payload),
        )

    def dead_letters(self, ids: Sequence[int] | None = None) -> list[DeadLetter]:
        """The dead letters with these ids, or all."""
        return self.records(DeadLetter, "dead_letters", ids=None if ids is None else list(ids))

    def unbury(self, ids: Sequence[int]) -> None:
        """Remove these dead letters and make their chunks pending again."""
        self.run("unbury", ids=list(ids))

    def beat(self, task: str) -> None:
        """Record that a periodic task succeeded now."""
        self.run("beat", task=task)

    def heartbeats(self) -> dict[str, datetime]:
        """When each periodic task last succeeded."""
        return {row[0]: row[1] for row in self.run("heartbeats")}
