"""How long the search for near-duplicates takes on a large store: part of the benchmark `consolidation`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from psycopg import Connection, sql

from afterrun import schema
from afterrun.client import Memory
from afterrun.db import connect
from afterrun.store import content_hash
from benchmarks.embed import short_notes

Vectors = NDArray[np.float32]

SEED: Final = 20250101
EMBEDDED: Final = 3000
"""Texts that are really embedded; the vectors of the rows are made from theirs."""
PROJECTS: Final = 40
REPEATED: Final = 0.1
"""Share of the rows that nearly repeat an earlier one of their project."""
NEARNESS: Final = 0.35
"""Length of the noise that makes a repeat of a unit vector: a cosine of about 0.94."""


def scan(memory: Memory, rows: int, texts: Sequence[str]) -> dict[str, object]:
    """Fill an empty store with `rows` memories and search it for clusters, twice; times are of the searches alone.

    `second_s` and `second_looked_at` are those of a second search, when nothing has changed.
    """
    fill(memory, rows, texts)
    proposed = looked_at = batches = 0
    started = time.perf_counter()
    while (batch := memory.scan()).looked_at:
        proposed += len(batch.proposals)
        looked_at += batch.looked_at
        batches += 1
    took = time.perf_counter() - started
    started = time.perf_counter()
    second = memory.scan()
    return {
        "rows": rows,
        "seconds": took,
        "ms_per_memory": 1000 * took / max(looked_at, 1),
        "looked_at": looked_at,
        "batches": batches,
        "proposed": proposed,
        "second_s": time.perf_counter() - started,
        "second_looked_at": second.looked_at,
    }


def fill(memory: Memory, rows: int, texts: Sequence[str]) -> None:
    """Write `rows` embedded memories of `PROJECTS` projects, as `remember` and `embed` would leave them."""
    base = [*texts, *short_notes(EMBEDDED)][: max(EMBEDDED, len(texts))]
    vectors = memory.embedder.encode(base)
    spec = memory.chunker.spec
    with memory.database.transaction() as connection:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(schema.vector_index_name(spec.id))))
        _copy(connection, spec.id, rows, base, vectors)
    with connect(memory.database.url) as connection:
        schema.build_vector_index(connection, spec)
        connection.execute("VACUUM ANALYZE")


def _copy(connection: Connection, model: str, rows: int, texts: Sequence[str], vectors: Vectors) -> None:
    words = random.Random(SEED)
    began = datetime.now(UTC) - timedelta(days=365)
    connection.execute(
        "CREATE TEMP TABLE bulk (at timestamptz, project text, content text, hash bytea, vector halfvec) ON COMMIT DROP"
    )
    with connection.cursor().copy("COPY bulk FROM STDIN") as copy:
        for number, (content, vector) in enumerate(_rows(rows, texts, vectors, words)):
            at = began + timedelta(seconds=300 * number)
            text = HalfVector(vector).to_text()
            copy.write_row((at, f"project-{number % PROJECTS}", content, content_hash(content), text))
    connection.execute(
        """
        WITH written AS (
            INSERT INTO memories (project, content, content_hash, created_at, search)
            SELECT project, content, hash, at, memory_search_vector(content) FROM bulk ORDER BY at
            RETURNING id, project, content, content_hash
        )
        INSERT INTO chunks (memory_id, model, ordinal, content, embedding, collection, project, is_active)
        SELECT w.id, %s, 0, w.content, b.vector, 'memory', w.project, true
        FROM written w JOIN bulk b ON b.hash = w.content_hash AND b.project = w.project
        """,
        [model],
    )


def _rows(
    count: int, texts: Sequence[str], vectors: Vectors, words: random.Random
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    noise = np.random.default_rng(SEED)
    made: list[tuple[str, Vectors]] = []
    for number in range(count):
        if number >= PROJECTS and words.random() < REPEATED:
            # An earlier one of the same project: those are every PROJECTS-th.
            content, vector = made[words.randrange(number % PROJECTS, number, PROJECTS)]
            content, spread = f"{content} ({number})", NEARNESS
        else:
            one, other = words.randrange(len(texts)), words.randrange(len(texts))
            content, vector, spread = f"{number}: {texts[one]} {texts[other]}", vectors[one] + vectors[other], 1.0
            vector = vector / np.linalg.norm(vector)
        direction = noise.standard_normal(vector.size, dtype=np.float32)
        vector = vector + spread * direction / np.linalg.norm(direction)
        made.append((content, vector / np.linalg.norm(vector)))
        yield made[-1]
