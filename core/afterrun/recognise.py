"""What of a note is already remembered: recalled text that comes back must neither be doubled nor grow.

Recognised, within a project and collection, are the text of an active memory of any kind, also where it has been
merged into another one since; the beginning of a memory, as recall cuts it; and the entries of a prompt block, with
whatever was written below them. All of it by hash and index, nothing by likeness: that is the judge's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from afterrun.block import beginning, entries
from afterrun.models import NewMemory
from afterrun.store import Store

SHORTEST_BEGINNING: Final = 30
"""Characters. Recall cuts no shorter, and a few words with an ellipsis may begin anything."""
_MOST_LINES: Final = 32
"""Lines of an entry after which something new may begin."""


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """What a note says anew (None: nothing), and the active memories that say the rest."""

    news: NewMemory | None
    known: tuple[UUID, ...]


def recognise(store: Store, notes: Sequence[NewMemory]) -> list[Recognised]:
    """Split each note into what is known and what is new; the heads of a prompt block's entries are dropped."""
    parts = [[list(_readings(part, block)) for part, block in _parts(note)] for note in notes]
    asked = {
        (note.project, note.collection, reading.known)
        for note, of_note in zip(notes, parts, strict=True)
        for readings in of_note
        for reading in readings
    }
    known = _known(store, sorted(asked))
    return [_recognised(note, of_note, known) for note, of_note in zip(notes, parts, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """One way to read a part: its beginning is a memory's text, and the rest is new."""

    known: str
    rest: str


_Known = dict[tuple[str, str, str], UUID]


def _parts(note: NewMemory) -> list[tuple[str, bool]]:
    block = entries(note.content)
    return [(note.content, False)] if block is None else [(entry, True) for entry in block]


def _readings(part: str, block: bool) -> Iterator[_Reading]:
    yield _Reading(known=part, rest="")
    lines = part.splitlines(keepends=True) if block else []
    for count in range(min(len(lines) - 1, _MOST_LINES), 0, -1):
        yield _Reading(known="".join(lines[:count]).strip(), rest="".join(lines[count:]).strip())


def _known(store: Store, asked: Sequence[tuple[str, str, str]]) -> _Known:
    found = dict(zip(asked, store.said_before(asked), strict=True))
    for project, collection, text in asked:
        start = beginning(text)
        if found[project, collection, text] is None and start and len(start) >= SHORTEST_BEGINNING:
            found[project, collection, text] = store.begun_with(project, collection, start)
    return {key: memory for key, memory in found.items() if memory is not None}


def _recognised(note: NewMemory, parts: Sequence[Sequence[_Reading]], known: _Known) -> Recognised:
    memories: dict[UUID, None] = {}
    news: list[str] = []
    for readings in parts:
        for reading in readings:
            if memory := known.get((note.project, note.collection, reading.known)):
                memories[memory] = None
                news.append(reading.rest)
                break
        else:
            news.append(readings[0].known)
    content = "\n".join(piece for piece in news if piece)
    return Recognised(news=replace(note, content=content) if content else None, known=tuple(memories))
