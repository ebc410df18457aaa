"""Events: notes that arrive one by one or in batches from programs that may send the same request twice.

A batch is committed whole or not at all. The receipt of an event is the id of its memory, so that a receipt needs no
table of its own. A request with an idempotency key is answered with the same receipts when it comes again, also at the
same time, also after a restart: its key, the digest of its events and its receipts lie in the same transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal
from uuid import UUID

from afterrun import remember
from afterrun.chunking import Chunker
from afterrun.db import Connection, Database
from afterrun.errors import ConflictError, InputError, NotFoundError
from afterrun.models import NewMemory
from afterrun.store import Progress, Store

MAX_EVENTS: Final = 1_000
"""Events of one batch: more would hold their transaction's locks for seconds."""
MAX_KEY: Final = 200
"""Characters of an idempotency key."""
KEEP_SECONDS: Final = 7 * 86_400.0
"""How long a request is known again: longer than any client tries."""

State = Literal["accepted", "searchable", "embedded", "failed"]


class BadEventsError(InputError):
    """Events of a batch cannot be used, and none was written. `problems` says why, by place (from 0)."""

    def __init__(self, problems: Mapping[int, str]) -> None:
        super().__init__(f"{len(problems)} of the events cannot be used, and none was accepted: mend or leave them out")
        self.problems = dict(problems)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The receipts of a batch, one an event, in its order; `replayed` where the request was known already."""

    receipts: tuple[UUID, ...]
    replayed: bool = False


@dataclass(frozen=True, kw_only=True)
class Event:
    """How far an event is. `detail` says what happened where `state` is `failed`."""

    receipt: UUID
    state: State
    detail: str | None = None


def at_the_door(events: Sequence[NewMemory]) -> list[NewMemory]:
    """The events as they may be stored: checked, cleaned and redacted. Raises BadEventsError, InputError."""
    if not 1 <= len(events) <= MAX_EVENTS:
        raise InputError(f"a batch has {len(events):,} events: send 1 to {MAX_EVENTS:,}")
    checked: list[NewMemory] = []
    problems: dict[int, str] = {}
    for place, event in enumerate(events):
        try:
            checked.append(remember.at_the_door(event))
        except InputError as error:
            problems[place] = str(error)
    if problems:
        raise BadEventsError(problems)
    return checked


def accept(
    database: Database,
    events: Sequence[NewMemory],
    chunker: Chunker,
    *,
    owner: str = "",
    idempotency_key: str | None = None,
) -> Accepted:
    """Commit events that have passed `at_the_door`; each is found by its words when this returns.

    Raises:
        ConflictError: another batch came with this idempotency key of this owner.
        DatabaseError: Postgres cannot be reached or refuses; then none is written.
    """
    with database.transaction() as connection:
        if idempotency_key is None:
            return Accepted(receipts=_write(connection, events, chunker))
        store = Store(connection)
        digest = _digest(events)
        earlier = store.claim_request(owner, _checked(idempotency_key), digest)
        if earlier is None:
            receipts = _write(connection, events, chunker)
            store.answer_request(owner, idempotency_key, receipts)
            store.drop_old_requests(older_than=KEEP_SECONDS)
            return Accepted(receipts=receipts)
    if earlier[0] != digest:
        raise ConflictError("this Idempotency-Key came with other events before: use a new key for a new request")
    return Accepted(receipts=tuple(earlier[1]), replayed=True)


def progress(database: Database, receipt: UUID) -> tuple[str, Event]:
    """The project of an event and how far it is. Raises NotFoundError."""
    with database.transaction() as connection:
        found = Store(connection).event_progress(receipt)
    if found is None:
        raise NotFoundError(unknown(receipt))
    state, detail = _state(found)
    return found.project, Event(receipt=receipt, state=state, detail=detail)


def unknown(receipt: UUID) -> str:
    """What is said of a receipt that does not exist, or that the one who asks may not see."""
    return f"no event has the receipt {receipt}"


def _state(found: Progress) -> tuple[State, str | None]:
    if found.archived:
        return "failed", "the memory was forgotten"
    if found.failed:
        return "failed", "it cannot be embedded and is found by its words only: see `afterrun status`"
    return ("searchable" if found.pending or not found.chunks else "embedded"), None


def _write(connection: Connection, events: Sequence[NewMemory], chunker: Chunker) -> tuple[UUID, ...]:
    if len(events) > 1:
        # Two batches with the same notes would lock their rows in different orders and wait for each other.
        Store(connection).lock_projects({event.project for event in events})
    return tuple(written.id for written in remember.write_notes(connection, events, chunker))


def _checked(idempotency_key: str) -> str:
    if not (1 <= len(idempotency_key) <= MAX_KEY and idempotency_key.isascii() and idempotency_key.isprintable()):
        raise InputError(f"an Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters")
    return idempotency_key


def _digest(events: Sequence[NewMemory]) -> bytes:
    text = json.dumps([asdict(event) for event in events], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).digest()
