"""Brings a database to this version's schema: plain SQL files, each applied once, recorded and compared.

`migrations/NNNN_name.sql` are append-only: each runs in one transaction with its record, under a lock, and a file that
changed after it was applied is refused. A file whose first line is `-- no-transaction` holds one statement that cannot
run in a transaction. `migrations/functions/*.sql` are applied again whenever their text changes, and what is stored by
one of them is derived again. The HNSW index of the current embedding model is built concurrently, since its dimension
is known only here.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psycopg import sql
from psycopg.abc import Query

from afterrun.db import Connection, connect
from afterrun.errors import ModelMismatchError, SchemaError
from afterrun.models import ModelSpec

OLDEST_POSTGRES: Final = 15
OLDEST_PGVECTOR: Final = (0, 8, 4)
"""Earlier releases lack iterative index scans or their fixes."""

_NAME: Final = re.compile(r"^\d{4}_[a-z0-9_]+\.sql$")
_LOCK: Final = 0x41465445  # "AFTE": the advisory lock that two runners compete for
_STORED: Final = {"memory_words.sql": ("memories", "search", "memory_search_vector(content)")}
"""By the file of the function: the table and column that hold what it gives, and the expression."""
_BATCH: Final = 1_000
_RECORDS: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """What one run of `migrate` did: names of the files applied, and of the vector indexes built."""

    applied: tuple[str, ...]
    functions: tuple[str, ...]
    indexes: tuple[str, ...]
    model: str

    @property
    def changed(self) -> bool:
        """Whether anything was done at all."""
        return bool(self.applied or self.functions or self.indexes)


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def in_transaction(self) -> bool:
        return not self.text.startswith("-- no-transaction")


def directory() -> Path:
    """The folder of the migrations: inside the package, or at the repository's root in an editable install."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


def migrate(
    url: str,
    model: ModelSpec,
    *,
    folder: Path | None = None,
    wait: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Migrated:
    """Bring the database at `url` to this version's schema and make `model` its embedding model if it has none.

    Safe to run again and from several processes at once; `wait` bounds in seconds the wait for another runner.

    Raises:
        SchemaError: an applied file changed or is unknown, the server is too old, or another runner holds the lock.
        ModelMismatchError: the database's current model is another one.
        DatabaseError: Postgres cannot be reached or refuses a statement.
    """
    folder = folder or directory()
    with connect(url) as connection, _only_runner(connection, wait, clock):
        _check_server(connection)
        connection.execute(_RECORDS)
        applied = [_apply(connection, file, f"{file.name}") for file in _pending(connection, _files(folder))]
        _check_extension(connection)
        functions = [_apply_function(connection, file) for file in _changed_functions(connection, folder / "functions")]
        _register_model(connection, model)
        indexes = build_vector_index(connection, model)
    return Migrated(applied=tuple(applied), functions=tuple(functions), indexes=tuple(indexes), model=model.id)


def pending(connection: Connection, folder: Path | None = None) -> list[str]:
    """Names of the migrations that this version has and the database has not. Raises as `migrate`."""
    folder = folder or directory()
    if not _has_records(connection):
        return [file.name for file in _files(folder)]
    return [file.name for file in _pending(connection, _files(folder))] + [
        f"functions/{file.name}" for file in _changed_functions(connection, folder / "functions")
    ]


def vector_index_name(model_id: str) -> str:
    """The name of the partial HNSW index over the chunks of `model_id`."""
    return f"chunks_hnsw_{hashlib.sha256(model_id.encode()).hexdigest()[:12]}"


def build_vector_index(connection: Connection, model: ModelSpec) -> list[str]:
    """Build the model's HNSW index without blocking writers, if it is not there yet; returns the names built.

    A query uses it only where it repeats cast and condition: `embedding::halfvec(n)`, `model = '…' AND is_active`.
    """
    name = vector_index_name(model.id)
    built = connection.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name]).fetchone()
    if built == (True,):
        return []
    _drop_unfinished(connection, name)
    connection.execute(
        sql.SQL(
            "CREATE INDEX CONCURRENTLY {} ON chunks USING hnsw ((embedding::halfvec({})) halfvec_cosine_ops)"
            " WHERE model = {} AND is_active"
        ).format(sql.Identifier(name), sql.Literal(model.dimension), sql.Literal(model.id))
    )
    return [name]


@contextmanager
def _only_runner(connection: Connection, wait: float, clock: Callable[[], float]) -> Iterator[None]:
    # Polled, not waited for in the server: a session that blocks in pg_advisory_lock holds a snapshot, and the
    # concurrent index build of the other runner would wait for it forever.
    deadline = clock() + wait
    while connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone() != (True,):
        if clock() > deadline:
            raise SchemaError(
                f"another `afterrun migrate` has been running for {wait:.0f} s: try again when it is done"
            )
        time.sleep(0.05)
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def _check_server(connection: Connection) -> None:
    version = connection.info.server_version // 10_000
    if version < OLDEST_POSTGRES:
        raise SchemaError(f"Postgres {version} is too old: Afterrun needs {OLDEST_POSTGRES} or newer")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaError(
            f"the database's encoding is {encoding}, which cannot hold any text:"
            " create one with `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
        )


