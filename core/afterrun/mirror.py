"""What of a file is remembered: exactly its pieces, as they are now.

A file's pieces are compared with the memories that they became before, in the transaction that also records the file:
what did not change stays untouched, what only moved is renamed, what is new or different is written and embedded, and
what is gone is deleted. It comes back with its file. What a person has forgotten stays a tombstone, and no file brings
it back.

Each transaction holds a lock on its project and source, and compares with what is there by then. So two passes at once
double nothing, and a pass that was broken off is completed by the next.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from afterrun.chunking import Chunker
from afterrun.db import Connection, Database
from afterrun.errors import EmptyError, RefusedError
from afterrun.lineage import check_model
from afterrun.models import NewMemory
from afterrun.pieces import pieces_of
from afterrun.redact import scrub
from afterrun.remember import at_the_door
from afterrun.sources.parts import COLLECTIONS, Origin, as_memories
from afterrun.sources.readers import READER, read
from afterrun.store import HeldPiece, SourceFile, Store, moving_key


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Files or memories: new ones, those that changed, those that are gone, and those that are as they were."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            added=self.added + other.added,
            changed=self.changed + other.changed,
            removed=self.removed + other.removed,
            unchanged=self.unchanged + other.unchanged,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirrored:
    """What a pass over a source did, in files or pages; `skipped` counts those that are none to index, by reason.

    `memories` counts their pieces; unchanged are there those of files that were read. `failed` says of pages that could
    not be fetched, and of files that Postgres refused, why; what was known of them stays.
    """

    source: str
    project: str
    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    memories: Counts = field(default_factory=Counts)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """How many files or pages the pass has looked at."""
        return self.added + self.changed + self.unchanged + sum(self.skipped.values()) + len(self.failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A file that was read: what is to be recorded of it, and its memories."""

    file: SourceFile
    memories: Sequence[NewMemory] = ()


