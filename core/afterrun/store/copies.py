"""Whole rows as an export carries them: every column but those that a database gives anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from afterrun.models import MemoryRecord


@dataclass(frozen=True, kw_only=True)
class CopyFilter:
    """Which rows to copy: of these projects, from `since` on, before `until`; None means no restriction."""

    projects: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkCopy:
    """A piece of a memory. `embedding` is its vector as float16, little-endian; None while it waits for one."""

    model: str
    ordinal: int
    content: str
    embedding: bytes | None
    attempts: int
    failed: bool
    lease_until: datetime | None
    last_error: str | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCopy(MemoryRecord):
    """A memory with its chunks. `successor_key` is the source key of the memory that `superseded_by` names."""

    compared_at: datetime | None
    successor_key: str | None
    chunks: tuple[ChunkCopy, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTypeCopy:
    """How fast memories of a type fade, and how much they count."""

    source_type: str
    half_life_days: float
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsolidationCopy:
    """A candidate cluster and what became of it."""

    id: UUID
    state: str
    collection: str
    project: str
    members: tuple[UUID, ...]
    canonical: UUID | None
    superseded: tuple[UUID, ...]
    model: str | None
    calls: int
    input_tokens: int
    output_tokens: int
    guard: str | None
    reason: str | None
    attempts: int
    invalid_answers: int
    similarity: float | None
    waits_for: str | None
    not_before: datetime
    leased_until: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterCopy:
    """What could not be processed."""

    task: str
    subject: str
    memory_id: UUID | None
    payload: Mapping[str, object] | None
    error: str
    attempts: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendCopy:
    """What calls of the language model cost; `place` tells rows apart that are the same in all that names the work."""

    at: datetime
    purpose: str
    project: str
    run: str
    subject: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    reserved_until: datetime | None
    place: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCopy:
    """A part of a session that was read for facts."""

    digest: bytes
    project: str
    session: str | None
    extractor: str
    memories: tuple[UUID, ...]
    read_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFileCopy:
    """What a file of a source was when it was last indexed; `pieces` are the source keys of its memories."""

    project: str
    source: str
    path: str
    size: int
    modified_ns: int
    digest: bytes
    reader: int
    skipped: str | None
    pieces: tuple[str, ...]
    etag: str | None
    last_modified: str | None
    indexed_at: datetime
