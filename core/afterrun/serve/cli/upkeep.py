"""Commands that look after the memory: status, undo, retry."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from afterrun.serve.cli.output import ago, say, shown, write_json, write_table
from afterrun.serve.cli.program import Command, open_memory, wrong_usage

if TYPE_CHECKING:
    from afterrun.budget import Spending
    from afterrun.care import RunStoreStatus, Status
    from afterrun.models import Spend
    from afterrun.store import DeadLetter


@click.command(cls=Command)
def status(as_json: bool) -> None:
    """How everything is: what the memory holds, what waits and since when, what failed.

    Ends with 1 when Postgres cannot be reached.

    \b
    Example:
      afterrun status --json
    """
    with open_memory() as memory:
        from afterrun import care

        found = memory.status()
        letters = care.dead_letters(memory.database) if found.dead_letters else []
    if as_json:
        write_json({"status": found, "dead_letters": letters})
    else:
        _write_status(found, letters, datetime.now(UTC))


@click.command(cls=Command)
@click.argument("consolidation", required=False, metavar="CONSOLIDATION_ID")
@click.option("--since", help="Instead of an id: every merge since this time (ISO 8601, naive is UTC).")
def undo(consolidation: str | None, since: str | None, as_json: bool) -> None:
    """Take a merge back: its originals return to recall, the merged memory leaves it.

    \b
    Examples:
      afterrun undo 5f0c3a52-0c6e-4a52-9d0b-3b8f0a0c9e11
      afterrun undo --since 2026-01-31T12:00
    """
    if (consolidation is None) == (since is None):
        wrong_usage("give one of CONSOLIDATION_ID and --since")
    with open_memory() as memory:
        undone = [memory.undo(consolidation)] if consolidation else memory.undo_since(since or "")
    if as_json:
        write_json(undone)
        return
    for cluster in undone:
        click.echo(f"undone: {cluster.id}, what it replaced is recalled again")
    if not undone:
        say("nothing was merged since then")


@click.command(cls=Command)
@click.argument("letters", nargs=-1, type=int, metavar="[ID…]")
@click.option("--all", "all_", is_flag=True, help="Every dead letter.")
def retry(letters: tuple[int, ...], all_: bool, as_json: bool) -> None:
    """Bring dead letters back to work; `afterrun status` lists them with their ids.

    \b
    Example:
      afterrun retry --all
    """
    if bool(letters) == all_:
        wrong_usage("give either ids or --all")
    with open_memory() as memory:
        count = memory.retry(*letters)
    if as_json:
        write_json({"retried": count})
    else:
        click.echo(f"retried: {count}")


def _write_status(found: Status, letters: list[DeadLetter], now: datetime) -> None:
    write_table(("", ""), _figures(found, now), title="Memory")
    _write_spending(found.spending)
    if found.queues is None:
        say(f"note: the broker does not answer: {found.broker_error}")
    else:
        write_table(("queue", "messages"), sorted(found.queues.items()), title="Queues")
    if found.run_stores:
        columns = ("runs", "indexed", "unindexed", "oldest unindexed", "empty", "run store", "note")
        write_table(columns, [_store_row(store, now) for store in found.run_stores], title="Run stores")
    if letters:
        rows = [
            (letter.id, letter.task, letter.subject, ago(letter.created_at, now), letter.error) for letter in letters
        ]
        write_table(("id", "task", "subject", "since", "error"), rows, title="Dead letters")
        say("`afterrun retry ID…` or `afterrun retry --all` brings dead letters back")


def _figures(found: Status, now: datetime) -> list[tuple[str, object]]:
    memories = found.memories
    spend = found.spend
    return [
        ("active memories", f"{memories.active} in {memories.projects} projects"),
        ("superseded", memories.superseded),
        ("forgotten", memories.forgotten),
        ("embedding model", found.model),
        ("pending chunks", f"{found.pending_chunks}{_since(found.oldest_pending, now)}"),
        ("dead letters", found.dead_letters),
        ("clusters", ", ".join(f"{count} {state}" for state, count in sorted(found.clusters.items())) or "none"),
        ("paused clusters", ", ".join(_paused(found)) or "none"),
        ("judged so far", f"{spend.calls:,} calls, {spend.input_tokens:,} tokens in, {spend.output_tokens:,} out"),
        ("last sweep", ago(found.heartbeats.get("sweep"), now) or "never"),
    ]


def _paused(found: Status) -> list[str]:
    what = {
        "spend": f"for a cap on spend, until {shown(found.spending.frees_at)}",
        "service": "for the language model's service",
        "key": "for a key or model that the language model's service accepts",
        "answer": "to be judged again after an answer that could not be used",
    }
    return [f"{count} {what[name]}" for name, count in sorted(found.paused.items())]


def _write_spending(spending: Spending) -> None:
    """Today's spend against the caps: in all, and of the projects and runs that spent most."""
    budget = spending.budget
    rows = [("all", *_used(spending.today, budget.calls_per_day, budget.tokens_per_day))]
    for project, spend in spending.projects.items():
        rows.append((f"project {project}", *_used(spend, budget.calls_per_project_day, budget.tokens_per_project_day)))
    for run, spend in spending.runs.items():
        rows.append((f"run {run}", *_used(spend, budget.calls_per_run, budget.tokens_per_run)))
    write_table(("", "calls", "cap", "tokens", "cap"), rows, title="Language model today (UTC)")


def _used(spend: Spend, calls: int, tokens: int) -> tuple[str, str, str, str]:
    caps = [f"{cap:,}" if cap else "none" for cap in (calls, tokens)]
    return f"{spend.calls:,}", caps[0], f"{spend.input_tokens + spend.output_tokens:,}", caps[1]


def _store_row(store: RunStoreStatus, now: datetime) -> tuple[object, ...]:
    if store.totals is None:
        return "", "", "", "", "", store.path, f"cannot be read: {store.error}"
    totals = store.totals
    note = "its rows were indexed into another database: they count as unindexed here" if totals.other_database else ""
    oldest = ago(totals.oldest_unindexed, now)
    return totals.runs, totals.indexed, totals.unindexed, oldest, totals.empty, store.path, note


def _since(oldest: datetime | None, now: datetime) -> str:
    return f", the oldest from {ago(oldest, now)}" if oldest else ""