class Mirror:
    """One pass over a source of a project; `result` is what it did so far."""

    def __init__(self, database: Database, chunker: Chunker, *, source: str, project: str) -> None:
        self._database = database
        self._chunker = chunker
        self._source = source
        self._project = project
        self._files = Counts()
        self._memories = Counts()
        self._skipped: Counter[str] = Counter()
        self._failed: dict[str, str] = {}

    @property
    def result(self) -> Mirrored:
        """What the pass did so far."""
        return Mirrored(
            source=self._source,
            project=self._project,
            added=self._files.added,
            changed=self._files.changed,
            removed=self._files.removed,
            unchanged=self._files.unchanged,
            skipped=dict(sorted(self._skipped.items())),
            memories=self._memories,
            failed=dict(self._failed),
        )

    def known(self, paths: Sequence[str]) -> dict[str, SourceFile]:
        """Those of these files that were indexed, by path."""
        with self._database.transaction() as connection:
            return Store(connection).source_files(self._project, self._source, paths)

    def known_paths(self, beginning: str = "") -> list[str]:
        """The paths of all indexed files that begin so."""
        with self._database.transaction() as connection:
            return list(Store(connection).source_paths(self._project, self._source, beginning))

    def leave(self, known: SourceFile) -> None:
        """Count a file that is as it was."""
        if known.skipped:
            self.skip(known.skipped)
        else:
            self._files += Counts(unchanged=1)

    def skip(self, reason: str) -> None:
        """Count a file that is none to index."""
        self._skipped[reason] += 1

    def fail(self, path: str, reason: str) -> None:
        """Count a page that could not be fetched, or a file that could not be written."""
        self._failed[path] = reason

    def take(self, look: SourceFile, content: bytes, *, named: str, modified: datetime | None) -> Taken:
        """Read the content of a file; `look` is what is known of it without, `named` tells its format."""
        found = read("docs" if self._source == "url" else self._source, named, content)
        origin = Origin(project=self._project, source=self._source, path=look.path, modified=modified)
        memories = [held for new in as_memories(origin, found.parts) if (held := _admitted(new)) is not None]
        file = replace(
            look,
            digest=hashlib.sha256(content).digest(),
            reader=READER,
            skipped=found.skipped or (None if memories else "empty"),
            pieces=[memory.source_key for memory in memories if memory.source_key],
        )
        return Taken(file=file, memories=memories)

    def write(self, taken: Sequence[Taken]) -> None:
        """Make the memories of these files what the files are, in one transaction where Postgres takes them all.

        A file that Postgres refuses is told in `failed`, and holds up no other. Raises DatabaseError.
        """
        try:
            self._write(taken)
        except RefusedError as error:
            if len(taken) == 1:
                self.fail(taken[0].file.path, str(error))
                return
            for one in taken:
                self.write([one])

    def _write(self, taken: Sequence[Taken]) -> None:
        if not taken:
            return
        with self._database.transaction() as connection:
            store = self._locked(connection)
            check_model(store, self._chunker.spec)
            known = store.source_files(self._project, self._source, [one.file.path for one in taken])
            memories = self._bring_in_line(store, taken, known)
            store.put_source_files(self._project, self._source, [one.file for one in taken])
        self._count(Counts(), memories)
        for one in taken:
            self._count_file(one.file, known.get(one.file.path))

    def touch(self, files: Sequence[SourceFile]) -> None:
        """Record files whose content is as it was under a new time."""
        with self._database.transaction() as connection:
            self._locked(connection).touch_source_files(self._project, self._source, files)
        for file in files:
            self.leave(file)

    def remove(self, paths: Sequence[str]) -> None:
        """Delete what files gave that are gone."""
        with self._database.transaction() as connection:
            store = self._locked(connection)
            known = store.source_files(self._project, self._source, paths)
            removed = store.delete_pieces([key for file in known.values() for key in file.pieces])
            store.drop_source_files(self._project, self._source, paths)
        self._count(Counts(removed=sum(not file.skipped for file in known.values())), Counts(removed=removed))

    def remove_all(self) -> None:
        """Delete all that this source gave this project; nothing else, and no tombstone."""
        with self._database.transaction() as connection:
            store = self._locked(connection)
            removed = store.delete_source(self._project, self._source, COLLECTIONS[self._source][0])
        self._count(Counts(), Counts(removed=removed))

    def _locked(self, connection: Connection) -> Store:
        store = Store(connection)
        store.lock_source(self._project, self._source)
        return store

    def _count(self, files: Counts, memories: Counts) -> None:
        self._files += files
        self._memories += memories

    def _count_file(self, file: SourceFile, before: SourceFile | None) -> None:
        was_indexed = before is not None and not before.skipped
        if file.skipped:
            self.skip(file.skipped)
            self._files += Counts(removed=int(was_indexed))
        elif not was_indexed:
            self._files += Counts(added=1)
        elif before is not None and before.digest != file.digest:
            self._files += Counts(changed=1)
        else:
            self._files += Counts(unchanged=1)

    def _bring_in_line(self, store: Store, taken: Sequence[Taken], known: Mapping[str, SourceFile]) -> Counts:
        now = [memory for one in taken for memory in one.memories]
        keys = {key for file in (*(one.file for one in taken), *known.values()) for key in file.pieces}
        plan = compare(store.held_pieces(list(keys)), now)
        removed = store.delete_pieces(plan.gone)
        placed = store.place_pieces(plan.moved)
        # A piece that moved to where a forgotten one stands is forgotten with it.
        removed += store.delete_pieces([moving_key(piece.id) for piece, _ in plan.moved if piece.id not in placed])
        written = [pair for pair in zip(store.put_pieces(plan.different), plan.different, strict=True) if pair[0]]
        pieces = [(memory, pieces_of(new, self._chunker)) for memory, new in written if memory]
        store.drop_chunks([memory for memory, _ in pieces])
        store.add_chunks(pieces, self._chunker.spec.id)
        changed = sum(new.source_key in plan.rewritten for _, new in written)
        return Counts(
            added=len(written) - changed, changed=changed, removed=removed, unchanged=plan.unchanged + len(placed)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What has to be done so that the memories held are the pieces there are now."""

    unchanged: int
    moved: Sequence[tuple[HeldPiece, NewMemory]]
    different: Sequence[NewMemory]
    rewritten: frozenset[str]
    """Keys of `different` under which there is another text now."""
    gone: Sequence[str]


def compare(held: Sequence[HeldPiece], now: Sequence[NewMemory]) -> Plan:
    """Match pieces with memories: by key and text, then by text alone, then by key alone."""
    left = {piece.source_key: piece for piece in held}
    moved: list[tuple[HeldPiece, NewMemory]] = []
    pending: list[NewMemory] = []
    unchanged = 0
    for new in now:
        old = left.get(new.source_key or "")
        if old is None or old.content != new.content:
            pending.append(new)
            continue
        del left[old.source_key]
        if (old.session_ordinal, old.metadata) == (new.session_ordinal, new.metadata):
            unchanged += 1
        else:
            moved.append((old, new))
    texts = {piece.content: piece.source_key for piece in left.values()}
    different = []
    for new in pending:
        key = texts.pop(new.content, None)
        if key is None:
            different.append(new)
        else:
            moved.append((left.pop(key), new))
    rewritten = frozenset(new.source_key for new in different if new.source_key in left if new.source_key)
    gone = [key for key in left if key not in rewritten]
    return Plan(unchanged=unchanged, moved=moved, different=different, rewritten=rewritten, gone=gone)


def _admitted(memory: NewMemory) -> NewMemory | None:
    """The memory checked and redacted, its key too; None where nothing is left of it."""
    try:
        checked = at_the_door(memory)
    except EmptyError:
        return None
    return replace(checked, source_key=scrub(memory.source_key or ""))
