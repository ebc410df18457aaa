"""The write path: check and redact a memory at the door, commit it with its pending chunks.

It needs no model: a memory is found by its words the moment its row commits, and by its meaning once a worker has
embedded its chunks. Only what is remembered already, word for word, is noticed here; near-duplicates are judged after
embedding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

from afterrun.chunking import Chunker
from afterrun.db import Connection, Database
from afterrun.errors import EmptyError, InputError
from afterrun.limits import MAX_CHARACTERS, MAX_NAME
from afterrun.lineage import write_memories
from afterrun.models import COLLECTIONS, NewMemory, Remembered, parse_time
from afterrun.recognise import Recognised, recognise
from afterrun.redact import scrub, scrub_value
from afterrun.store import Store

_ATTEMPTS: Final = 3


def remember(database: Database, memories: Sequence[NewMemory], chunker: Chunker) -> list[Remembered]:
    """Commit notes in one transaction; each is searchable by its words when this returns.

    Raises:
        InputError: a memory cannot be used (empty after redaction, unknown collection, …); then none is written.
        DatabaseError: Postgres cannot be reached or refuses; then none is written.
    """
    if any(memory.source_key is not None for memory in memories):
        raise InputError("a note has no source_key: sources are indexed, see `afterrun index`")
    checked = [at_the_door(memory) for memory in memories]
    for _ in range(_ATTEMPTS):
        with suppress(_GoneError):
            return database.settled(lambda connection: write_notes(connection, checked, chunker, last=False))
    return database.settled(lambda connection: write_notes(connection, checked, chunker))


def at_the_door(memory: NewMemory) -> NewMemory:
    """The memory as it may be stored: checked, cleaned and redacted. Raises InputError with what to change."""
    if not isinstance(memory.content, str):
        raise InputError(f"content is a string, not {type(memory.content).__name__}")
    if len(memory.content) > MAX_CHARACTERS:
        raise InputError(f"content has {len(memory.content):,} characters, the most is {MAX_CHARACTERS:,}: split it")
    if memory.collection not in COLLECTIONS:
        raise InputError(f"collection {memory.collection!r} does not exist: use one of {', '.join(COLLECTIONS)}")
    if not isinstance(memory.importance, int | float) or not 0 <= memory.importance <= 1:
        raise InputError(f"importance {memory.importance!r} cannot be used: it is a number from 0 to 1")
    content = scrub(memory.content).strip()
    if not content:
        raise EmptyError("content is empty, or all of it is private: there is nothing to remember")
    metadata = scrub_value(dict(memory.metadata))
    return replace(
        memory,
        content=content,
        project=as_name("project", memory.project),
        source_type=as_name("source_type", memory.source_type),
        category=as_name("category", memory.category) if memory.category else None,
        session=as_name("session", memory.session) if memory.session else None,
        # Postgres refuses a number that its type rounds to nothing.
        importance=round(memory.importance, 6),
        metadata=metadata if isinstance(metadata, dict) else {},
        created_at=parse_time(memory.created_at) if memory.created_at else None,
    )


def wait_until_embedded(
    database: Database, memory: UUID, *, timeout: float, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Whether the memory is found by its vector within `timeout` seconds."""
    deadline = clock() + timeout
    while True:
        with database.transaction() as connection:
            if Store(connection).is_embedded(memory):
                return True
        if clock() >= deadline:
            return False
        time.sleep(0.05)


def as_text(what: str, value: str) -> str:
    """`value` cleaned and redacted. Raises InputError where it is no string."""
    if not isinstance(value, str):
        raise InputError(f"{what} is a string, not {type(value).__name__}")
    return scrub(value)


def as_name(what: str, value: str) -> str:
    """`value` as a name is stored: cleaned, redacted, trimmed. Raises InputError where it is empty or too long."""
    name = as_text(what, value).strip()
    if not name or len(name) > MAX_NAME:
        raise InputError(f"{what} must have 1 to {MAX_NAME} characters")
    return name


class _GoneError(Exception):
    """A memory that says what a note says was merged or forgotten just now."""


def write_notes(
    connection: Connection, notes: Sequence[NewMemory], chunker: Chunker, *, last: bool = True
) -> list[Remembered]:
    """Write what the notes say anew and count the rest as said again; a note has the id of its news, if it has any.

    The notes have passed `at_the_door`. Where a known memory is gone by now, the note stands for itself; unless this is
    the `last` attempt, _GoneError is raised instead, so that it is looked for anew.
    """
    store = Store(connection)
    found = recognise(store, notes)
    if gone := _not_reinforced(store, notes, found):
        if not last:
            raise _GoneError
        for place in gone:
            found[place] = Recognised(news=notes[place], known=())
    news = [one.news for one in found]
    written = iter(write_memories(connection, [new for new in news if new is not None], chunker))
    results = [
        Remembered(id=one.known[0], created=False, chunks=0) if new is None else next(written)
        for new, one in zip(news, found, strict=True)
    ]
    return [result for result in results if result is not None]


def _not_reinforced(store: Store, notes: Sequence[NewMemory], found: Sequence[Recognised]) -> list[int]:
    """Count what the notes repeat; the places of the notes of which a memory is no longer active."""
    said = sorted({(memory, note.importance) for note, one in zip(notes, found, strict=True) for memory in one.known})
    gone = {memory for (memory, _), active in zip(said, store.reinforce(said), strict=True) if not active}
    return [place for place, one in enumerate(found) if gone.intersection(one.known)]
