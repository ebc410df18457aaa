"""Commands that look after the memory: status, consolidate, undo, retry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import click

from afterrun.serve.cli.output import ago, one_line, progress, say, write_json, write_table
from afterrun.serve.cli.program import Command, open_memory, wrong_usage

if TYPE_CHECKING:
    from afterrun.care import RunStoreStatus, Status
    from afterrun.client import Memory
    from afterrun.consolidate import Outcome
    from afterrun.models import Cluster, MemoryRecord
    from afterrun.store import DeadLetter

STATES = ("waiting", "merged", "rejected", "related", "undone", "failed")
"""States of a consolidation, as the design has them."""


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
@click.option("--dry-run", is_flag=True, help="Show the clusters that wait, with their members; change nothing.")
@click.option("--list", "list_", is_flag=True, help="List consolidations, newest first.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="With --list: only these states.")
def consolidate(dry_run: bool, list_: bool, states: tuple[str, ...], as_json: bool) -> None:
    """Find near-duplicates and judge every cluster that is due; merged originals are kept, and undo restores them.

    \b
    Examples:
      afterrun consolidate --dry-run
      afterrun consolidate --list --state merged
    """
    if dry_run and list_:
        wrong_usage("--dry-run and --list exclude each other")
    if states and not list_:
        wrong_usage("--state belongs to --list")
    with open_memory() as memory:
        if list_:
            _list_consolidations(memory, states, as_json=as_json)
        elif dry_run:
            _show_waiting(memory, as_json=as_json)
        else:
            _consolidate_all(memory, as_json=as_json)


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
        click.echo(f"undone: {cluster.id}, {len(cluster.members)} originals restored")
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


def _consolidate_all(memory: Memory, *, as_json: bool) -> None:
    proposed = len(memory.find_clusters())
    outcomes: list[tuple[tuple[UUID, ...], Outcome]] = []
    due = memory.waiting_clusters()
    with progress("judging clusters", len(due)) as advance:
        for members in _due(memory, due):
            outcome = memory.consolidate(*members)
            outcomes.append((members, outcome))
            advance(len(outcomes))
            if not as_json:
                click.echo(_outcome_line(members, outcome))
    if as_json:
        write_json({"proposed": proposed, "outcomes": [{"members": ids, "outcome": done} for ids, done in outcomes]})
    else:
        merged = sum(done.state == "merged" for _, done in outcomes)
        say(f"{proposed} clusters proposed, {len(outcomes)} judged, {merged} merged")


def _due(memory: Memory, due: list[tuple[UUID, ...]]) -> Iterator[tuple[UUID, ...]]:
    """Every cluster that is due, each once: one that cannot be judged now stays in the list."""
    seen: set[tuple[UUID, ...]] = set()
    while fresh := [members for members in due if members not in seen]:
        seen.update(fresh)
        yield from fresh
        due = memory.waiting_clusters()


def _show_waiting(memory: Memory, *, as_json: bool) -> None:
    clusters = [memory.get(*members) for members in memory.waiting_clusters()]
    if as_json:
        write_json([{"members": members} for members in clusters])
        return
    for place, members in enumerate(clusters, 1):
        click.echo(click.style(f"cluster {place}: {len(members)} memories of {members[0].project}", bold=True))
        for member in members:
            click.echo(_member_line(member))
    say(f"{len(clusters)} clusters wait for the judge" if clusters else "no cluster waits for the judge")


def _list_consolidations(memory: Memory, states: tuple[str, ...], *, as_json: bool) -> None:
    from afterrun import care

    clusters = care.consolidations(memory.database, states=states or None)
    if as_json:
        write_json(clusters)
    elif clusters:
        columns = ("id", "state", "changed", "members", "project", "model", "reason")
        write_table(columns, [_cluster_row(cluster) for cluster in clusters])
    else:
        say("no consolidations")


def _cluster_row(cluster: Cluster) -> tuple[object, ...]:
    reason = cluster.reason if cluster.guard is None else f"{cluster.reason} ({cluster.guard})"
    return cluster.id, cluster.state, cluster.updated_at, len(cluster.members), cluster.project, cluster.model, reason


def _member_line(member: MemoryRecord) -> str:
    return f"  {member.id}  {member.created_at:%Y-%m-%d}  {one_line(member.content)}"


def _outcome_line(members: tuple[UUID, ...], outcome: Outcome) -> str:
    into = f" into {outcome.canonical}" if outcome.canonical else ""
    number = f" [{outcome.consolidation}]" if outcome.consolidation else ""
    reason = f": {one_line(outcome.reason)}" if outcome.reason else ""
    return f"{outcome.state}{into} ({len(members)} memories){number}{reason}"


def _write_status(found: Status, letters: list[DeadLetter], now: datetime) -> None:
    write_table(("", ""), _figures(found, now), title="Memory")
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
        ("judge", f"{spend.calls} calls, {spend.input_tokens} tokens in, {spend.output_tokens} out"),
        ("last sweep", ago(found.heartbeats.get("sweep"), now) or "never"),
    ]


def _store_row(store: RunStoreStatus, now: datetime) -> tuple[object, ...]:
    if store.totals is None:
        return "", "", "", "", "", store.path, f"cannot be read: {store.error}"
    totals = store.totals
    note = "its rows were indexed into another database: they count as unindexed here" if totals.other_database else ""
    oldest = ago(totals.oldest_unindexed, now)
    return totals.runs, totals.indexed, totals.unindexed, oldest, totals.empty, store.path, note


def _since(oldest: datetime | None, now: datetime) -> str:
    return f", the oldest from {ago(oldest, now)}" if oldest else ""