def _check_extension(connection: Connection) -> None:
    row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    version = tuple(int(part) for part in str(row[0] if row else "0").split("."))
    if version < OLDEST_PGVECTOR:
        oldest = ".".join(map(str, OLDEST_PGVECTOR))
        raise SchemaError(
            f"pgvector {row[0] if row else 'is missing'} is too old: install {oldest} or newer,"
            " then run `ALTER EXTENSION vector UPDATE`"
        )


def _files(folder: Path) -> list[_File]:
    files = sorted(folder.glob("*.sql"))
    if not files:
        raise SchemaError(f"no migrations in {folder}: the installation is incomplete, install afterrun again")
    for path in files:
        if not _NAME.match(path.name):
            raise SchemaError(f"{path.name} is no migration's name: use NNNN_what_it_does.sql")
    return [_read(path) for path in files]


def _read(path: Path) -> _File:
    return _File(name=path.name, text=path.read_text(encoding="utf-8").replace("\r\n", "\n"))


def _recorded(connection: Connection) -> dict[str, str]:
    return {str(name): str(digest) for name, digest in connection.execute("SELECT name, sha256 FROM schema_migrations")}


def _has_records(connection: Connection) -> bool:
    return connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchone() == (True,)


def _pending(connection: Connection, files: list[_File]) -> list[_File]:
    recorded = _recorded(connection)
    for file in files:
        if recorded.get(file.name, file.sha256) != file.sha256:
            raise SchemaError(
                f"{file.name} was changed after it was applied: migrations are append-only,"
                " restore it and add a new file"
            )
    unknown = sorted(name for name in recorded if "/" not in name and name not in {file.name for file in files})
    if unknown:
        raise SchemaError(f"the database has {', '.join(unknown)}, which this version does not know: update afterrun")
    return [file for file in files if file.name not in recorded]


def _changed_functions(connection: Connection, folder: Path) -> list[_File]:
    recorded = _recorded(connection)
    files = [_read(path) for path in sorted(folder.glob("*.sql"))]
    return [file for file in files if recorded.get(f"functions/{file.name}") != file.sha256]


def _apply_function(connection: Connection, file: _File) -> str:
    # The record comes last: where the derivation is interrupted, the next run finds the file changed and starts again.
    if file.name in _STORED:
        connection.execute(_as_query(file.text))
        _wait_for_writers(connection, _STORED[file.name][0])
        _derive_again(connection, *_STORED[file.name])
    return _apply(connection, file, f"functions/{file.name}")


def _wait_for_writers(connection: Connection, table: str) -> None:
    # Their rows may hold what the function gave before, and cannot be seen yet.
    waited = _writers(connection, table)
    while waited := waited & _writers(connection, table):
        time.sleep(0.05)


def _writers(connection: Connection, table: str) -> set[str]:
    rows = connection.execute(
        "SELECT virtualtransaction FROM pg_locks WHERE relation = to_regclass(%s) AND mode = 'RowExclusiveLock'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [table],
    )
    return {str(row[0]) for row in rows}


def _derive_again(connection: Connection, table: str, column: str, expression: str) -> None:
    """Set `column` of every row whose value has changed, in batches, so that writers wait only for moments."""
    batch = sql.SQL(
        "WITH batch AS (SELECT id FROM {table} WHERE %(after)s::uuid IS NULL OR id > %(after)s"
        " ORDER BY id LIMIT %(size)s),"
        " changed AS (UPDATE {table} SET {column} = {expression} WHERE id IN (SELECT id FROM batch)"
        " AND {column} IS DISTINCT FROM {expression})"
        " SELECT id FROM batch ORDER BY id DESC LIMIT 1"
    ).format(table=sql.Identifier(table), column=sql.Identifier(column), expression=sql.SQL(expression))
    last: object = None
    while row := connection.execute(batch, {"after": last, "size": _BATCH}).fetchone():
        last = row[0]


def _apply(connection: Connection, file: _File, name: str) -> str:
    if file.in_transaction:
        with connection.transaction():
            connection.execute(_as_query(file.text))
            _record(connection, file, name)
    else:
        _drop_unfinished(connection, file.text)
        connection.execute(_as_query(file.text))
        _record(connection, file, name)
    return name


def _drop_unfinished(connection: Connection, text: str) -> None:
    """Drop the indexes named in `text` whose concurrent build was interrupted: they slow writes and serve nothing."""
    unfinished = connection.execute(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE NOT i.indisvalid AND c.relname = ANY (%s)",
        [re.findall(r"\w+", text)],
    ).fetchall()
    for (name,) in unfinished:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))


def _record(connection: Connection, file: _File, name: str) -> None:
    connection.execute(
        "INSERT INTO schema_migrations (name, sha256) VALUES (%s, %s)"
        " ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, applied_at = now()",
        [name, file.sha256],
    )


def _as_query(text: str) -> Query:
    return text.encode()


def _register_model(connection: Connection, model: ModelSpec) -> None:
    current = connection.execute("SELECT id, dimension FROM embedding_models WHERE is_current").fetchone()
    if current is None:
        connection.execute(
            "INSERT INTO embedding_models (id, dimension, is_current) VALUES (%s, %s, true)",
            [model.id, model.dimension],
        )
    elif current != (model.id, model.dimension):
        raise ModelMismatchError(
            f"the database holds vectors of {current[0]} ({current[1]} dimensions), but the settings name {model.id}"
            f" ({model.dimension}): set AFTERRUN_MODEL to the database's model"
        )
