"""How found memories look: a block each on a terminal, a line each elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import click

from afterrun.models import Hit, MemoryRecord, Withheld
from afterrun.serve.cli.output import on_terminal, printable, shown, write_table

_COLUMNS = ("#", "score", "project", "type", "date", "id", "content")
_PART_COLUMNS = ("relevance", "vector", "text", "decay", "weight", "affinity")
_LINES = 6


def write_hits(hits: Sequence[Hit], *, parts: bool = False) -> None:
    """Hits best first; `parts` adds what each score is made of."""
    if on_terminal():
        for place, hit in enumerate(hits, 1):
            write_block(place, hit, parts=parts)
        return
    if not hits:
        return
    columns = (*_COLUMNS[:-1], *(_PART_COLUMNS if parts else ()), _COLUMNS[-1])
    write_table(columns, [_row(place, hit, parts) for place, hit in enumerate(hits, 1)])


def write_withheld(withheld: Sequence[Withheld]) -> None:
    """What a recall found and left out, with the reason."""
    rows = [(entry.hit.score, entry.hit.id, entry.reason) for entry in withheld]
    write_table(("score", "id", "withheld because of"), rows)


def write_block(place: int, hit: Hit, *, parts: bool, lines: int = _LINES, note: str = "") -> None:
    """One hit as a headline with a remark, its text without blank lines, and the parts of its score."""
    origin = f"{hit.project} · {hit.source_type} · {hit.created_at:%Y-%m-%d}"
    click.echo(click.style(f"{place:>2}  {hit.score:.3f}", bold=True, fg="green") + f"  {origin}  " + _dim(str(hit.id)))
    if note:
        click.echo(click.style(f"    ← {note}", fg="cyan"))
    text = [line for line in printable(hit.content).splitlines() if line.strip()]
    for line in text[:lines]:
        click.echo(f"    {line}")
    if len(text) > lines:
        click.echo(_dim(f"    … and {len(text) - lines} more"))
    if parts:
        click.echo(_dim(f"    {parts_of(hit)}"))
    click.echo()


def parts_of(hit: Hit) -> str:
    """What a score is made of, in one line."""
    found_by = ", ".join(
        f"{name} {value:.3f}" for name, value in (("vector", hit.vector), ("words", hit.text)) if value is not None
    )
    return (
        f"relevance {hit.relevance:.3f} ({found_by or 'neither words nor vector: newest'})"
        f" · decay {hit.decay:.2f} · type {hit.weight:g} · project {hit.affinity:g}"
    )


def write_records(records: Sequence[MemoryRecord]) -> None:
    """Memories in full: every field, then the text."""
    for place, record in enumerate(records):
        if place:
            click.echo()
        for name, value in _fields(record):
            click.echo(f"{_dim(name.ljust(11))} {shown(value)}".rstrip())
        click.echo()
        click.echo(printable(record.content))


def state_of(record: MemoryRecord) -> str:
    """The state of a memory in a word."""
    if record.archived:
        return "forgotten"
    if record.superseded_by:
        return "superseded"
    return "active" if record.is_active else "inactive"


def _fields(record: MemoryRecord) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("id", record.id),
        ("state", state_of(record) + (f" by {record.superseded_by}" if record.superseded_by else "")),
        ("project", record.project),
        ("collection", record.collection),
        ("type", record.source_type),
        ("category", record.category),
        ("importance", record.importance),
        ("session", record.session),
        ("source key", record.source_key),
        ("seen", record.seen),
        ("last seen", record.seen_at),
        ("created", record.created_at),
        ("updated", record.updated_at),
        *((f"  {key}", value) for key, value in sorted(record.metadata.items())),
    ]
    return [(name, value) for name, value in pairs if value not in (None, "")]


def _row(place: int, hit: Hit, parts: bool) -> list[object]:
    made_of = [hit.relevance, hit.vector, hit.text, hit.decay, hit.weight, hit.affinity] if parts else []
    day = f"{hit.created_at:%Y-%m-%d}"
    return [place, hit.score, hit.project, hit.source_type, day, hit.id, *made_of, hit.content]


def _dim(text: str) -> str:
    return click.style(text, dim=True)
