"""`afterrun demo`: the whole way from finished runs to recalled memories, in a home of its own that is removed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from afterrun import settings as settings_module
from afterrun.errors import AfterrunError, ConfigurationError, InputError, NotFoundError, NotRunningError, RunStoreError
from afterrun.serve.cli.hits import write_block
from afterrun.serve.cli.output import progress, write_json
from afterrun.serve.cli.program import Command
from afterrun.serve.cli.questions import Question, draw
from afterrun.serve.cli.runs import save_runs
from afterrun.serve.cli.stack import lazy_embedder, make_stack
from afterrun.serve.cli.staging import Show, ended_by_signals, temporary_home
from afterrun.settings import Settings

if TYPE_CHECKING:
    from afterrun.client import Memory
    from afterrun.models import Hit, Recall, Run
    from afterrun.runs import RunStore

COMMITS: Final = 2000
"""The newest commits that the demo takes of a long history."""
STALL_SECONDS: Final = 60.0
"""Without any progress for so long, embedding has failed. The first batch loads the model."""
POLL_SECONDS: Final = 0.2
HITS: Final = 3

# What would lead to the user's own data, or cost money.
_NOT_OURS: Final = (
    *("DATABASE_URL", "REDIS_URL", "AFTERRUN_RUN_STORE", "AFTERRUN_RUN_STORES"),
    *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
)


@click.command(cls=Command)
@click.option(
    "--db",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a copy of this run store instead of a git history.",
)
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="A folder of the git repository to show. Default: the current one.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary home, with its data and logs.")
def demo(db: Path | None, path: Path, keep: bool, as_json: bool) -> None:
    """Show the whole way on this machine: runs, indexing, embedding, recall. Your own data is not touched.

    It starts Postgres, a broker, workers and beat in a temporary folder and stops and removes all of it.

    \b
    Examples:
      afterrun demo --path ~/src/shop
      afterrun demo --db path/to/memory.db
    """
    show = Show(as_json=as_json)
    with ended_by_signals(), temporary_home(keep, show) as home:
        environ = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        environ["AFTERRUN_HOME"] = str(home)
        found = _run(home, environ, db, path.absolute(), show)
    if as_json:
        answers = [{"question": question.text, "run": question.run, "found": answer} for question, answer in found]
        write_json({"stages": show.stages, "answers": answers})


def _run(home: Path, environ: dict[str, str], db: Path | None, path: Path, show: Show) -> list[tuple[Question, Recall]]:
    from afterrun.client import Memory

    settings = settings_module.load(environ)
    with show.stage("Collect finished runs") as result:
        result(_copy(db, settings.run_store) if db else _collect(path, settings))
    embedder = lazy_embedder(settings)
    stack = make_stack(settings, embedder, environ=environ)
    try:
        with show.stage("Start Postgres, broker, workers, beat") as result:
            stack.start()
            result("all on this machine")
        with show.stage("Load the embedding model") as result:
            embedder.encode(["ready?"])
            result(embedder.spec.id)
        with Memory(settings=settings_module.load(environ)) as memory:
            return _remember_and_ask(memory, settings, show)
    finally:
        stopping = time.monotonic()
        stack.stop()
        show.line(f"Stopped all of it in {time.monotonic() - stopping:.1f} s.")


def _remember_and_ask(memory: Memory, settings: Settings, show: Show) -> list[tuple[Question, Recall]]:
    started = time.monotonic()
    with show.stage("Index the runs") as result:
        runs = _index(memory, settings.run_store)
        result(f"{len(runs)} runs, found by their words from now on")
    with show.stage("Embed them") as result:
        texts = _wait_until_embedded(memory, settings.home / "logs" / "embed.log")
        result(f"{texts} texts, found by their meaning from now on")
    seconds = time.monotonic() - started
    answers = _ask(memory, runs, show)
    show.line(f"{len(runs)} runs became memories in {seconds:.1f} s, {len(runs) / seconds:.3g} runs/s.")
    return answers


def _collect(path: Path, settings: Settings) -> str:
    """Bring the git history, or the sample where there is none, into the demo's run store."""
    from afterrun.sources import git, samples

    try:
        total = git.count(path)
        runs = git.commits(path, limit=COMMITS)
        first = next(runs, None)
        if first is None:
            raise InputError(f"the commits of {path} have no messages")
        _save(chain([first], runs), settings, min(total, COMMITS))
        return f"the {'newest ' if total > COMMITS else ''}commits of {first.repo}"
    except (InputError, ConfigurationError) as error:
        _save(samples.runs(), settings, None)
        return f"a packaged sample, because {error}"


