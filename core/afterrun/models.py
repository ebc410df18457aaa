"""Frozen records that pass between the layers, and how a run travels as a message.

All times are timezone-aware; a naive time is read as UTC. Nothing here touches a file, a database or the network.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from afterrun.errors import InputError
from afterrun.errors import Spend as Spend

COLLECTIONS: Final = ("memory", "codebase", "docs", "standards")
GLOBAL_PROJECT: Final = "global"  # its memories are shared by all other projects
LONGEST_KEY: Final = 1_000  # bytes: an index row of Postgres holds 2,700
_RUN_TEXT_KEYS: Final = ("run_id", "mode", "tier", "period_label", "store_id", "store_path")
_ROW: Final = re.compile("[0-9a-f]{32}:-?[0-9]+")


def parse_time(value: str | datetime) -> datetime:
    """Return `value` as an aware time in UTC; ISO 8601 text or a datetime, naive ones are read as UTC.

    Raises:
        InputError: the text is no ISO 8601 time.
    """
    if isinstance(value, str):
        value = _from_iso(value)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise InputError(f"{value} is out of the range of times that UTC can name") from error


def _from_iso(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        # Nothing of the text is shown, not even by the cause: a misplaced one may be a secret, and errors are logged.
        raise InputError(f"a text of {len(text)} characters is no time: write ISO 8601: 2026-01-31T12:00:00Z") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One finished pipeline run, as it lies in a run store or travels in a message.

    `store_id`, `id` and `store_path` name the row in its run store; all are None for a run that was never stored.
    `tier` is `run`, `monthly` or `quarterly`; `period_label` names the period of a roll-up. `extra` holds what a
    foreign sender added beyond the known keys.
    """

    repo: str
    summary: str
    run_id: str | None = None
    created_at: datetime | None = None
    tags: tuple[str, ...] = ()
    mode: str = "feature"
    tier: str = "run"
    period_label: str = ""
    store_id: str | None = None
    id: int | None = None
    store_path: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def source_key(self) -> str:
        """The key under which this run is one memory, however often and by whichever way it arrives."""
        if self.store_id is not None and self.id is not None:
            return _bounded(f"run:{_escaped(self.store_id)}:{self.id}")
        return self.unstored_source_key

    @property
    def unstored_source_key(self) -> str:
        """The key that the run has where neither `store_id` nor `id` is known."""
        if self.run_id:
            name = f"{_escaped(self.repo)}:{_escaped(self.run_id)}"
            # A repo that is named like a run store must not meet that store's rows.
            return _bounded(f"run:%{ord(name[0]):X}{name[1:]}" if _ROW.fullmatch(name) else f"run:{name}")
        created = self.created_at.isoformat() if self.created_at else ""
        return _hashed("\x1f".join((self.repo, created, self.summary)))

    def to_message(self) -> dict[str, object]:
        """The JSON object that `index_run(run=…)` takes; unset keys are left out."""
        message: dict[str, object] = {**self.extra, "repo": self.repo, "summary": self.summary}
        created = self.created_at.isoformat() if self.created_at else None
        optional: dict[str, object] = {"created_at": created, "tags": list(self.tags), "id": self.id}
        optional |= {key: getattr(self, key) for key in _RUN_TEXT_KEYS}
        return message | {key: value for key, value in optional.items() if value not in (None, "", [])}

    @classmethod
    def from_message(cls, message: Mapping[str, object]) -> Run:
        """Read the object that `index_run(run=…)` takes. Unknown keys go to `extra`.

        Raises:
            InputError: `repo` or `summary` is missing, or a known key has a value of the wrong type.
        """
        if not isinstance(message, Mapping):
            raise InputError(f"a run is an object with repo and summary, not {type(message).__name__}")
        rest = dict(message)
        repo, summary = rest.pop("repo", None), rest.pop("summary", None)
        if not isinstance(repo, str) or not repo:
            raise InputError("run.repo is required: the project's name as a non-empty string")
        if not isinstance(summary, str):
            raise InputError("run.summary is required: what the run did, as a string")
        texts: dict[str, Any] = {key: _optional_text(rest, key) for key in _RUN_TEXT_KEYS}
        row, created, tags = rest.pop("id", None), rest.pop("created_at", None), rest.pop("tags", None) or ()
        if row is not None and (not isinstance(row, int) or isinstance(row, bool)):
            raise InputError("run.id is the row's number in its run store: a whole number")
        if created is not None and not isinstance(created, str | datetime):
            raise InputError("run.created_at is an ISO 8601 time")
        if isinstance(tags, str) or not isinstance(tags, list | tuple) or not all(isinstance(t, str) for t in tags):
            raise InputError("run.tags is a list of strings")
        return cls(
            repo=repo,
            summary=summary,
            created_at=parse_time(created) if created else None,
            tags=tuple(tags),
            id=row,
            extra=rest,
            **{key: text for key, text in texts.items() if text},
        )


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")


