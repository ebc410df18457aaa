"""The command on sessions: summarize."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click

from afterrun.models import GLOBAL_PROJECT
from afterrun.serve.cli.output import one_line, progress, say, write_json
from afterrun.serve.cli.program import FAILED, Command, open_memory

if TYPE_CHECKING:
    from afterrun.summarize import Summarized


@click.command(cls=Command)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--project", default=GLOBAL_PROJECT, show_default=True, help="Whose memory it is; global is everybody's.")
@click.option("--session", help="The name of the session, kept with each memory.")
@click.option("--created-at", help="When the session took place (ISO 8601, naive is UTC). Default: now.")
@click.pass_context
def summarize(
    ctx: click.Context, file: IO[bytes], project: str, session: str | None, created_at: str | None, as_json: bool
) -> None:
    """Remember the facts of a session's transcript: FILE, or - for stdin.

    Claude Haiku reads it with a key, else rules do. Ends with 1 where a part of it was not read; the same command
    again goes on from there.

    \b
    Example:
      afterrun summarize --project shop --session 2026-03-02 transcript.md
    """
    text = file.read().decode("utf-8", "replace")
    with open_memory() as memory, progress("reading", None) as advance:
        done = memory.summarize_session(
            text,
            project=project,
            session=session,
            created_at=created_at,
            on_progress=lambda read, parts: advance(read),
        )
    if as_json:
        write_json(done)
    else:
        _write(done)
    if done.stopped:
        ctx.exit(FAILED)


def _write(done: Summarized) -> None:
    for fact in done.facts:
        mark = "+" if fact.created else "="
        click.echo(f"{mark} {fact.id}  {fact.source_type}  {fact.importance:g}  {one_line(fact.content)}")
    for dropped in done.dropped:
        say(f"note: dropped, {dropped.reason}: {one_line(dropped.content)[:80]}")
    known = f", {done.parts_known} of its {done.parts} parts were read before" if done.parts_known else ""
    say(f"{done.added} facts remembered, {len(done.facts) - done.added} known, read by {done.extractor}{known}")
    if done.stopped:
        say(f"error: {len(done.unread)} spans of the session are not read: {done.stopped}")
