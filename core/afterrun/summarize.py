"""A session's transcript into memories: read window by window, each fact remembered as a note.

A window counts as read when its facts are written. So a summary that a cap on spend or a failing service stops is no
loss: the same call again goes on with the first window that was not read, and a whole one costs nothing twice. A
transcript that has grown is read from its last windows on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

from afterrun.budget import Budget, reserved
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.errors import BudgetError, EmptyError, InputError, LanguageModelError, Spend, UnreadError
from afterrun.models import GLOBAL_PROJECT, NewMemory
from afterrun.redact import scrub
from afterrun.remember import at_the_door, remember
from afterrun.store import Store, Work
from afterrun.summary import Dropped, Extracted, Extractor, Fact, Window, windows

READING: Final = "1"
"""Part of a window's digest: another one has every window read anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """A fact as it was remembered; `created` is False where the same note was there before."""

    id: UUID
    created: bool
    content: str
    source_type: str
    category: str | None
    importance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Summarized:
    """What a session came to.

    `extractor` says who read it: `rules`, or the language model's name. `ids` are the memories of all parts read so
    far; `facts` and `dropped` are of the `parts_read` by this call, of `parts`, `parts_known` being read before.
    `unread` are the spans of the redacted text, in characters, that were not read, and `stopped` says why not; None
    where all of it was read.
    """

    extractor: str
    ids: tuple[UUID, ...] = ()
    facts: tuple[Noted, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    parts: int = 0
    parts_read: int = 0
    parts_known: int = 0
    unread: tuple[tuple[int, int], ...] = ()
    stopped: str | None = None
    spend: Spend = field(default_factory=Spend)

    @property
    def added(self) -> int:
        """How many of the facts are new memories."""
        return sum(fact.created for fact in self.facts)


def summarize_session(
    database: Database,
    text: str,
    *,
    chunker: Chunker,
    extractor: Extractor,
    budget: Budget,
    project: str = GLOBAL_PROJECT,
    session: str | None = None,
    created_at: datetime | None = None,
    on_progress: Callable[[int, int], None] = lambda done, parts: None,
) -> Summarized:
    """Remember the facts of `text`, which is redacted first.

    `session` and `created_at` become those of the memories; near-duplicates are judged later, as those of any note.
    `on_progress` hears how many parts are done, and how many there are.

    Raises:
        EmptyError: the text is blank, or all of it is private.
        InputError: project, session or created_at cannot be used.
        UnreadError: the language model gave no usable answer on a part; says what is written. The cause is the
            LanguageModelError.
        DatabaseError: Postgres cannot be reached or refuses; parts that were read before stay read.
    """
    if not isinstance(text, str):
        raise InputError(f"a session is text, not {type(text).__name__}")
    clean = scrub(text)
    if not clean.strip():
        raise EmptyError("the session is empty, or all of it is private: there is nothing to summarize")
    note = at_the_door(NewMemory(content=READING, project=project, session=session, created_at=created_at))
    reading = _Reading(database, windows(clean, chunker.count), note, chunker, extractor, budget)
    return reading.read(on_progress)


class _Reading:
    """One pass over a transcript: what it has written so far, and what it has left."""

    def __init__(
        self,
        database: Database,
        parts: Sequence[Window],
        note: NewMemory,
        chunker: Chunker,
        extractor: Extractor,
        budget: Budget,
    ) -> None:
        self._database = database
        self._parts = parts
        self._note = replace(note, metadata={"origin": "session", "extractor": extractor.name})
        self._chunker = chunker
        self._extractor = extractor
        self._budget = budget
        self._run = uuid4().hex
        self._ids: dict[UUID, None] = {}
        self._said: set[str] = set()
        self._result = Summarized(extractor=extractor.name, parts=len(parts))

    def read(self, on_progress: Callable[[int, int], None]) -> Summarized:
        digests = [self._digest(part) for part in self._parts]
        known = self._known(digests)
        done = set(known)
        for place, (part, digest) in enumerate(zip(self._parts, digests, strict=True)):
            if digest not in done:
                try:
                    self._read(part, digest)
                except BudgetError as error:
                    rest = zip(self._parts[place:], digests[place:], strict=True)
                    return self._ended([part for part, digest in rest if digest not in done], str(error))
                done.add(digest)
            self._count(parts_read=digest not in known)
            on_progress(place + 1, len(self._parts))
        return self._ended([])

    def _known(self, digests: Sequence[bytes]) -> dict[bytes, list[UUID]]:
        with self._database.transaction() as connection:
            store = Store(connection)
            known = store.read_windows(digests)
            ids = [memory for digest in digests for memory in known.get(digest, [])]
            held = {memory.id: memory.content for memory in store.get_memories(ids)}
        self._said.update(held.values())
        self._ids.update((memory, None) for memory in ids if memory in held)
        self._count(parts_known=sum(digest in known for digest in digests))
        return known

    def _read(self, part: Window, digest: bytes) -> None:
        with self._explained():
            extracted = self._extracted(part, digest)
        # What stands in the overlap is read twice; that is no repetition by which a note gets stronger.
        facts = [fact for fact in extracted.facts if fact.content not in self._said]
        self._said.update(fact.content for fact in facts)
        noted = self._noted(facts)
        with self._database.transaction() as connection:
            Store(connection).put_window(
                digest,
                [fact.id for fact in noted],
                project=self._note.project,
                session=self._note.session,
                extractor=self._extractor.name,
            )
        self._ids.update(dict.fromkeys(fact.id for fact in noted))
        self._result = replace(
            self._result,
            facts=(*self._result.facts, *noted),
            dropped=(*self._result.dropped, *extracted.dropped),
            spend=_sum(self._result.spend, extracted.spend),
        )

    def _extracted(self, part: Window, digest: bytes) -> Extracted:
        tokens = self._extractor.most_tokens(part.text)
        if not tokens:
            return self._extractor.extract(part.text)
        work = Work(
            purpose="summarize",
            project=self._note.project,
            subject=digest.hex(),
            model=self._extractor.name,
            run=self._run,
        )
        with reserved(self._database, self._budget, work, tokens=tokens) as bill:
            extracted = self._extractor.extract(part.text)
            bill.spend = extracted.spend
        return extracted

    def _noted(self, facts: Sequence[Fact]) -> list[Noted]:
        notes = [
            replace(
                self._note,
                content=fact.content,
                source_type=fact.source_type,
                category=fact.category,
                importance=fact.importance,
            )
            for fact in facts
        ]
        written = remember(self._database, notes, self._chunker)
        return [
            Noted(
                id=row.id,
                created=row.created,
                content=fact.content,
                source_type=fact.source_type,
                category=fact.category,
                importance=fact.importance,
            )
            for row, fact in zip(written, facts, strict=True)
        ]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except LanguageModelError as error:
            done = self._result.parts_read + self._result.parts_known
            raise UnreadError(
                f"{error}; {done} of {len(self._parts)} parts of the session are read, and what came of them is written"
                f" ({len(self._ids)} memories): the same call again goes on from there",
                spend=_sum(self._result.spend, error.spend),
                written=tuple(self._ids),
                read=done,
                parts=len(self._parts),
            ) from error

    def _ended(self, left: Sequence[Window], stopped: str | None = None) -> Summarized:
        return replace(self._result, ids=tuple(self._ids), unread=tuple(_spans(left)), stopped=stopped)

    def _count(self, *, parts_read: int = 0, parts_known: int = 0) -> None:
        self._result = replace(
            self._result,
            parts_read=self._result.parts_read + parts_read,
            parts_known=self._result.parts_known + parts_known,
        )

    def _digest(self, part: Window) -> bytes:
        names = (READING, self._extractor.name, self._note.project, self._note.session or "", part.text)
        return hashlib.sha256("\x1f".join(names).encode("utf-8", "replace")).digest()


def _spans(parts: Sequence[Window]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for part in parts:
        if spans and part.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], part.end)
        else:
            spans.append((part.start, part.end))
    return spans


def _sum(one: Spend, other: Spend) -> Spend:
    return Spend(
        calls=one.calls + other.calls,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
    )
