"""What the tools give back: small records, so that an answer costs an agent few tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from afterrun.models import Hit, MemoryRecord

if TYPE_CHECKING:
    from afterrun.care import ProjectStatus, Status
    from afterrun.recall import TokenCounter
    from afterrun.summarize import Summarized

HIT_TOKENS: Final = 400
"""Tokens of one hit's content; what is longer is cut, and `memory_get` has all of it."""
MOST_CHARACTERS: Final = 1_000_000
"""Characters of the contents of one `memory_get`: more would fill any agent's context many times."""
LINE_CHARACTERS: Final = 120
_COUNTED: Final = 20_000  # characters: of a longer text the tokens are estimated from so many


@dataclass(frozen=True, kw_only=True)
class Found:
    """A found memory; where `truncated`, `content` is only its beginning, and memory_get has the rest."""

    id: UUID
    collection: str
    project: str
    source_type: str
    created_at: datetime
    score: float
    content: str
    truncated: bool
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, hit: Hit) -> Found:
        return cls(
            id=hit.id,
            collection=hit.collection,
            project=hit.project,
            source_type=hit.source_type,
            created_at=hit.created_at,
            score=round(hit.score, 4),
            content=hit.content,
            truncated=hit.truncated,
            metadata=dict(hit.metadata),
        )


@dataclass(frozen=True, kw_only=True)
class Hits:
    """Found memories, best first, and the tokens of their contents."""

    hits: Sequence[Found]
    tokens: int

    @classmethod
    def of(cls, hits: Iterable[Hit]) -> Hits:
        """Hits that are cut and counted already."""
        counted = list(hits)
        return cls(hits=[Found.of(hit) for hit in counted], tokens=sum(hit.tokens for hit in counted))

    @classmethod
    def cut(cls, hits: Iterable[Hit], counter: TokenCounter) -> Hits:
        """Whole hits, of which each is cut to `HIT_TOKENS`."""
        from afterrun.recall import cut_to

        return cls.of(cut_to(hit, counter, HIT_TOKENS) for hit in hits)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A memory in one line; `tokens` is about what its whole content would cost."""

    id: UUID
    project: str
    source_type: str
    day: str
    line: str
    tokens: int

    @classmethod
    def of(cls, hit: Hit, counter: TokenCounter) -> Line:
        return cls(
            id=hit.id,
            project=hit.project,
            source_type=hit.source_type,
            day=f"{hit.created_at.astimezone(UTC):%Y-%m-%d}",
            line=one_line(hit.content),
            tokens=cost(hit.content, counter),
        )


@dataclass(frozen=True, kw_only=True)
class Index:
    """Memories in one line each, best first."""

    hits: Sequence[Line]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A memory on a timeline; `anchor` marks the one around which it was drawn."""

    id: UUID
    at: datetime
    source_type: str
    session: str | None
    line: str
    tokens: int
    anchor: bool

    @classmethod
    def of(cls, memory: MemoryRecord, anchor: UUID, counter: TokenCounter) -> Moment:
        return cls(
            id=memory.id,
            at=memory.created_at,
            source_type=memory.source_type,
            session=memory.session,
            line=one_line(memory.content),
            tokens=cost(memory.content, counter),
            anchor=memory.id == anchor,
        )


