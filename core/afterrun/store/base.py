"""How a named query is run: with named values, on a connection whose transaction the caller holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from psycopg import Cursor
from psycopg.rows import class_row

from afterrun.db import Connection
from afterrun.sql import queries

Row = TypeVar("Row")


class Queries:
    """Runs named queries. Errors are psycopg's; `db` maps them where the transaction ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, name: str, **values: object) -> Cursor[Any]:
        return self._connection.execute(queries()[name].encode(), values)

    def value(self, name: str, **values: object) -> object:
        row = self.run(name, **values).fetchone()
        return row[0] if row else None

    def records(self, record: type[Row], name: str, **values: object) -> list[Row]:
        with self._connection.cursor(row_factory=class_row(record)) as cursor:
            return cursor.execute(queries()[name].encode(), values).fetchall()

    def many(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(queries()[name].encode(), rows)

    def each(self, name: str, rows: Sequence[Mapping[str, object]]) -> Iterator[Any]:
        # One pipelined round trip for all rows, each with its own result.
        if not rows:
            return
        with self._connection.cursor() as cursor:
            cursor.executemany(queries()[name].encode(), rows, returning=True)
            for place in range(len(rows)):
                yield cursor.fetchone()
                if place < len(rows) - 1:
                    cursor.nextset()
