"""The parts of a file, as readers yield them, and the memories that they become.

A memory's first line says where it stands, so that it can be understood by itself: `path: Symbol` or `path: Heading >
Heading`. Its source key names project, path, symbol or headings, and a number where several have the same: nothing in
it depends on where the folder lies. Line numbers are metadata and no part of the text: they change with every edit
above.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from afterrun.limits import MAX_NAME
from afterrun.models import LONGEST_KEY, NewMemory

COLLECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "codebase": ("codebase", "code_context"),
    "docs": ("docs", "document_chunk"),
    "standards": ("standards", "convention"),
    "url": ("docs", "document_chunk"),
}
"""Of each source of files: the collection and the source type of its memories."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of a file that makes sense by itself: a function, a class, a section, a block.

    `place` is its symbol (`Class.method`) or its headings joined by ` > `; empty for what has none. Lines count from 1,
    0 where a format has none. `details` are further metadata.
    """

    text: str
    place: str = ""
    kind: str = "block"
    start_line: int = 0
    end_line: int = 0
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where parts come from: project, source, the file's path, and when it was modified."""

    project: str
    source: str
    path: str
    modified: datetime | None = None


def as_memories(origin: Origin, parts: Iterable[Part]) -> Iterator[NewMemory]:
    """The memories of a file's parts, in their order; blank parts are left out."""
    collection, source_type = COLLECTIONS[origin.source]
    session = f"{collection}:{origin.path}"
    numbers: Counter[str] = Counter()
    for place, part in enumerate(part for part in parts if part.text.strip()):
        number = numbers[part.place]
        numbers[part.place] += 1
        yield NewMemory(
            content=f"{_title(origin.path, part.place)}\n{part.text.rstrip()}",
            collection=collection,
            project=origin.project,
            source_type=source_type,
            session=session if len(session) <= MAX_NAME else None,
            session_ordinal=place,
            metadata=_metadata(origin, part),
            source_key=_key(origin, part.place, number),
            created_at=origin.modified,
        )


def _title(path: str, place: str) -> str:
    return " ".join((f"{path}: {place}" if place else path).split())


def _metadata(origin: Origin, part: Part) -> dict[str, object]:
    lines = {"start_line": part.start_line, "end_line": part.end_line} if part.start_line else {}
    named = {"symbol" if origin.source == "codebase" else "heading": part.place} if part.place else {}
    return {"path": origin.path, "kind": part.kind, **named, **lines, **part.details}


def _key(origin: Origin, place: str, number: int) -> str:
    key = f"{origin.source}:{origin.project}:{origin.path}#{place}~{number}"
    if len(key.encode("utf-8", "replace")) <= LONGEST_KEY:
        return key
    return f"{origin.source}:{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()}"
