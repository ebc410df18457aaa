"""A scratch database of a given size on an embedded server of its own, filled by the product's own write path."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from psycopg import sql

from afterrun import schema
from afterrun.chunking import Chunker
from afterrun.db import Connection, Database, connect
from afterrun.embed import Embedder
from afterrun.lineage import write_memories
from afterrun.local import Stack
from afterrun.models import ModelSpec
from afterrun.settings import Settings
from afterrun.vectors import embed_pending
from benchmarks._corpus import rows

BATCH: Final = 2000
_COSTLY: Final = """
SELECT c.relname, pg_get_indexdef(i.indexrelid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
WHERE i.indrelid IN ('memories'::regclass, 'chunks'::regclass) AND a.amname IN ('hnsw', 'gin')
ORDER BY c.relname
"""
_SIZES: Final = """
SELECT c.relname, pg_relation_size(c.oid) / 1e6
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid IN ('memories'::regclass, 'chunks'::regclass)
ORDER BY 2 DESC
"""


@dataclass(frozen=True, kw_only=True)
class Built:
    """An index: its size in MB (10^6 bytes), and how long it took to build where it was built after loading."""

    mb: float
    build_s: float | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the server may use, in MB (2^20 bytes)."""

    shared_buffers: int
    maintenance_work_mem: int

    @classmethod
    def for_rows(cls, count: int) -> Memory:
        """Enough for the indexes of `count` rows; never less than the local stack's defaults.

        An HNSW build holds about 1.6 kB a vector of 384 halves; beyond maintenance_work_mem it becomes many times
        slower. A warm search wants the graph and the vectors beside it in shared_buffers.
        """
        return cls(shared_buffers=max(256, count * 4 // 1024), maintenance_work_mem=max(256, count * 2 // 1024))


@contextmanager
def server(memory: Memory) -> Iterator[tuple[str, Path]]:
    """A server that keeps nothing over a power cut: its address, and a folder that goes with it."""
    home = Path(tempfile.mkdtemp(prefix="afterrun-bench-"))
    settings = Settings(home=home, run_store=home / "memory.db")
    try:
        with Stack(settings, migrate=lambda url: None, commands=()) as stack, connect(stack.database_url) as connection:
            for statement in (
                f"ALTER SYSTEM SET shared_buffers = '{memory.shared_buffers}MB'",
                f"ALTER SYSTEM SET maintenance_work_mem = '{memory.maintenance_work_mem}MB'",
                "ALTER SYSTEM SET max_wal_size = '8GB'",
                "ALTER SYSTEM SET fsync = off",
                # It would run at some time during the measurements; `load` does its work once.
                "ALTER SYSTEM SET autovacuum = off",
            ):
                connection.execute(statement.encode())
        with Stack(settings, migrate=lambda url: None, commands=()) as stack:
            yield stack.database_url, home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def load(
    url: str, count: int, pool: Sequence[str], embedder: Embedder, now: datetime, rng: random.Random
) -> dict[str, Built]:
    """Write and embed `count` rows as the product does, in batches; the indexes of memories and chunks.

    The indexes of vectors and words are dropped before and built after, which gives the same indexes sooner.
    """
    schema.migrate(url, embedder.spec)
    chunker = Chunker(embedder.spec)
    with connect(url) as connection, Database(url) as database:
        dropped = connection.execute(_COSTLY).fetchall()
        for name, _ in dropped:
            connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
        source = rows(count, pool, now, rng)
        while batch := list(itertools.islice(source, BATCH)):
            with database.transaction() as writing:
                write_memories(writing, batch, chunker)
            while embed_pending(database, embedder, limit=2 * BATCH).more:
                pass
        took = _build(connection, dropped, embedder.spec)
        connection.execute("VACUUM (ANALYZE) memories, chunks")
        connection.execute("CHECKPOINT")
        return {name: Built(mb=float(mb), build_s=took.get(name)) for name, mb in connection.execute(_SIZES).fetchall()}


def _build(connection: Connection, dropped: Sequence[tuple[str, str]], model: ModelSpec) -> dict[str, float]:
    took = {}
    vectors = schema.vector_index_name(model.id)
    for name, definition in dropped:
        started = time.perf_counter()
        if name == vectors:
            schema.build_vector_index(connection, model)
        else:
            # Where building the vector index built this one too, there is nothing left to do.
            connection.execute(definition.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS", 1).encode())
        took[name] = time.perf_counter() - started
    return took
