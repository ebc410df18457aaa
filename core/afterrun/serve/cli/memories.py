"""Commands on single memories: remember, recall, search, get, forget, history."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from afterrun.models import COLLECTIONS, GLOBAL_PROJECT
from afterrun.serve.cli.hits import write_hits, write_records, write_withheld
from afterrun.serve.cli.output import one_line, printable, say, write_json
from afterrun.serve.cli.program import FAILED, Command, open_memory, wrong_usage

if TYPE_CHECKING:
    from afterrun.models import MemoryRecord

Function = TypeVar("Function", bound=Callable[..., Any])


def filters(command: Function) -> Function:
    """The options that say where to look, shared by recall and search."""
    options = (
        click.argument("query", nargs=-1),
        click.option("--project", help="Prefer this project's memories; others are still found."),
        click.option("--only-project", is_flag=True, help="Return memories of --project only."),
        click.option(
            "--collection", "collections", type=click.Choice(COLLECTIONS), multiple=True, help="Only these collections."
        ),
        click.option("--source-type", "source_types", multiple=True, help="Only these source types, such as decision."),
        click.option("--since", help="Only memories from this time on (ISO 8601, naive is UTC)."),
        click.option("--until", help="Only memories before this time."),
        click.option(
            "--min-results", type=int, default=5, show_default=True, help="Return at least so many, if so many exist."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=Command)
@click.argument("text")
@click.option("--project", default=GLOBAL_PROJECT, show_default=True, help="Whose memory it is; global is everybody's.")
@click.option("--source-type", default="fact", show_default=True, help="decision, preference, bug_fix, …")
@click.option(
    "--collection", type=click.Choice(COLLECTIONS), default="memory", show_default=True, help="Where it goes."
)
@click.option("--category", help="A word of your own to sort by.")
@click.option("--importance", type=float, default=0.5, show_default=True, help="From 0 to 1.")
@click.option("--session", help="The conversation or run that it comes from.")
@click.option("--session-ordinal", type=int, help="Its place in that session.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata; a value that is JSON is taken as such.")
@click.option("--created-at", help="When it became true (ISO 8601, naive is UTC). Default: now.")
@click.option("--wait", is_flag=True, help="Return only when it is found by its meaning, too.")
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds that --wait waits at most.")
def remember(text: str, metadata: tuple[str, ...], wait: bool, as_json: bool, **fields: Any) -> None:
    """Write a note; TEXT may be - to read it from stdin.

    It is found by its words at once. The exact repeat of a note reinforces it.

    \b
    Example:
      afterrun remember --project shop --source-type decision "Orders are stored in Postgres, not in MongoDB."
    """
    content = _from_stdin() if text == "-" else text
    pairs = dict(_pair(entry) for entry in metadata)
    with open_memory() as memory:
        written = memory.remember(content, metadata=pairs, wait="embedded" if wait else None, **fields)
    if as_json:
        write_json(written)
        return
    click.echo(f"{'remembered' if written.created else 'known, reinforced'}: {written.id}")
    if wait and not written.embedded:
        say(f"note: not embedded within {fields['timeout']:g} s; it is found by its words, see `afterrun status`")


@click.command(cls=Command)
@filters
@click.option("--token-budget", type=int, default=2000, show_default=True, help="Tokens that the hits may take.")
@click.option("--explain", is_flag=True, help="Show what each score is made of, and what was withheld and why.")
def recall(query: tuple[str, ...], token_budget: int, explain: bool, as_json: bool, **where: Any) -> None:
    """What is worth knowing for QUERY, best first, packed into a token budget. Without QUERY: the newest.

    \b
    Example:
      afterrun recall --project shop "how are orders stored?"
    """
    with open_memory() as memory:
        found = memory.recall(" ".join(query), token_budget=token_budget, explain=explain, **_restrictions(where))
    if as_json:
        write_json(found)
        return
    write_hits(found.hits, parts=explain)
    if explain and found.withheld:
        write_withheld(found.withheld)
    say(f"found: {len(found.hits)}, {found.tokens} tokens" if found.hits else "no memory passes the filters")


@click.command(cls=Command)
@filters
@click.option("--limit", type=int, default=20, show_default=True, help="Return at most so many.")
@click.option("--explain-plan", is_flag=True, help="Show how Postgres ran the search, instead of what it found.")
def search(query: tuple[str, ...], explain_plan: bool, as_json: bool, **where: Any) -> None:
    """The raw list of hits for QUERY with their scores, neither packed nor cut. Without QUERY: the newest.

    \b
    Example:
      afterrun search --source-type decision --since 2026-01-01 --limit 50 database
    """
    with open_memory() as memory:
        if explain_plan:
            _write_plans(memory.search_plans(" ".join(query), **_restrictions(where)), as_json=as_json)
            return
        hits = memory.search(" ".join(query), **_restrictions(where))
    if as_json:
        write_json(hits)
        return
    write_hits(hits, parts=True)
    say(f"found: {len(hits)}" if hits else "no memory passes the filters")


@click.command(cls=Command)
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
def get(ids: tuple[str, ...], as_json: bool) -> None:
    """Show memories in full, in whatever state they are.

    \b
    Example:
      afterrun get 0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11
    """
    with open_memory() as memory:
        records = memory.get(*ids)
    if as_json:
        write_json(records)
    else:
        write_records(records)


@click.command(cls=Command)
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def forget(ctx: click.Context, ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Take memories out of recall for good; no source brings them back. Asks first.

    \b
    Example:
      afterrun forget --yes 0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11
    """
    if not yes and not sys.stdin.isatty():
        wrong_usage("forget asks before it acts, and this is no terminal: add --yes")
    with open_memory() as memory:
        records = memory.get(*ids)
        if not yes and not _agreed(records):
            say("nothing is forgotten")
            ctx.exit(FAILED)
        forgotten = memory.forget(*ids)
    if as_json:
        write_json({"forgotten": forgotten})
    else:
        click.echo(f"forgotten: {len(forgotten)}" + ("" if len(forgotten) == len(records) else ", the others before"))


@click.command(cls=Command)
@click.argument("memory_id", metavar="ID")
def history(memory_id: str, as_json: bool) -> None:
    """Where a memory comes from and what became of it: a tree of merges with their reasons.

    \b
    Example:
      afterrun history 0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11
    """
    with open_memory() as memory:
        lineage = memory.history(memory_id)
    if as_json:
        write_json(lineage)
        return
    from afterrun.serve.cli.ancestry import write_tree

    write_tree(lineage)


def _restrictions(where: dict[str, Any]) -> dict[str, Any]:
    """The options as the library takes them: one that was not given restricts nothing."""
    return {name: None if value == () else value for name, value in where.items()}


def _write_plans(plans: list[str], *, as_json: bool) -> None:
    if as_json:
        write_json(plans)
    else:
        click.echo("\n\n".join(map(printable, plans)))


def _agreed(records: list[MemoryRecord]) -> bool:
    for record in records:
        say(f"{record.id}  {one_line(record.content)[:80]}")
    return click.confirm(f"Forget {len(records)} for good?", err=True)


def _pair(entry: str) -> tuple[str, object]:
    key, separator, text = entry.partition("=")
    if not key or not separator:
        wrong_usage(f"--metadata {entry!r}: write KEY=VALUE")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text


def _from_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")
