"""Indexed files and pages: what they were when they were last read, and the memories that are their pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from psycopg.types.json import Jsonb

from afterrun.models import NewMemory
from afterrun.store.base import Queries
from afterrun.store.memories import memory_row

PAGE: Final = 5_000
"""Paths that are read at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file as it was when it was read; the fields are those of the table `source_files`."""

    path: str
    size: int
    modified_ns: int
    digest: bytes
    reader: int
    skipped: str | None = None
    pieces: Sequence[str] = ()
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPiece:
    """A memory that is a piece of a file, in whatever state."""

    id: UUID
    source_key: str
    content: str
    archived: bool
    session_ordinal: int | None
    metadata: Mapping[str, object]


class SourceQueries(Queries):
    """The queries of `sources.sql`."""

    def lock_source(self, project: str, source: str) -> None:
        """Be the only one who writes this source of this project until the transaction ends."""
        self.run("lock_source", project=project, source=source)

    def source_files(self, project: str, source: str, paths: Sequence[str]) -> dict[str, SourceFile]:
        """Those of these files that were indexed, by path."""
        found = self.records(SourceFile, "source_files", project=project, source=source, paths=list(paths))
        return {file.path: file for file in found}

    def source_paths(self, project: str, source: str, beginning: str = "") -> Iterator[str]:
        """The paths of all indexed files that begin so, page by page."""
        after = ""
        while True:
            where = {"project": project, "source": source, "beginning": beginning, "after": after, "limit": PAGE}
            rows = self.run("source_paths", **where).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def put_source_files(self, project: str, source: str, files: Sequence[SourceFile]) -> None:
        """Record what these files were."""
        self.many("put_source_file", [_file_row(project, source, file) for file in files])

    def touch_source_files(self, project: str, source: str, files: Sequence[SourceFile]) -> None:
        """Record a new size and time of these files, unless they have another content by now."""
        self.many("touch_source_file", [_file_row(project, source, file) for file in files])

    def drop_source_files(self, project: str, source: str, paths: Sequence[str]) -> None:
        """Record nothing of these files any more."""
        self.run("drop_source_files", project=project, source=source, paths=list(paths))

    def held_pieces(self, keys: Sequence[str]) -> list[HeldPiece]:
        """The memories with these source keys, in whatever state."""
        return self.records(HeldPiece, "held_pieces", keys=list(keys))

    def put_pieces(self, pieces: Sequence[NewMemory]) -> list[UUID | None]:
        """Insert pieces, or give those with their key a new text; None where that one was forgotten or superseded."""
        rows = self.each("put_piece", [memory_row(piece) for piece in pieces])
        return [row[0] if row else None for row in rows]

    def place_pieces(self, pieces: Sequence[tuple[HeldPiece, NewMemory]]) -> set[UUID]:
        """Give held pieces the key, place and metadata that they have now; the ids of those whose key was free.

        The others are left under their `moving_key`.
        """
        renamed = [held.id for held, piece in pieces if held.source_key != piece.source_key]
        if renamed:
            # Two pieces may change places, and no two have one key even for a moment.
            self.run("free_keys", ids=renamed)
        rows = self.each("place_piece", [_place(held.id, piece) for held, piece in pieces])
        return {row[0] for row in rows if row}

    def delete_pieces(self, keys: Sequence[str]) -> int:
        """Delete the memories with these keys; forgotten ones stay as tombstones. How many went."""
        return _count(self.value("delete_pieces", keys=list(keys)))

    def delete_source(self, project: str, source: str, collection: str) -> int:
        """Delete all that this source gave this project, but for tombstones; how many memories."""
        return _count(self.value("delete_source", project=project, source=source, collection=collection))


def moving_key(memory: UUID) -> str:
    """The key of a memory on its way to another."""
    return f"moving:{memory}"


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _place(memory: UUID, piece: NewMemory) -> dict[str, object]:
    return {
        "id": memory,
        "source_key": piece.source_key,
        "session_ordinal": piece.session_ordinal,
        "metadata": Jsonb(dict(piece.metadata)),
    }


def _file_row(project: str, source: str, file: SourceFile) -> dict[str, object]:
    return {
        "project": project,
        "source": source,
        "path": file.path,
        "size": file.size,
        "modified_ns": file.modified_ns,
        "digest": file.digest,
        "reader": file.reader,
        "skipped": file.skipped,
        "pieces": list(file.pieces),
        "etag": file.etag,
        "last_modified": file.last_modified,
    }
