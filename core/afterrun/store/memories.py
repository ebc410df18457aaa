"""Memories: writing, finding, and taking them out of recall and back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from psycopg.types.json import Jsonb

from afterrun.models import Hit, MemoryRecord, NewMemory
from afterrun.store.base import Queries

Vector = NDArray[np.float32]

OPENING: Final = 48
"""Characters of a memory's beginning that its index `memories_opening` holds."""
_LIKE_SIGNS: Final = re.compile(r"[\\%_]")


@dataclass(frozen=True, kw_only=True)
class SearchFilter:
    """What a search looks for beside its question; None means no restriction.

    `project` prefers and never hides; with `only_project` it filters. `projects` always filters: nothing of any other
    project is found, whatever else is asked for. `since` is inclusive, `until` is not.
    """

    project: str | None = None
    only_project: bool = False
    collections: tuple[str, ...] | None = None
    source_types: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None
    projects: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Counts of memories by state, and of the projects that have active ones."""

    active: int
    superseded: int
    forgotten: int
    projects: int


def content_hash(content: str) -> bytes:
    """What makes two notes the same note: their words and signs, whatever the white space between them."""
    return hashlib.sha256(" ".join(content.split()).encode("utf-8", "replace")).digest()


class MemoryQueries(Queries):
    """The queries of `memories.sql`."""

    def put_memories(self, memories: Sequence[NewMemory]) -> list[tuple[UUID, bool] | None]:
        """Insert notes and sourced memories; for each its id and whether its text is new here.

        A repeated note is reinforced. A sourced memory gives None where its text is known here, and where it was
        superseded or forgotten.
        """
        results: dict[int, tuple[UUID, bool] | None] = {}
        for name, sourced in (("add_note", False), ("put_sourced", True)):
            chosen = [
                (place, memory) for place, memory in enumerate(memories) if (memory.source_key is not None) == sourced
            ]
            rows = self.each(name, [memory_row(new) for _, new in chosen])
            for (place, _), row in zip(chosen, rows, strict=True):
                # A sourced row that comes back was inserted or has a new text; a note may be an old one.
                results[place] = (row[0], sourced or row[1]) if row else None
        return [results[place] for place in range(len(memories))]

    def said_before(self, texts: Sequence[tuple[str, str, str]]) -> list[UUID | None]:
        """For each project, collection and text: the active memory that has this text, or has taken in one that had it.

        None where there is none, or where that memory was forgotten since.
        """
        rows = self.run(
            "said_before",
            projects=[project for project, _, _ in texts],
            collections=[collection for _, collection, _ in texts],
            hashes=[content_hash(text) for _, _, text in texts],
        )
        found = {row[0]: row[1] for row in rows}
        return [found.get(place) for place in range(1, len(texts) + 1)]

    def begun_with(self, project: str, collection: str, beginning: str) -> UUID | None:
        """The newest active memory of this scope whose text begins so."""
        pattern = _LIKE_SIGNS.sub(r"\\\g<0>", beginning[:OPENING]) + "%"
        row = self.run(
            "begun_with", project=project, collection=collection, beginning=beginning, pattern=pattern
        ).fetchone()
        return row[0] if row else None

    def reinforce(self, said: Sequence[tuple[UUID, float]]) -> list[bool]:
        """Count that memories were said again, with an importance; False for one that is no longer active."""
        rows = self.each("reinforce", [{"id": memory, "importance": importance} for memory, importance in said])
        return [row is not None for row in rows]

    def inherit_seen(self, ids: Sequence[UUID], by: UUID) -> None:
        """Give `by` the counts of these memories together."""
        self.run("inherit_seen", ids=list(ids), by=by)

    def add_chunks(self, chunks: Sequence[tuple[UUID, Sequence[str]]], model: str) -> None:
        """Add the pieces of each memory as pending chunks of `model`."""
        rows = [{"memory_id": memory, "pieces": list(pieces), "model": model} for memory, pieces in chunks]
        self.many("add_chunks", rows)

    def drop_chunks(self, memory_ids: Sequence[UUID]) -> None:
        """Delete all chunks of these memories."""
        self.run("drop_chunks", memory_ids=list(memory_ids))

    def get_memories(self, ids: Sequence[UUID]) -> list[MemoryRecord]:
        """The memories with these ids in whatever state, newest first; unknown ids are left out."""
        return self.records(MemoryRecord, "get_memories", ids=list(ids))

    def lock_memories(self, ids: Sequence[UUID]) -> list[MemoryRecord]:
        """The same, locked until the transaction ends, always in one order so that two callers cannot deadlock."""
        return self.records(MemoryRecord, "lock_memories", ids=list(ids))

    def sourced(self, source_keys: Sequence[str]) -> dict[str, tuple[bytes, datetime]]:
        """Content hash and time of the memories with these keys, in whatever state."""
        return {row[0]: (bytes(row[1]), row[2]) for row in self.run("sourced", source_keys=list(source_keys))}

    def rename_sources(self, keys: Sequence[tuple[str, str]]) -> None:
        """Give memories a new source key, from old to new, unless another memory has it."""
        self.run("rename_sources", old=[old for old, _ in keys], new=[new for _, new in keys])

    def is_embedded(self, memory_id: UUID) -> bool:
        """Whether every chunk of the memory has its vector."""
        return bool(self.value("is_embedded", memory_id=memory_id))

    def supersede(self, ids: Sequence[UUID], by: UUID) -> None:
        """Take these memories out of recall in favour of `by`."""
        self.run("supersede", ids=list(ids), by=by)

    def restore(self, ids: Sequence[UUID], superseded_by: Sequence[UUID]) -> set[UUID]:
        """Make active again what one of `superseded_by` replaced; the ids restored.

        Forgotten memories stay forgotten. A note of which an identical active one has come since is replaced by that.
        """
        return {row[0] for row in self.run("restore", ids=list(ids), **{"from": list(superseded_by)})}

    def archive(self, ids: Sequence[UUID]) -> set[UUID]:
        """Forget these memories: they stay as tombstones. The ids that were not forgotten before."""
        return {row[0] for row in self.run("archive", ids=list(ids))}

    def superseded_by(self, memory_id: UUID) -> list[MemoryRecord]:
        """The memories that `memory_id` replaced, oldest first."""
        return self.records(MemoryRecord, "superseded_by", id=memory_id)

    def hybrid_search(
        self,
        question: str,
        vector: Vector | None,
        model: str | None,
        search: SearchFilter,
        *,
        max_hits: int,
        min_hits: int,
        asked_at: datetime,
    ) -> list[Hit]:
        """Call `memory_hybrid_search`; the hits in the database's order."""
        return self.records(
            Hit,
            "hybrid_search",
            question=question,
            vector=None if vector is None else HalfVector(vector),
            model=model,
            project=search.project,
            only_project=search.only_project,
            collections=None if search.collections is None else list(search.collections),
            source_types=None if search.source_types is None else list(search.source_types),
            since=search.since,
            until=search.until,
            max_hits=max_hits,
            min_hits=min_hits,
            asked_at=asked_at,
            projects=None if search.projects is None else list(search.projects),
        )

    def strongest_type(self, source_types: Sequence[str]) -> str:
        """The type among these that counts most in recall."""
        return str(self.value("strongest_type", source_types=list(source_types)))

    def totals(self, projects: Sequence[str] | None = None) -> Totals:
        """Counts of memories by state, in these projects (default: in all)."""
        return self.records(Totals, "totals", projects=None if projects is None else list(projects))[0]


def memory_row(memory: NewMemory) -> dict[str, object]:
    """The named values of a query that inserts a memory."""
    return {
        "collection": memory.collection,
        "project": memory.project,
        "source_type": memory.source_type,
        "content": memory.content,
        "content_hash": content_hash(memory.content),
        "category": memory.category,
        "importance": memory.importance,
        "session": memory.session,
        "session_ordinal": memory.session_ordinal,
        "metadata": Jsonb(dict(memory.metadata)),
        "source_key": memory.source_key,
        "created_at": memory.created_at,
    }
