"""What callers of `Memory` write, as the verbs take it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from afterrun.errors import InputError
from afterrun.models import parse_time
from afterrun.remember import as_text
from afterrun.store import SearchFilter


def as_ids(ids: Iterable[UUID | str]) -> list[UUID]:
    """The ids as UUIDs. Raises InputError for what is none."""
    try:
        return [value if isinstance(value, UUID) else UUID(value) for value in ids]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError("a memory's id is a UUID, such as 0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11") from error


def search_filter(
    project: str | None,
    only_project: bool,
    collections: Iterable[str] | None,
    source_types: Iterable[str] | None,
    since: str | datetime | None,
    until: str | datetime | None,
    projects: Iterable[str] | None,
) -> SearchFilter:
    """The filter of a search from what its caller wrote. Raises InputError for what is none."""
    return SearchFilter(
        project=None if project is None else as_text("project", project),
        only_project=only_project,
        collections=as_names("collections", collections),
        source_types=as_names("source_types", source_types),
        since=None if since is None else as_time("since", since),
        until=None if until is None else as_time("until", until),
        projects=as_names("projects", projects),
    )


def as_names(what: str, values: Iterable[str] | None) -> tuple[str, ...] | None:
    """Names to restrict a question to, cleaned. Raises InputError for one string, which would be read by letter."""
    if values is None:
        return None
    if isinstance(values, str):
        raise InputError(f"{what} is a list of names, not one string: write [{values[:40]!r}]")
    return tuple(as_text(what, value) for value in values)


def as_time(what: str, value: str | datetime) -> datetime:
    """A time from a datetime or ISO 8601 text. Raises InputError for what is neither."""
    if not isinstance(value, str | datetime):
        raise InputError(f"{what} is a datetime or ISO 8601 text, not {type(value).__name__}")
    return parse_time(value)
