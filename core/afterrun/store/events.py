"""Requests that brought events, and how far a memory is on its way to its vectors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from afterrun.store.base import Queries


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many chunks of a memory wait for a vector of the current model, and how many of those were given up."""

    project: str
    is_active: bool
    archived: bool
    chunks: int
    pending: int
    failed: int


class EventQueries(Queries):
    """The queries of `events.sql`."""

    def lock_projects(self, projects: Collection[str]) -> None:
        """Wait until no other transaction holds this lock for one of these projects, and hold it to the end."""
        self.run("lock_projects", projects=list(projects))

    def claim_request(self, owner: str, idempotency_key: str, digest: bytes) -> tuple[bytes, list[UUID]] | None:
        """Take this key for the current transaction; where it is taken, the digest and receipts of that request.

        Waits for a transaction that holds the same key and has not ended.
        """
        if self.value("claim_request", owner=owner, idempotency_key=idempotency_key, digest=digest):
            return None
        row = self.run("earlier_request", owner=owner, idempotency_key=idempotency_key).fetchone()
        return (bytes(row[0]), row[1]) if row else None

    def answer_request(self, owner: str, idempotency_key: str, receipts: Sequence[UUID]) -> None:
        """Keep the receipts of a request that was claimed."""
        self.run("answer_request", owner=owner, idempotency_key=idempotency_key, receipts=list(receipts))

    def drop_old_requests(self, *, older_than: float) -> None:
        """Forget some requests that are older than so many seconds."""
        self.run("drop_old_requests", older_than=older_than)

    def event_progress(self, memory: UUID) -> Progress | None:
        """How far this memory is; None where there is none with this id."""
        found = self.records(Progress, "event_progress", id=memory)
        return found[0] if found else None
