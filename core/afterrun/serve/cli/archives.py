"""Commands that carry a memory from one database to another: export, import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from afterrun.serve.cli.output import progress, say, write_json
from afterrun.serve.cli.program import Command, open_memory, wrong_usage

if TYPE_CHECKING:
    from afterrun.archive import Imported

STREAM: Final = "-"
_FILE: Final = click.Path(dir_okay=False, allow_dash=True)


@click.command("export", cls=Command)
@click.argument("file", type=_FILE, default=STREAM, metavar="[FILE]")
@click.option("--project", "projects", multiple=True, help="Only this project's memories; repeat it for more.")
@click.option("--since", help="Only memories from this time on (ISO 8601, naive is UTC).")
@click.option("--until", help="Only memories before this time.")
def export(file: str, projects: tuple[str, ...], since: str | None, until: str | None, as_json: bool) -> None:
    """Write memories with their vectors and lineage to FILE, or to stdout, as JSON Lines.

    FILE is compressed where its name ends in .gz, and replaced only when all is written.

    \b
    Examples:
      afterrun export memories.jsonl.gz
      afterrun export --project shop --since 2026-01-01 - | ssh elsewhere afterrun import -
    """
    if file == STREAM and as_json:
        wrong_usage("the export itself goes to stdout: with --json name a FILE")
    with open_memory() as memory:
        target = sys.stdout.buffer if file == STREAM else file
        where: dict[str, Any] = {"projects": projects or None, "since": since, "until": until}
        with progress("exporting", None) as advance:
            done = memory.export_to(target, **where, on_progress=advance)
    if as_json:
        write_json(done)
    else:
        say("exported: " + _listed(done.counts))


@click.command("import", cls=Command)
@click.argument("file", type=_FILE, default=STREAM, metavar="[FILE]")
def import_(file: str, as_json: bool) -> None:
    """Bring in what `afterrun export` wrote, from FILE or stdin, compressed or not.

    What is here stays as it is, so the same file may come again, and an import that was stopped goes on. Private parts
    and secrets stay outside. Ends with 1 at the first line that cannot be used, and says which.

    \b
    Example:
      afterrun import memories.jsonl.gz
    """
    with open_memory() as memory, progress("importing lines", None) as advance:
        done = memory.import_from(sys.stdin.buffer if file == STREAM else Path(file), on_progress=advance)
    if as_json:
        write_json(done)
    else:
        _write(done)


def _write(done: Imported) -> None:
    memories = done.memories
    click.echo(f"imported: {memories.added} memories, {memories.known} were here" + _more(done))
    if memories.redacted:
        say(f"note: {memories.redacted} held secrets or private parts, which were left out")
    if memories.pending:
        say(f"note: {memories.pending} wait for a worker to embed them; they are found by their words")


def _more(done: Imported) -> str:
    memories = done.memories
    parts = [f"{memories.repeated} of them say what notes here say"] if memories.repeated else []
    parts += [f"{memories.empty} were private as a whole"] if memories.empty else []
    others = _listed(done.others)
    return "".join(f"; {part}" for part in [*parts, *([f"also {others}"] if others else [])])


def _listed(counts: Any) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)
