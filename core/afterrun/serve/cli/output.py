"""What the commands write: one JSON document, or tables on a terminal and plain columns elsewhere.

Results go to stdout; progress and remarks to stderr.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click

Rows = Iterable[Sequence[object]]
Progress = Callable[[int], None]
"""Hears how much of the total is done."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LEAST_WIDTH: Final = 12
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400


def as_json(value: object) -> object:
    """Any result as what JSON can hold: dataclasses become objects, times ISO 8601, ids and paths strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple | AbstractSet):
        return [as_json(part) for part in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID | Path):
        return str(value)
    return value


def write_json(value: object) -> None:
    """Write one JSON document to stdout."""
    readable = "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
    click.echo(json.dumps(as_json(value), ensure_ascii=not readable, indent=2))


def say(text: str) -> None:
    """A remark for people, on stderr, so that results stay clean."""
    click.echo(text, err=True)


def on_terminal() -> bool:
    """Whether results go to a terminal."""
    return sys.stdout.isatty()


def write_table(columns: Sequence[str], rows: Rows, *, title: str | None = None) -> None:
    """A table on a terminal, aligned plain columns elsewhere. No value is cut; on a terminal long text is wrapped."""
    cells = [[one_line(shown(value)) for value in row] for row in rows]
    if on_terminal():
        _write_rich(columns, cells, title)
    else:
        _write_plain(columns, cells, title)


def _write_rich(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "pad_edge": False}
    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=any(columns), **style)
    for place, column in enumerate(columns):
        longest = max((len(row[place]) for row in cells), default=0)
        # Names and ids must be copied whole; the rest of a row gives way, but not to columns of single letters.
        whole = place == 0 or any(_ID.fullmatch(row[place]) for row in cells)
        least = longest if whole else min(longest, _LEAST_WIDTH)
        table.add_column(column, no_wrap=whole, overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _write_plain(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    if title:
        click.echo(f"# {title}")
    header = [[column.upper() for column in columns]] if any(columns) else []
    lines = [*header, *cells]
    widths = [max((len(line[place]) for line in lines), default=0) for place in range(len(columns))]
    for line in lines:
        *first, last = line
        padded = [cell.ljust(width) for cell, width in zip(first, widths, strict=False)]
        click.echo("  ".join([*padded, last]).rstrip())


def shown(value: object) -> str:
    """One value for people: times in UTC to the second, scores to three digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ", ".join(shown(part) for part in value)
    return str(value)


def one_line(text: str) -> str:
    """`text` without line breaks and control characters: memories are written by others, a terminal obeys escapes."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def printable(text: str) -> str:
    """`text` with its lines, without control characters."""
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in text.expandtabs(4).splitlines())


def ago(when: datetime | None, now: datetime) -> str:
    """How long ago `when` was, in its largest whole unit; empty for None."""
    if when is None:
        return ""
    seconds = max(0, int((now - when).total_seconds()))
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Progress]:
    """A bar on stderr while the block runs, if that is a terminal; call what it gives with how much is done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def waiting(what: str) -> AbstractContextManager[object]:
    """A spinner on stderr while the block runs, if that is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)