def _save(runs: Iterator[Run], settings: Settings, total: int | None) -> None:
    with progress("reading", total) as advance:
        for done in save_runs(runs, settings.run_store, settings.home):
            advance(done)


def _copy(source: Path, target: Path) -> str:
    """Copy a run store as SQLite does it, so that what another process is writing is whole in the copy."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
    except sqlite3.Error as error:
        raise RunStoreError(f"{source} cannot be copied: {error}") from error
    return f"a copy of {source}"


def _index(memory: Memory, path: Path) -> list[Run]:
    """Index the demo's run store; the runs that are memories now."""
    from afterrun.runs import RunStore

    with RunStore(path, home=memory.settings.home) as store:
        totals = store.totals()
        with progress("indexing", totals.indexed + totals.unindexed) as advance:
            done = memory.index_runs(store, full=True, on_progress=lambda counts: advance(counts.seen))
        if not done.added + done.known:
            raise NotFoundError(f"nothing to remember: no run has a summary ({done.failed} failed)")
        return _all_runs(store)


def _all_runs(store: RunStore) -> list[Run]:
    runs: list[Run] = []
    while batch := store.all_runs(after_id=(runs[-1].id or 0) if runs else 0):
        runs += batch
    return runs


def _wait_until_embedded(memory: Memory, log: Path) -> int:
    """Wait for the workers until nothing is pending; how many texts they embedded while we waited."""
    from afterrun.local.processes import log_tail

    first = left = memory.status().pending_chunks
    moved = time.monotonic()
    with progress("embedding", first) as advance:
        while left:
            time.sleep(POLL_SECONDS)
            now = memory.status().pending_chunks
            if now != left:
                left, moved = now, time.monotonic()
                advance(max(0, first - left))
            elif time.monotonic() - moved > STALL_SECONDS:
                raise NotRunningError(
                    f"{left} texts are not embedded, and nothing moved for {STALL_SECONDS:.0f} s;"
                    f" the end of the embedding worker's log:\n{log_tail(log)}"
                )
    if failed := memory.status().dead_letters:
        raise AfterrunError(f"{failed} texts could not be embedded; the end of the log:\n{log_tail(log)}")
    return first


def _ask(memory: Memory, runs: Sequence[Run], show: Show) -> list[tuple[Question, Recall]]:
    questions = draw(runs)
    if not questions:
        raise NotFoundError("no run has a word to ask for")
    answers = []
    for question in questions:
        started = time.monotonic()
        answer = memory.recall(question.text, min_results=HITS)
        milliseconds = (time.monotonic() - started) * 1000
        show.line(click.style(f"\n? {question.text}", bold=True) + f"   answered in {milliseconds:.0f} ms")
        _show_hits(question, answer.hits[:HITS], show)
        answers.append((question, answer))
    if not any(_tells(hit, question.run) for question, answer in answers for hit in answer.hits):
        raise NotFoundError("recall did not find the runs that the questions were drawn from")
    return answers


def _show_hits(question: Question, hits: Sequence[Hit], show: Show) -> None:
    for place, hit in enumerate(hits, 1):
        if not show.as_json:
            note = "the run that was asked for" if _tells(hit, question.run) else ""
            write_block(place, hit, parts=True, lines=3, note=note)


def _tells(hit: Hit, run: Run) -> bool:
    """Whether a hit is the memory of `run`, of one with the same text, or one that was merged from several."""
    if "consolidated_from" in hit.metadata:
        return True
    if run.run_id and (hit.project, hit.metadata.get("run_id")) == (run.repo, run.run_id):
        return True
    return run.summary.startswith(hit.content.removesuffix(" …")[:200])
