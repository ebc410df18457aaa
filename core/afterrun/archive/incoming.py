"""Import: the lines of an export into the database, in batches that are each written whole.

Every record has something that names it, under which it is written once: a memory its id and source key, a cluster its
members, a dead letter its task and subject. So the same file may be imported again, after a crash or on top of what is
there, and what is here stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, BinaryIO, Final
from uuid import UUID

from afterrun.archive.codec import FORMAT, KINDS, VERSION, Footer, Header
from afterrun.archive.files import Line, lines
from afterrun.archive.pasting import Pasted, Target, decoded, paste_memories
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.errors import InputError, RefusedError
from afterrun.lineage import check_model
from afterrun.store import Store

BATCH_LINES: Final = 200
BATCH_BYTES: Final = 8 * 1024 * 1024
"""A batch, which is one transaction, ends with the line that reaches one of these."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did.

    Of the memories in the file `added` are new here, `repeated` of them as replaced by a note that says the same;
    `known` were here, and `empty` held nothing but private text. Of the added ones, `redacted` lost a secret or a
    private part, and `pending` got new chunks that wait for vectors of this database's model. `others` counts what else
    was added, by kind.
    """

    export: UUID
    memories: Pasted
    others: Mapping[str, int] = field(default_factory=dict)


def import_memories(
    database: Database,
    stream: BinaryIO,
    chunker: Chunker,
    *,
    on_progress: Callable[[int], None] = lambda lines: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Imported:
    """Write the records of an export into the database; texts are redacted as at every other door.

    `on_progress` hears how many lines are done. The file may be compressed.

    Raises:
        InputError: the file is no export, of another version, cut, or a line of it cannot be used; the message names
            the line. The batches before are written: mend the file and import it again.
        ModelMismatchError: this process uses another embedding model than the database.
        DatabaseError: Postgres cannot be reached or refuses; import the same file again.
    """
    source = lines(stream)
    header = _header(next(source, None))
    with database.transaction() as connection:
        store = Store(connection)
        check_model(store, chunker.spec)
        target = Target(
            chunker=chunker,
            models=store.embedding_models(),
            into_empty=store.begin_import(header.export),
            now=now,
        )
    done = _import(database, source, target, on_progress)
    with database.transaction() as connection:
        Store(connection).finish_import(header.export)
    return Imported(export=header.export, memories=done.memories, others=dict(done.others))


def _header(line: Line | None) -> Header:
    if line is None or line.kind != "header" or line.values.get("format") != FORMAT:
        raise InputError("line 1 is no header of an export of Afterrun: nothing is imported")
    if line.values.get("version") != VERSION:
        raise InputError(
            f"the file's format has version {str(line.values.get('version'))[:10]!r}, this version of afterrun reads"
            f" {VERSION}: import it with the afterrun that wrote it, or update afterrun; nothing is imported"
        )
    header: Header = decoded(line)
    return header


def _check_end(source: Iterator[Line], line: Line, seen: Counter[str]) -> None:
    footer: Footer = decoded(line)
    if {kind: count for kind, count in footer.counts.items() if count} != dict(seen):
        raise InputError(f"line {line.number} counts other records than the file has: lines are missing or doubled")
    if (after := next(source, None)) is not None:
        raise InputError(f"line {after.number} comes after the footer: import one file at a time")


@dataclass(kw_only=True)
class _Done:
    memories: Pasted = field(default_factory=Pasted)
    others: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    line: int = 1
    """The last line that is written."""


def _import(database: Database, source: Iterator[Line], target: Target, on_progress: Callable[[int], None]) -> _Done:
    done = _Done()
    try:
        for batch in _batches(source):
            if batch[-1].kind == "footer":
                _check_end(source, batch[-1], done.seen + Counter(line.kind for line in batch[:-1]))
            _paste(database, [line for line in batch if line.kind != "footer"], target, done)
            done.line = batch[-1].number
            on_progress(done.line)
            if batch[-1].kind == "footer":
                return done
    except InputError as error:
        raise InputError(f"{error}; lines 1 to {done.line} are imported: {_REMEDY}") from error
    raise InputError(
        f"the file ends after line {done.line} without its footer: it was cut. Its lines are imported: {_REMEDY}"
    )


_REMEDY: Final = "mend or export the file again, and import it again"


def _batches(source: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in source:
        if line.kind not in KINDS or line.kind == "header":
            raise InputError(f"line {line.number} is a record of a kind that has no place here")
        batch.append(line)
        size += line.size
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES or line.kind == "footer":
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _paste(database: Database, batch: Sequence[Line], target: Target, done: _Done) -> None:
    """Write a batch in one transaction; where Postgres refuses it, line by line, so that the error names the line."""
    try:
        memories, others = _pasted(database, batch, target)
    except RefusedError as error:
        if len(batch) > 1:
            for line in batch:
                _paste(database, [line], target, done)
                done.line = line.number
            return
        raise InputError(f"line {batch[0].number} is refused: {error}") from error
    done.memories += memories
    done.others += others
    done.seen.update(line.kind for line in batch)


def _pasted(database: Database, batch: Sequence[Line], target: Target) -> tuple[Pasted, Counter[str]]:
    memories = Pasted()
    others: Counter[str] = Counter()
    with database.transaction() as connection:
        store = Store(connection)
        for kind, group in groupby(batch, key=lambda line: line.kind):
            if kind == "memory":
                memories += paste_memories(store, list(group), target)
            else:
                others[kind] += _paste_others(store, kind, list(group), target)
    return memories, others


def _paste_others(store: Store, kind: str, group: Sequence[Line], target: Target) -> int:
    writers: dict[str, Callable[[Sequence[Any]], int]] = {
        "source_types": lambda records: sum(
            store.paste_source_types(record.types, overwrite=target.into_empty) for record in records
        ),
        "consolidation": store.paste_consolidations,
        "dead_letter": store.paste_dead_letters,
        "spend": store.paste_spend,
        "session_window": store.paste_windows,
        "source_file": store.paste_source_files,
    }
    return writers[kind]([decoded(line) for line in group])