def _bounded(key: str) -> str:
    return key if len(key.encode("utf-8", "replace")) <= LONGEST_KEY else _hashed(key)


def _hashed(text: str) -> str:
    return f"run:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


def _optional_text(message: dict[str, object], key: str) -> str | None:
    value = message.pop(key, None)
    if value is not None and not isinstance(value, str):
        raise InputError(f"run.{key} is a string")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What became of a finished run: `stored` in the run store as row `id`, `queued` at the broker.

    The run is safe if either holds. `error` says in words what went wrong, if anything did.
    """

    id: int | None
    stored: bool
    queued: bool
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewMemory:
    """A memory to write. `source_key` is set for all that comes from a source and can come again."""

    content: str
    collection: str = "memory"
    project: str = GLOBAL_PROJECT
    source_type: str = "fact"
    category: str | None = None
    importance: float = 0.5
    session: str | None = None
    session_ordinal: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    source_key: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRecord:
    """A memory as it lies in Postgres. `seen` counts how often the same was remembered, `seen_at` is the last time."""

    id: UUID
    collection: str
    project: str
    source_type: str
    content: str
    category: str | None
    importance: float
    session: str | None
    session_ordinal: int | None
    metadata: Mapping[str, object]
    source_key: str | None
    is_active: bool
    archived: bool
    superseded_by: UUID | None
    seen: int
    seen_at: datetime
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """The outcome of one `remember`: `created` is False where all of it was remembered already, in memory `id`."""

    id: UUID
    created: bool
    chunks: int
    embedded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """An embedding model before it is loaded: `id` is what stored vectors carry, `path` where its files lie.

    `max_tokens` is the length of the model's input, its two special tokens included; `dimension` is a vector's length.
    """

    id: str
    path: str
    dimension: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingChunk:
    """A claimed chunk that waits for its vector; `attempts` counts the failures that were its own."""

    id: int
    memory_id: UUID
    content: str
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """One found memory with its score and the parts that the score is made of.

    `vector` is the cosine similarity of its best chunk (None where only words found it), `text` the normalised rank of
    the words (None where only the vector did), `relevance` their fusion; `decay`, `weight` and `affinity` are the raw
    constants of age, source type and project. `score` is what the database ordered by.
    """

    id: UUID
    content: str
    collection: str
    project: str
    source_type: str
    category: str | None
    metadata: Mapping[str, object]
    created_at: datetime
    score: float
    relevance: float
    vector: float | None
    text: float | None
    decay: float
    weight: float
    affinity: float
    tokens: int = 0
    """Tokens of `content`, counted when the hit is packed into a budget; 0 in a raw search."""
    truncated: bool = False
    """Whether `content` is only the beginning of the memory, cut to fit a budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Withheld:
    """A hit that recall did not return; `reason` is `budget`, `duplicate of <id>` or `filter: <names of filters>`."""

    hit: Hit
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recall:
    """What a recall returns: hits best first, the tokens of their contents, and a block ready for a prompt."""

    query: str
    hits: tuple[Hit, ...]
    tokens: int
    text: str
    withheld: tuple[Withheld, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A memory as the judge and the merger see it."""

    id: UUID
    content: str
    source_type: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The judge's decision on a cluster.

    `same` are the members that state one fact and may become one memory (empty: none may). `superseded` maps a member
    that a newer one contradicts to that newer one. Members in neither stay as they are. `reason` says why in a few
    words, `guard` names the rule that decided where a rule did, `wording` is the merged text where the judge gave one.
    """

    same: tuple[UUID, ...] = ()
    superseded: Mapping[UUID, UUID] = field(default_factory=dict)
    reason: str = ""
    guard: str | None = None
    wording: str | None = None
    judge: str = "deterministic"
    spend: Spend = field(default_factory=Spend)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A candidate for merging, from the proposal on: one row of `consolidations`."""

    id: UUID
    state: str
    collection: str
    project: str
    members: tuple[UUID, ...]
    canonical: UUID | None
    model: str | None
    input_tokens: int
    output_tokens: int
    reason: str | None
    guard: str | None
    created_at: datetime
    updated_at: datetime
