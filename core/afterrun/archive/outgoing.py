"""Export: one state of the database, row by row, into a stream of lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import IO, Final
from uuid import UUID, uuid4

from afterrun.archive.codec import FORMAT, KINDS, VERSION, Filter, Footer, Header, Model, SourceTypes, encode
from afterrun.db import Database
from afterrun.store import CopyFilter, Store

_COUNTED: Final = tuple(kind for kind in KINDS if kind not in ("header", "footer"))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export wrote: its id, and how many records of each kind."""

    export: UUID
    counts: Mapping[str, int]


def export_memories(
    database: Database,
    stream: IO[bytes],
    where: CopyFilter | None = None,
    *,
    on_start: Callable[[int], None] = lambda expected: None,
    on_progress: Callable[[int], None] = lambda done: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Exported:
    """Write everything that passes the filter to `stream` as JSON Lines, as it is at one moment.

    A memory brings along what it replaced and what replaced it, whatever the filter says of those, so that no lineage
    ends in nothing. `on_start` hears how many memories pass, `on_progress` how many are written. One connection is held
    to the end, and Postgres keeps the rows of that moment as long; writers are not held up.

    Raises:
        DatabaseError: Postgres cannot be reached or refuses; what was written then has no footer.
    """
    where = where or CopyFilter()
    export = uuid4()
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    with database.transaction() as connection:
        store = Store(connection)
        store.begin_snapshot()
        on_start(store.count_copies(where))
        _write(stream, _header(store, export, where, now()))
        for record in _records(store, where):
            line = encode(record)
            counts[str(line["record"])] += 1
            _write_line(stream, line)
            on_progress(counts["memory"])
    _write(stream, Footer(counts=dict(counts)))
    return Exported(export=export, counts=dict(counts))


def _records(store: Store, where: CopyFilter) -> Iterator[object]:
    yield SourceTypes(types=tuple(store.copy_of_source_types()))
    for memories in store.copy_of_memories(where):
        chunks = store.copy_of_chunks([memory.id for memory in memories])
        for memory in memories:
            yield replace(memory, chunks=tuple(chunks.pop(memory.id, ())))
    yield from chain.from_iterable(store.copy_of_consolidations(where))
    yield from chain.from_iterable(store.copy_of_dead_letters(where))
    yield from chain.from_iterable(store.copy_of_spend(where))
    yield from chain.from_iterable(store.copy_of_windows(where))
    yield from chain.from_iterable(store.copy_of_source_files(where))


def _header(store: Store, export: UUID, where: CopyFilter, now: datetime) -> Header:
    model = store.current_model()
    return Header(
        format=FORMAT,
        version=VERSION,
        product=version("afterrun"),
        schema=store.newest_migration(),
        export=export,
        database=store.installation_id(),
        created_at=now,
        model=Model(id=model[0], dimension=model[1]) if model else None,
        filter=Filter(projects=where.projects, since=where.since, until=where.until),
    )


def _write(stream: IO[bytes], record: object) -> None:
    _write_line(stream, encode(record))


def _write_line(stream: IO[bytes], line: Mapping[str, object]) -> None:
    stream.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
