"""Copies of whole rows, for export and import: read from one snapshot, written as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from afterrun.sql import queries
from afterrun.store.base import Queries
from afterrun.store.consolidations import members_hash
from afterrun.store.copies import (
    ChunkCopy,
    ConsolidationCopy,
    CopyFilter,
    DeadLetterCopy,
    MemoryCopy,
    SourceFileCopy,
    SourceTypeCopy,
    SpendCopy,
    WindowCopy,
)
from afterrun.store.memories import content_hash

Row = TypeVar("Row")

FETCH: Final = 100
"""Rows that lie in memory at a time: the longest memory has some ten megabytes with its chunks."""
_CHUNK_TYPES: Final = (
    "uuid", "text", "int4", "text", "halfvec", "int4", "bool", "timestamptz", "text", "timestamptz", "text", "text",
    "bool",
)  # fmt: skip


class ArchiveQueries(Queries):
    """The queries of `archive.sql`."""

    def begin_snapshot(self) -> None:
        """Let this transaction see one state of the database to its end; it must be its first statement."""
        self.run("begin_snapshot")

    def newest_migration(self) -> str:
        """The name of the last migration that this database has."""
        return str(self.value("newest_migration"))

    def embedding_models(self) -> dict[str, int]:
        """Every model whose vectors may lie here, with their dimension."""
        return {row[0]: row[1] for row in self.run("embedding_models")}

    def count_copies(self, where: CopyFilter) -> int:
        """How many memories pass the filter themselves, without those that come along for their lineage."""
        return int(str(self.value("count_copies", **_filter_row(where))))

    def copy_of_memories(self, where: CopyFilter) -> Iterator[list[MemoryCopy]]:
        """Memories in whatever state without their chunks, in batches; what replaced one comes before it."""
        return self._copies(MemoryCopy, "copy_of_memories", where)

    def copy_of_chunks(self, memory_ids: Sequence[UUID]) -> dict[UUID, list[ChunkCopy]]:
        """The chunks of these memories, by memory."""
        found: dict[UUID, list[ChunkCopy]] = {}
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(queries()["copy_of_chunks"].encode(), {"memory_ids": list(memory_ids)})
            for memory_id, model, ordinal, content, vector, *rest in cursor:
                attempts, failed, lease_until, last_error, created_at = rest
                chunk = ChunkCopy(
                    model=model,
                    ordinal=ordinal,
                    content=content,
                    embedding=None if vector is None else vector.to_numpy().astype("<f2").tobytes(),
                    attempts=attempts,
                    failed=failed,
                    lease_until=lease_until,
                    last_error=last_error,
                    created_at=created_at,
                )
                found.setdefault(memory_id, []).append(chunk)
        return found

    def copy_of_source_types(self) -> list[SourceTypeCopy]:
        """How every source type fades."""
        return self.records(SourceTypeCopy, "copy_of_source_types")

    def copy_of_consolidations(self, where: CopyFilter) -> Iterator[list[ConsolidationCopy]]:
        """Clusters of which a member passes, in batches."""
        return self._copies(ConsolidationCopy, "copy_of_consolidations", where)

    def copy_of_dead_letters(self, where: CopyFilter) -> Iterator[list[DeadLetterCopy]]:
        """Dead letters whose memory passes, or whose run, in batches."""
        return self._copies(DeadLetterCopy, "copy_of_dead_letters", where)

    def copy_of_spend(self, where: CopyFilter) -> Iterator[list[SpendCopy]]:
        """What the language model cost, in batches."""
        return self._copies(SpendCopy, "copy_of_spend", where)

    def copy_of_windows(self, where: CopyFilter) -> Iterator[list[WindowCopy]]:
        """Parts of sessions that were read, in batches."""
        return self._copies(WindowCopy, "copy_of_windows", where)

    def copy_of_source_files(self, where: CopyFilter) -> Iterator[list[SourceFileCopy]]:
        """Files of sources, in batches; none where the filter is by time."""
        return self._copies(SourceFileCopy, "copy_of_source_files", where)

    def begin_import(self, export: UUID) -> bool:
        """Record that this export is imported; whether the database was empty when that began."""
        return bool(self.value("begin_import", export=export))

    def finish_import(self, export: UUID) -> None:
        """Record that this export was imported to its end."""
        self.run("finish_import", export=export)

    def known_copies(self, ids: Sequence[UUID], source_keys: Sequence[str]) -> tuple[set[UUID], set[str]]:
        """Those of these ids and source keys that memories here have."""
        rows = self.run("known_copies", ids=list(ids), source_keys=list(source_keys)).fetchall()
        return {row[0] for row in rows}, {row[1] for row in rows if row[1] is not None}

    def paste_memories(self, memories: Sequence[MemoryCopy]) -> list[bool]:
        """Insert memories, in this order, with their chunks; whether each is active here.

        An active note is not active where the same text stands in another one: that one replaces it, and is reinforced.
        """
        active = [row[0] for row in self.each("paste_memory", [_memory_row(memory) for memory in memories])]
        with self._connection.cursor() as cursor, cursor.copy(queries()["paste_chunks"].encode()) as copy:
            copy.set_types(_CHUNK_TYPES)
            for memory, is_active in zip(memories, active, strict=True):
                for chunk in memory.chunks:
                    copy.write_row(_chunk_row(memory, chunk, is_active))
        return active

    def paste_source_types(self, types: Sequence[SourceTypeCopy], *, overwrite: bool) -> int:
        """Add source types, or with `overwrite` make these all there are; how many changed."""
        changed = self._pasted("paste_source_type", [_row(each) | {"overwrite": overwrite} for each in types])
        if overwrite:
            self.run("keep_source_types", source_types=[each.source_type for each in types])
        return changed

    def paste_consolidations(self, consolidations: Sequence[ConsolidationCopy]) -> int:
        """Insert clusters, those that are not here; how many were inserted."""
        rows = [_row(each) | {"members_hash": members_hash(each.members)} for each in consolidations]
        return self._pasted("paste_consolidation", rows)

    def paste_dead_letters(self, letters: Sequence[DeadLetterCopy]) -> int:
        """Insert dead letters, those that are not here and whose memory is; how many were inserted."""
        return self._pasted("paste_dead_letter", [_row(each) for each in letters])

    def paste_spend(self, spend: Sequence[SpendCopy]) -> int:
        """Insert what the language model cost, where it is not here; how many were inserted."""
        return self._pasted("paste_spend", [_row(each) for each in spend])

    def paste_windows(self, windows: Sequence[WindowCopy]) -> int:
        """Insert parts of sessions, those that are not here; how many were inserted."""
        return self._pasted("paste_window", [_row(each) for each in windows])

    def paste_source_files(self, files: Sequence[SourceFileCopy]) -> int:
        """Insert files of sources, those that are not here and whose memories are; how many were inserted."""
        return self._pasted("paste_source_file", [_row(each) for each in files])

    def _copies(self, record: type[Row], name: str, where: CopyFilter) -> Iterator[list[Row]]:
        # A cursor on the server: the client holds a batch, however many rows there are.
        with self._connection.cursor(name, row_factory=class_row(record)) as cursor:
            cursor.execute(queries()[name].encode(), _filter_row(where))
            while rows := cursor.fetchmany(FETCH):
                yield rows

    def _pasted(self, name: str, rows: Sequence[Mapping[str, object]]) -> int:
        return sum(row is not None for row in self.each(name, rows))


def _filter_row(where: CopyFilter) -> dict[str, object]:
    projects = None if where.projects is None else list(where.projects)
    return {"projects": projects, "since": where.since, "until": where.until}


def _row(record: Any) -> dict[str, object]:
    return {field.name: _adapted(getattr(record, field.name)) for field in fields(record)}


def _adapted(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return Jsonb(value) if isinstance(value, Mapping) else value


def _memory_row(memory: MemoryCopy) -> dict[str, object]:
    row = _row(memory)
    del row["chunks"]
    return row | {"content_hash": content_hash(memory.content)}


def _chunk_row(memory: MemoryCopy, chunk: ChunkCopy, is_active: bool) -> tuple[object, ...]:
    vector = None if chunk.embedding is None else HalfVector(np.frombuffer(chunk.embedding, "<f2"))
    return (
        memory.id,
        chunk.model,
        chunk.ordinal,
        chunk.content,
        vector,
        chunk.attempts,
        chunk.failed,
        chunk.lease_until,
        chunk.last_error,
        chunk.created_at,
        memory.collection,
        memory.project,
        is_active,
    )
