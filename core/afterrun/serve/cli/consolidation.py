"""The command consolidate: have clusters judged, show what a merge would do, or decide one by one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import click

from afterrun.serve.cli.differences import Piece, pieces, plain, styled, words
from afterrun.serve.cli.output import on_terminal, one_line, progress, say, write_json, write_table
from afterrun.serve.cli.program import FAILED, Command, open_memory, wrong_usage

if TYPE_CHECKING:
    from afterrun.client import Memory
    from afterrun.consolidate import Outcome
    from afterrun.models import Cluster, MemoryRecord
    from afterrun.review import Preview

STATES: Final = ("waiting", "merged", "rejected", "related", "undone", "failed")
"""States of a consolidation, as the design has them."""
DROPPED: Final = ("[-", "-]")
ADDED: Final = ("{+", "+}")
"""The marks of wdiff."""
ANSWERS: Final = ("y", "yes", "w", "n", "no", "s", "skip", "q", "quit")
CHOICES: Final = "[y] merge as shown, [w] the newest wins, [n] never merge these, [s] skip, [q] quit"


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Show what a merge of each waiting cluster would do; change nothing.")
@click.option("--interactive", is_flag=True, help="Decide on each waiting cluster; no language model is asked.")
@click.option("--list", "list_", is_flag=True, help="List consolidations, newest first.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="With --list: only these states.")
@click.pass_context
def consolidate(
    ctx: click.Context, dry_run: bool, interactive: bool, list_: bool, states: tuple[str, ...], as_json: bool
) -> None:
    """Find near-duplicates and judge every cluster that is due; merged originals are kept, and undo restores them.

    \b
    Examples:
      afterrun consolidate --dry-run
      afterrun consolidate --interactive
      afterrun consolidate --list --state merged
    """
    if dry_run + interactive + list_ > 1:
        wrong_usage("--dry-run, --interactive and --list exclude each other")
    if states and not list_:
        wrong_usage("--state belongs to --list")
    with open_memory() as memory:
        if list_:
            _list_consolidations(memory, states, as_json=as_json)
        elif dry_run:
            _show_waiting(memory, as_json=as_json)
        elif interactive:
            _ask_one_by_one(memory, as_json=as_json)
        elif not _consolidate_all(memory, as_json=as_json):
            ctx.exit(FAILED)


def _consolidate_all(memory: Memory, *, as_json: bool) -> bool:
    """Whether the judge could be asked: False where its service is down."""
    proposed = len(memory.find_clusters())
    # Whoever gives this command may have mended what clusters pause for, such as the key.
    memory.resume_clusters()
    outcomes: list[tuple[tuple[UUID, ...], Outcome]] = []
    due = memory.waiting_clusters()
    run = f"consolidate {uuid4()}"
    with progress("judging clusters", len(due)) as advance:
        for members in _due(memory, due):
            outcome = memory.consolidate(*members, run=run)
            outcomes.append((members, outcome))
            advance(len(outcomes))
            if not as_json and outcome.waits_for != "spend":
                click.echo(_outcome_line(members, outcome))
            if outcome.waits_for == "service":
                break
    if as_json:
        write_json({"proposed": proposed, "outcomes": [{"members": ids, "outcome": done} for ids, done in outcomes]})
    _say_result(proposed, [outcome for _, outcome in outcomes])
    return not any(outcome.waits_for == "service" for _, outcome in outcomes)


def _say_result(proposed: int, outcomes: Sequence[Outcome]) -> None:
    capped = [outcome for outcome in outcomes if outcome.waits_for == "spend"]
    merged = sum(outcome.state == "merged" for outcome in outcomes)
    say(f"{proposed} clusters proposed, {len(outcomes) - len(capped)} judged, {merged} merged")
    for reason, count in Counter(outcome.reason.partition(":")[0] for outcome in capped).items():
        say(f"note: {count} clusters are not judged: {reason} (a cap on spend, see `afterrun status`)")
    if any(outcome.waits_for == "service" for outcome in outcomes):
        say("error: the language model's service does not answer: the clusters wait, and are tried again by themselves")


def _due(memory: Memory, due: list[tuple[UUID, ...]]) -> Iterator[tuple[UUID, ...]]:
    """Every cluster that is due, each once: one that cannot be judged now stays in the list."""
    seen: set[tuple[UUID, ...]] = set()
    while fresh := [members for members in due if members not in seen]:
        seen.update(fresh)
        yield from fresh
        due = memory.waiting_clusters()


def _show_waiting(memory: Memory, *, as_json: bool) -> None:
    from afterrun import care

    shown = memory.previews()
    uncompared = care.uncompared(memory.database)
    asked = [preview for preview in shown if preview.most_tokens]
    most = sum(preview.most_tokens for preview in asked)
    if as_json:
        clusters = [{**vars(preview), "changes": _changes(preview)} for preview in shown]
        would_ask = {"judge": memory.judge.name, "calls": len(asked), "most_tokens": most}
        write_json({**would_ask, "uncompared": uncompared, "clusters": clusters})
        return
    for place, preview in enumerate(shown, 1):
        write_preview(preview, f"cluster {place} of {len(shown)}")
    say(f"{len(shown)} clusters wait" if shown else "no cluster waits for a judge")
    if uncompared:
        say(f"note: {uncompared} memories are not compared yet; the workers and `afterrun consolidate` do that first")
    if asked:
        say(
            f"without --dry-run {memory.judge.name} is asked: calls: {len(asked)}, tokens: at most {most:,} together;"
            " shown is what the rules see, and nothing was asked now"
        )


def _ask_one_by_one(memory: Memory, *, as_json: bool) -> None:
    memory.find_clusters()
    outcomes: list[dict[str, object]] = []
    shown = memory.previews()
    for place, preview in enumerate(shown, 1):
        write_preview(preview, f"cluster {place} of {len(shown)}", err=as_json)
        choice = _choice(first=place == 1)
        if choice == "q":
            break
        if (decided := _decide(memory, preview, choice)) is not None:
            outcomes.append({"members": preview.cluster.members, "outcome": decided})
            say(_outcome_line(preview.cluster.members, decided))
    if as_json:
        write_json({"outcomes": outcomes})
    say(f"{len(outcomes)} of {len(shown)} clusters decided" if shown else "no cluster waits for a judge")


def _decide(memory: Memory, preview: Preview, choice: str) -> Outcome | None:
    from afterrun.consolidate import Outcome

    if choice == "s":
        return None
    if choice == "n":
        rejected = memory.reject(preview.cluster.id)
        return Outcome(state=rejected.state, consolidation=rejected.id, reason=rejected.reason or "")
    return memory.accept(preview, newest_wins=choice == "w")


def _choice(*, first: bool) -> str:
    """One of y, w, n, s and q, from the next line that says one; the end of the input is q.

    Input that has ended before it said anything is wrong usage.
    """
    while True:
        click.echo(f"{CHOICES}: ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            say("")
            if first and not sys.stdin.isatty():
                wrong_usage("--interactive asks on stdin, and this is no terminal and has no input: pipe answers to it")
            say("the input has ended: the other clusters still wait")
            return "q"
        first = False
        if (answer := line.strip().lower()) in ANSWERS:
            return answer[0]


def write_preview(preview: Preview, title: str, *, err: bool = False) -> None:
    """A cluster as a diff: its members with what the merged text drops, and that text with what it adds."""
    what = "the rules would merge it" if preview.settled else "the rules leave it"
    reason = f" ({one_line(preview.reason)})" if preview.reason else ""
    project = preview.cluster.project
    heading = f"{title}: {len(preview.members)} memories of {project}, {what}{reason} [{preview.cluster.id}]"
    click.echo(click.style(one_line(heading), bold=True), err=err)
    kept = words([preview.wording])
    for member in preview.members:
        if member.id in preview.same:
            _write_text("-", _member_line(member), member.content, kept, DROPPED, "red strike", err=err)
        else:
            _write_text("=", f"{_member_line(member)} stays", member.content, None, DROPPED, "", err=err)
    originals = words(member.content for member in preview.members if member.id in preview.same)
    _write_text("+", "merged", preview.wording, originals, ADDED, "green", err=err)


def _write_text(
    sign: str, head: str, text: str, other: frozenset[str] | None, marks: tuple[str, str], style: str, *, err: bool
) -> None:
    found = pieces(text, words([text]) if other is None else other)
    if not on_terminal():
        click.echo(f"  {sign} {head}: {plain(found, marks)}", err=err)
        return
    from rich.console import Console
    from rich.padding import Padding

    click.echo(click.style(f"  {sign} {head}", dim=True), err=err)
    Console(stderr=err).print(Padding(styled(found, style), (0, 0, 0, 6)))


def _changes(preview: Preview) -> dict[str, object]:
    kept = words([preview.wording])
    merged = [member for member in preview.members if member.id in preview.same]
    added = pieces(preview.wording, words(member.content for member in merged))
    return {
        "added": _foreign(added),
        "dropped": {str(member.id): _foreign(pieces(member.content, kept)) for member in merged},
    }


def _foreign(found: Sequence[Piece]) -> list[str]:
    return [piece.text.strip() for piece in found if not piece.common]


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
    return f"{member.id} {member.created_at:%Y-%m-%d} {one_line(member.source_type)}"


def _outcome_line(members: tuple[UUID, ...], outcome: Outcome) -> str:
    into = f" into {outcome.canonical}" if outcome.canonical else ""
    number = f" [{outcome.consolidation}]" if outcome.consolidation else ""
    reason = f": {one_line(outcome.reason)}" if outcome.reason else ""
    return f"{outcome.state}{into} ({len(members)} memories){number}{reason}"
