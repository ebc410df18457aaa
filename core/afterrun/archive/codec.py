"""The format of an export: JSON Lines, each line an object whose `record` says what it is.

    {"record": "header", "format": "afterrun", "version": 1, …}
    {"record": "source_types", "types": [{…}, …]}
    {"record": "memory", "id": …, "chunks": [{"embedding": …, …}], …}      what replaced a memory comes before it
    {"record": "consolidation" | "dead_letter" | "spend" | "session_window" | "source_file", …}
    {"record": "footer", "counts": {"memory": 17, …}}

Times are ISO 8601 with an offset, ids UUIDs, bytes base64; a vector is base64 of little-endian float16.
"""

from __future__ import annotations

import base64
import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from afterrun.errors import InputError
from afterrun.models import parse_time
from afterrun.redact import scrub_value
from afterrun.store import (
    ConsolidationCopy,
    DeadLetterCopy,
    MemoryCopy,
    SourceFileCopy,
    SourceTypeCopy,
    SpendCopy,
    WindowCopy,
)

FORMAT: Final = "afterrun"
VERSION: Final = 1
"""Rises when a reader of this version could not read the file without losing something."""

Record = TypeVar("Record")
_Reader = Callable[[object], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The embedding model of the database that was exported."""

    id: str
    dimension: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """What the export was restricted to; None means not."""

    projects: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The first line. `export` names this one export, `database` the one it comes from, `schema` its last migration."""

    format: str
    version: int
    product: str
    schema: str
    export: UUID
    database: UUID
    created_at: datetime
    model: Model | None
    filter: Filter


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTypes:
    """All source types of a database: how they fade and count."""

    types: tuple[SourceTypeCopy, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """The last line: how many records of each kind stand between it and the header. A file without one was cut."""

    counts: Mapping[str, object]


KINDS: Final[Mapping[str, type]] = {
    "header": Header,
    "source_types": SourceTypes,
    "memory": MemoryCopy,
    "consolidation": ConsolidationCopy,
    "dead_letter": DeadLetterCopy,
    "spend": SpendCopy,
    "session_window": WindowCopy,
    "source_file": SourceFileCopy,
    "footer": Footer,
}
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


def encode(record: object) -> dict[str, object]:
    """A record as the object that its line holds."""
    return {"record": _NAMES[type(record)], **_fields(record)}


def decode(kind: type[Record], line: Mapping[str, object]) -> Record:
    """The record of a line, every text in it cleaned and redacted.

    Raises:
        InputError: a field is missing, unknown, or of another type.
    """
    values = {name: value for name, value in line.items() if name != "record"}
    record: Record = _read_object(kind, values)
    return record


def _fields(record: Any) -> dict[str, object]:
    return {field.name: _encoded(getattr(record, field.name)) for field in fields(record)}


def _encoded(value: object) -> object:
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, UUID) else value


def _read_object(kind: type, values: object) -> Any:
    if not isinstance(values, dict):
        raise InputError(f"{_name_of(kind)} is an object, not {type(values).__name__}")
    readers, required = _readers(kind)
    if missing := required - values.keys():
        raise InputError(f"{_name_of(kind)} has no {', '.join(sorted(missing))}")
    if unknown := values.keys() - readers.keys():
        # Only their number: a key may hold anything.
        raise InputError(f"{_name_of(kind)} has {len(unknown)} fields that this version does not know")
    return kind(**{name: _read_field(name, readers[name], value) for name, value in values.items()})


def _read_field(name: str, reader: _Reader, value: object) -> object:
    try:
        return reader(value)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        reason = error if isinstance(error, InputError) else f"a value of type {type(value).__name__} cannot be used"
        raise InputError(f"{name}: {reason}") from None


@cache
def _readers(kind: type) -> tuple[dict[str, _Reader], frozenset[str]]:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    return readers, frozenset(field.name for field in fields(kind) if field.default is MISSING)


def _reader(hint: Any) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = _reader(next(part for part in arguments if part is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(item(each) for each in _of_type(list, value))
    if isinstance(hint, type) and is_dataclass(hint):
        return functools.partial(_read_object, hint)
    return _PLAIN[origin or hint]


def _of_type(kind: type, value: object) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"it is {kind.__name__}, not {type(value).__name__}")
    return value


def _text(value: object) -> str:
    return _cleaned(_of_type(str, value))


@lru_cache(maxsize=2)
def _cleaned(text: str) -> str:
    # A short memory and its only chunk have the same text.
    return str(scrub_value(text))


def _number(value: object) -> float:
    number = float(_of_type(int if isinstance(value, int) else float, value))
    if not math.isfinite(number):
        raise InputError("it is no finite number")
    return number


_PLAIN: Final[dict[Any, _Reader]] = {
    str: _text,
    int: lambda value: _of_type(int, value),
    float: _number,
    bool: lambda value: _of_type(bool, value),
    UUID: lambda value: UUID(_of_type(str, value)),
    datetime: lambda value: parse_time(_of_type(str, value)),
    bytes: lambda value: base64.b64decode(_of_type(str, value), validate=True),
    Mapping: lambda value: scrub_value(_of_type(dict, value)),
}


def _name_of(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__).replace("_", " ")