@dataclass(frozen=True, kw_only=True)
class Around:
    """What happened around `anchor`, oldest first; `note` says where that is not the memory that was asked for."""

    anchor: UUID
    project: str
    collection: str
    moments: Sequence[Moment]
    note: str | None


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A memory in full. `state` is active, superseded (then `superseded_by` took its place) or forgotten."""

    id: UUID
    collection: str
    project: str
    source_type: str
    category: str | None
    importance: float
    session: str | None
    state: str
    superseded_by: UUID | None
    seen: int
    created_at: datetime
    updated_at: datetime
    metadata: Mapping[str, Any]
    content: str
    truncated: bool

    @classmethod
    def of(cls, memory: MemoryRecord, most: int) -> Whole:
        return cls(
            id=memory.id,
            collection=memory.collection,
            project=memory.project,
            source_type=memory.source_type,
            category=memory.category,
            importance=round(memory.importance, 3),
            session=memory.session,
            state="active" if memory.is_active else "forgotten" if memory.archived else "superseded",
            superseded_by=memory.superseded_by,
            seen=memory.seen,
            created_at=memory.created_at,
            updated_at=memory.updated_at,
            metadata=dict(memory.metadata),
            content=memory.content[:most],
            truncated=len(memory.content) > most,
        )


@dataclass(frozen=True, kw_only=True)
class Records:
    """Memories in full, in the order they were asked for, and the ids that no memory has."""

    memories: Sequence[Whole]
    unknown: Sequence[UUID]

    @classmethod
    def of(cls, found: Iterable[MemoryRecord], asked: Sequence[UUID]) -> Records:
        by_id = {memory.id: memory for memory in found}
        wanted = [by_id[one] for one in dict.fromkeys(asked) if one in by_id]
        share = MOST_CHARACTERS // max(len(wanted), 1)
        return cls(
            memories=[Whole.of(memory, share) for memory in wanted],
            unknown=[one for one in dict.fromkeys(asked) if one not in by_id],
        )


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What became of a note; `created` is false where the same was remembered already, as memory `id`."""

    id: UUID
    created: bool


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """The memories forgotten now, and those that were forgotten before."""

    forgotten: Sequence[UUID]
    before: Sequence[UUID]


@dataclass(frozen=True, kw_only=True)
class SessionFact:
    """A fact of a session; `created` is false where it was known."""

    id: UUID
    created: bool
    source_type: str
    content: str


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """The facts that were remembered. `dropped` says why others were not; `stopped`, why a part was not read."""

    read_by: str
    facts: Sequence[SessionFact]
    dropped: Sequence[str]
    parts: int
    parts_done: int
    stopped: str | None

    @classmethod
    def of(cls, done: Summarized) -> SessionFacts:
        return cls(
            read_by=done.extractor,
            facts=[
                SessionFact(id=fact.id, created=fact.created, source_type=fact.source_type, content=fact.content)
                for fact in done.facts
            ],
            dropped=[f"{dropped.reason}: {one_line(dropped.content)}" for dropped in done.dropped],
            parts=done.parts,
            parts_done=done.parts_read + done.parts_known,
            stopped=done.stopped,
        )


@dataclass(frozen=True, kw_only=True)
class Health:
    """How the memory is. What concerns the whole server is null for a key that is limited to some projects."""

    active: int
    superseded: int
    forgotten: int
    projects: int
    model: str | None
    waiting_to_be_embedded: int
    oldest_waiting: datetime | None
    dead_letters: int | None
    waiting_clusters: int | None
    queues: Mapping[str, int] | None
    broker_error: str | None

    @classmethod
    def of(cls, status: Status | ProjectStatus) -> Health:
        from afterrun.care import Status

        whole = status if isinstance(status, Status) else None
        return cls(
            active=status.memories.active,
            superseded=status.memories.superseded,
            forgotten=status.memories.forgotten,
            projects=status.memories.projects,
            model=status.model,
            waiting_to_be_embedded=status.pending_chunks,
            oldest_waiting=status.oldest_pending,
            dead_letters=whole.dead_letters if whole else None,
            waiting_clusters=whole.clusters.get("waiting", 0) if whole else None,
            queues=whole.queues if whole else None,
            broker_error=whole.broker_error if whole else None,
        )


def one_line(text: str) -> str:
    """The beginning of `text` in one line."""
    line = " ".join(text[: 4 * LINE_CHARACTERS].split())
    return line if len(line) <= LINE_CHARACTERS else f"{line[: LINE_CHARACTERS - 1].rstrip()}…"


def cost(text: str, counter: TokenCounter) -> int:
    """About how many tokens `text` has; exact up to some thousand words."""
    counted = counter.count(text[:_COUNTED])
    return counted if len(text) <= _COUNTED else counted * len(text) // _COUNTED
