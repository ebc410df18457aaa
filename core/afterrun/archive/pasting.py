"""Memories of an export as they are written here: checked, redacted, and with vectors of this database's model only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np

from afterrun.archive.codec import KINDS, decode
from afterrun.archive.files import Line
from afterrun.chunking import Chunker
from afterrun.errors import InputError
from afterrun.limits import MAX_CHARACTERS, MAX_NAME
from afterrun.models import COLLECTIONS
from afterrun.redact import scrub_value
from afterrun.store import ChunkCopy, MemoryCopy, Store


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the database is that an export goes into.

    `models` are the embedding models whose vectors may lie there, with their dimensions; the chunker's is the current
    one. `into_empty` says that it held no memory when the import began.
    """

    chunker: Chunker
    models: Mapping[str, int]
    into_empty: bool
    now: Callable[[], datetime]


@dataclass(frozen=True, kw_only=True)
class Pasted:
    """Counts of memories in a file, see `Imported`."""

    added: int = 0
    repeated: int = 0
    known: int = 0
    empty: int = 0
    redacted: int = 0
    pending: int = 0

    def __add__(self, other: Pasted) -> Pasted:
        return Pasted(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True, kw_only=True)
class _Ready:
    memory: MemoryCopy
    redacted: bool
    pending: bool


def decoded(line: Line) -> Any:
    """The record of a line. Raises InputError, which names the line."""
    try:
        return decode(KINDS[line.kind], line.values)
    except InputError as error:
        raise InputError(f"line {line.number} cannot be used: {error}") from error


def paste_memories(store: Store, lines: Sequence[Line], target: Target) -> Pasted:
    """Write the memories of these lines that are not here. Raises InputError, which names the line."""
    unknown = _unknown(store, lines)
    found = [_ready(line, target) for line in unknown]
    ready = [each for each in found if each is not None]
    active = store.paste_memories([each.memory for each in ready])
    return Pasted(
        added=len(ready),
        repeated=sum(each.memory.is_active and not now for each, now in zip(ready, active, strict=True)),
        known=len(lines) - len(unknown),
        empty=len(found) - len(ready),
        redacted=sum(each.redacted for each in ready),
        pending=sum(each.pending for each in ready),
    )


def _unknown(store: Store, lines: Sequence[Line]) -> list[Line]:
    # Asked before the texts are looked at: an import that goes on where it was stopped passes over the beginning fast.
    names = [_names(line) for line in lines]
    ids, keys = store.known_copies([id_ for id_, _ in names], [key for _, key in names if key is not None])
    unknown: list[Line] = []
    for line, (id_, key) in zip(lines, names, strict=True):
        if id_ not in ids and (key is None or key not in keys):
            unknown.append(line)
            ids.add(id_)
            keys |= {key} if key is not None else set()
    return unknown


def _names(line: Line) -> tuple[UUID, str | None]:
    id_, key = line.values.get("id"), line.values.get("source_key")
    try:
        return UUID(id_), None if key is None else str(scrub_value(key))
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"line {line.number} cannot be used: a memory's id is a UUID") from None


def _ready(line: Line, target: Target) -> _Ready | None:
    memory: MemoryCopy = decoded(line)
    redacted = _is_changed(line.values, memory)
    memory = replace(memory, content=memory.content.strip()) if redacted else memory
    if not memory.content.strip():
        return None
    try:
        _check(memory, target)
    except InputError as error:
        raise InputError(f"line {line.number} cannot be used: {error}") from None
    chunks, pending = _chunks(memory, target, redacted=redacted)
    compared_at = memory.compared_at if target.into_empty and not pending else None
    return _Ready(memory=replace(memory, chunks=chunks, compared_at=compared_at), redacted=redacted, pending=pending)


def _is_changed(raw: Mapping[str, Any], memory: MemoryCopy) -> bool:
    """Whether a text lost something on its way in: then its vectors still know what it was."""
    return raw["content"] != memory.content or any(
        before["content"] != chunk.content for before, chunk in zip(raw["chunks"], memory.chunks, strict=True)
    )


def _chunks(memory: MemoryCopy, target: Target, *, redacted: bool) -> tuple[tuple[ChunkCopy, ...], bool]:
    """The chunks to write, and whether they are new ones that wait for their vectors."""
    kept = () if redacted else tuple(chunk for chunk in memory.chunks if chunk.model in target.models)
    model = target.chunker.spec.id
    if any(chunk.model == model for chunk in kept):
        return kept, False
    now = target.now()
    pending = tuple(
        ChunkCopy(
            model=model,
            ordinal=ordinal,
            content=piece,
            embedding=None,
            attempts=0,
            failed=False,
            lease_until=None,
            last_error=None,
            created_at=now,
        )
        for ordinal, piece in enumerate(target.chunker.split(memory.content))
    )
    return kept + pending, True


def _check(memory: MemoryCopy, target: Target) -> None:
    if len(memory.content) > MAX_CHARACTERS:
        raise InputError(f"content has {len(memory.content):,} characters, the most is {MAX_CHARACTERS:,}")
    if memory.collection not in COLLECTIONS:
        raise InputError(f"its collection does not exist: it is one of {', '.join(COLLECTIONS)}")
    for name in ("project", "source_type", "category", "session"):
        value = getattr(memory, name)
        if value is not None and not 0 < len(value) <= MAX_NAME:
            raise InputError(f"{name} must have 1 to {MAX_NAME} characters")
    for chunk in memory.chunks:
        if chunk.embedding is not None and chunk.model in target.models:
            _check_vector(chunk.embedding, target.models[chunk.model])


def _check_vector(embedding: bytes, dimension: int) -> None:
    if len(embedding) != 2 * dimension:
        raise InputError(f"a vector has {len(embedding)} bytes, its model's have {2 * dimension}")
    if not np.isfinite(np.frombuffer(embedding, "<f2")).all():
        raise InputError("a vector has numbers that are not finite")
