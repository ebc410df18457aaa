"""Connections to Postgres: one small pool a process, transactions, and psycopg's errors as ours."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

import psycopg
from pgvector.psycopg import register_vector
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from afterrun.errors import (
    AfterrunError,
    ContendedError,
    DatabaseError,
    DatabaseUnavailableError,
    RefusedError,
    SchemaError,
)
from afterrun.masking import masked_text, masked_url

Connection = psycopg.Connection[TupleRow]

_MISSING_SCHEMA: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
)
_REFUSED_DATA: Final = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
_CONTENDED: Final = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)
_BROKEN_CONNECTION: Final = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, PoolClosed)


_VECTOR: Final = re.compile(r"'\[[-0-9.e,]{32,}\]'")
# Settings that this release of Postgres does not have are left out.
_RECORD_PLANS: Final = """
SELECT set_config(name, asked.setting, true)
FROM (VALUES
    ('auto_explain.log_min_duration', '0'),
    ('auto_explain.log_analyze', 'on'),
    ('auto_explain.log_buffers', 'on'),
    ('auto_explain.log_settings', 'on'),
    ('auto_explain.log_nested_statements', 'on'),
    ('auto_explain.log_parameter_max_length', '0'),
    ('auto_explain.log_level', 'notice'),
    ('client_min_messages', 'notice')
) AS asked (name, setting)
JOIN pg_settings USING (name)
"""

_ATTEMPTS: Final = 4
Result = TypeVar("Result")


_databases: WeakSet[Database] = WeakSet()
_abandoned: list[ConnectionPool[Connection]] = []


class Database:
    """A pool of connections to one database, opened on first use and anew in a forked child.

    `timeout` bounds the wait for a connection in seconds, `size` the connections that this process opens.
    """

    def __init__(self, url: str, *, timeout: float = 5.0, size: int = 4) -> None:
        self.url = url
        self._timeout = timeout
        self._size = size
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Connection] | None = None
        _databases.add(self)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction that commits at the end and rolls back on an error.

        Raises:
            DatabaseUnavailableError: no connection within the timeout, or it broke.
            RefusedError: Postgres refuses the data of a statement.
            SchemaError: a table, column or function that this code needs is missing.
            DatabaseError: anything else that Postgres refuses.
        """
        with database_errors(self.url), self._opened().connection() as connection:
            yield connection

    def settled(self, work: Callable[[Connection], Result]) -> Result:
        """What `work` returns in a transaction, which is run again where Postgres ended it to resolve a deadlock.

        Raises as `transaction`; contention after `_ATTEMPTS` is a ContendedError.
        """
        for _ in range(_ATTEMPTS - 1):
            with suppress(ContendedError), self.transaction() as connection:
                return work(connection)
        with self.transaction() as connection:
            return work(connection)

    def close(self) -> None:
        """Close the pool; the next use opens it again."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> ConnectionPool[Connection]:
        with self._lock:
            if self._pool is None:
                # A pool only says that time ran out; a first connection of our own says at once what is wrong.
                psycopg.connect(self.url, **connect_arguments(self._timeout)).close()
                self._pool = ConnectionPool(
                    self.url,
                    min_size=0,
                    max_size=self._size,
                    timeout=self._timeout,
                    max_idle=60,
                    configure=_configure,
                    check=ConnectionPool.check_connection,
                    reconnect_timeout=self._timeout,
                    kwargs=connect_arguments(self._timeout),
                    open=True,
                )
            return self._pool

    def _after_fork(self) -> None:
        # The sockets are the parent's and the pool's threads did not survive the fork: a child neither uses nor closes
        # them, and keeps the pool from being collected, which would wait for those threads.
        self._lock = threading.Lock()
        if self._pool is not None:
            _abandoned.append(self._pool)
            self._pool = None


def _reset_after_fork() -> None:
    for database in list(_databases):
        database._after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def connect(url: str, *, timeout: float = 5.0) -> Iterator[Connection]:
    """One connection of its own in autocommit mode, for migrations. Raises as `Database.transaction`."""
    with database_errors(url), psycopg.connect(url, autocommit=True, **connect_arguments(timeout)) as connection:
        yield connection


@contextmanager
def recorded_plans(connection: Connection) -> Iterator[list[str]]:
    """Lists, within a transaction, how Postgres runs each statement, those inside of functions first.

    Each text has the statement, its plan, times and buffers, as EXPLAIN (ANALYZE, BUFFERS) shows them; vectors are
    left out of it. It is the plan of what really ran, which EXPLAIN of a function call does not show.

    Raises:
        DatabaseError: the server does not let this role use its module auto_explain; the message says what to do.
    """
    plans: list[str] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        # By its source, since messages may come in the server's language.
        if notice.message_primary and (notice.source_file or "").endswith("auto_explain.c"):
            plans.append(_VECTOR.sub("'[…]'", notice.message_primary))

    try:
        if connection.execute("SELECT current_setting('auto_explain.log_analyze', true)").fetchone() == (None,):
            connection.execute("LOAD 'auto_explain'")
        connection.execute(_RECORD_PLANS)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFile) as error:
        raise DatabaseError(
            f"the server does not show plans to this role ({_first_line(error)}): use a superuser, or have"
            " one put auto_explain into session_preload_libraries and GRANT SET ON PARAMETER auto_explain.… to it"
        ) from error
    connection.add_notice_handler(keep)
    try:
        yield plans
        # A statement's plan comes when the next one takes its place.
        connection.execute("SELECT")
    finally:
        connection.remove_notice_handler(keep)


def connect_arguments(timeout: float) -> dict[str, Any]:
    """What every connection is opened with: a bounded connect, and a peer that went away is noticed."""
    return {
        "connect_timeout": max(2, round(timeout)),
        "application_name": "afterrun",
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }


@contextmanager
def database_errors(url: str) -> Iterator[None]:
    """Turn psycopg's errors into ours, with what to do."""
    try:
        yield
    except AfterrunError:
        raise
    except _MISSING_SCHEMA as error:
        raise SchemaError(
            f"the database's schema is not the one this version needs ({_first_line(error)}): run `afterrun migrate`"
        ) from error
    except _REFUSED_DATA as error:
        raise RefusedError(f"Postgres refused the data of a statement: {_first_line(error)}") from error
    except _CONTENDED as error:
        raise ContendedError(
            f"others worked on the same rows at the same time ({_first_line(error)}): nothing was changed, try again"
        ) from error
    except _BROKEN_CONNECTION as error:
        raise DatabaseUnavailableError(
            f"cannot reach Postgres at {masked_url(url)} ({masked_text(_first_line(error), url)}):"
            " is it running, and is DATABASE_URL right?"
        ) from error
    except psycopg.Error as error:
        raise DatabaseError(f"Postgres refused a statement: {_first_line(error)}") from error


def _configure(connection: Connection) -> None:
    # On a database that was never migrated the vector type is missing; the first statement then says so (SchemaError),
    # which is clearer than a pool that cannot be filled.
    with suppress(psycopg.ProgrammingError):
        register_vector(connection)
    connection.rollback()
    # psycopg reads times in the session's zone, where those at either end of Python's calendar can lie outside of it.
    connection.execute("SET TIME ZONE 'UTC'")
    connection.commit()


def _first_line(error: BaseException) -> str:
    # Only the first line: DETAIL and CONTEXT may quote rows.
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
