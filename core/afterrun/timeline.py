"""What happened around a memory: its neighbours in time, of the same project and collection, or of the same session."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from afterrun.db import Database
from afterrun.errors import InputError, NotFoundError
from afterrun.models import MemoryRecord
from afterrun.store import Store

DEFAULT_AROUND: Final = 5
MAX_AROUND: Final = 100


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Memories oldest first, `anchor` among them.

    `asked` is the id that was asked for. Where that memory was merged or contradicted since, `anchor` is the memory
    that took its place; else both are the same.
    """

    asked: UUID
    anchor: UUID
    memories: tuple[MemoryRecord, ...]


def timeline(
    database: Database,
    anchor: UUID,
    *,
    before: int = DEFAULT_AROUND,
    after: int = DEFAULT_AROUND,
    in_session: bool = False,
    projects: Collection[str] | None = None,
) -> Timeline:
    """Up to `before` earlier and `after` later active memories around `anchor`, which is always among them.

    Memories of one time stand in the order of their place in the session, then of their ids. An anchor outside of
    `projects` (None: all) counts as unknown.

    Raises:
        InputError: a number cannot be used, or the anchor has no session while `in_session` asks for it.
        NotFoundError: no memory has this id, or it was forgotten.
        DatabaseError: Postgres cannot be reached or refuses.
    """
    for name, number in (("before", before), ("after", after)):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_AROUND:
            raise InputError(f"{name} is a whole number from 0 to {MAX_AROUND}, not {number!r}")
    with database.transaction() as connection:
        store = Store(connection)
        current = _current(store, anchor, projects)
        if in_session and current.session is None:
            raise InputError(f"memory {current.id} belongs to no session: leave in_session out")
        around = store.timeline(current.id, before=before, after=after, in_session=in_session)
    return Timeline(asked=anchor, anchor=current.id, memories=tuple(around))


def _current(store: Store, asked: UUID, projects: Collection[str] | None) -> MemoryRecord:
    """The memory, or where it was superseded the one that stands for it now."""
    following: UUID | None = asked
    while following is not None:
        found = store.get_memories([following])
        if not found or (projects is not None and found[0].project not in projects):
            raise NotFoundError(f"no memory has the id {asked}")
        memory, following = found[0], found[0].superseded_by
    if memory.archived:
        raise NotFoundError(f"memory {asked} was forgotten: there is no timeline around it")
    return memory
