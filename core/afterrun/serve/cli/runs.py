"""Commands that bring something in: finish stores a run, index makes memories of runs, files and pages."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from afterrun.errors import RunStoreError
from afterrun.serve.cli import sources
from afterrun.serve.cli.output import progress, say, write_json, write_table
from afterrun.serve.cli.program import BROKER_SECONDS, FAILED, Command, open_memory, wrong_usage

if TYPE_CHECKING:
    from afterrun.client import Memory
    from afterrun.client.gathering import FolderSource
    from afterrun.index import Indexed
    from afterrun.models import Run

SAVE_BATCH: Final = 200
"""Runs a transaction of the run store: other writers wait no longer than it takes."""
SAVE_WAIT: Final = 10.0
"""Seconds to wait for another writer of the run store; a command may wait longer than a pipeline's hook."""

SOURCES: Final = ("memory", "git", "codebase", "docs", "standards", "url")
"""What can be indexed."""

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, kw_only=True)
class StoreResult:
    """What one pass over a run store did; `error` says why it could not be read."""

    path: Path
    indexed: Indexed | None
    error: str | None = None


@click.command(cls=Command)
@click.option("--repo", required=True, help="The project that the run belongs to.")
@click.option("--summary", help="What the run did.")
@click.option("--summary-file", type=click.File("rb"), help="A file with the summary; - reads stdin.")
@click.option("--run-id", help="The run's own id; the same one of the same repo is stored once.")
@click.option("--created-at", help="When it finished (ISO 8601, naive is UTC). Default: now.")
@click.option("--tag", "tags", multiple=True, help="A label; repeat it for more.")
@click.option("--mode", default="feature", show_default=True, help="The kind of run: feature, fix, review, …")
@click.option("--store", type=click.Path(dir_okay=False, path_type=Path), help="The run store. Default: the settings'.")
@click.pass_context
def finish(
    ctx: click.Context,
    repo: str,
    summary: str | None,
    summary_file: Iterable[bytes] | None,
    run_id: str | None,
    created_at: str | None,
    tags: tuple[str, ...],
    mode: str,
    store: Path | None,
    as_json: bool,
) -> None:
    """Hand over a finished run: store it, and tell the workers. Works whether or not anything runs.

    Ends with 1 only when the run was neither stored nor queued.

    \b
    Example:
      afterrun finish --repo shop --run-id 42 --tag deploy --summary-file summary.md
    """
    if (summary is None) == (summary_file is None):
        wrong_usage("give one of --summary and --summary-file")
    text = summary if summary is not None else b"".join(summary_file or ()).decode("utf-8", "replace")
    from afterrun.hooks import finish as hand_over

    # The receipt says it all. A process of its own may wait longer for the broker than a pipeline's hook: it has to
    # import Celery first.
    logging.getLogger("afterrun").addHandler(logging.NullHandler())
    os.environ.setdefault("AFTERRUN_PUBLISH_TIMEOUT", str(BROKER_SECONDS))
    receipt = hand_over(repo, text, run_id=run_id, created_at=created_at, tags=tags, mode=mode, store=store)
    if as_json:
        write_json(receipt)
    else:
        where = "not stored" if not receipt.stored else f"stored as row {receipt.id}" if receipt.id else "spooled"
        click.echo(where)
    if receipt.error:
        say(f"note: {receipt.error}")
    elif not receipt.queued:
        say("note: not queued, since its summary is empty: it never becomes a memory")
    if not receipt.stored and not receipt.queued:
        say("error: the run is lost: keep its summary and try again")
        ctx.exit(FAILED)


@click.command(cls=Command)
@click.option("--source", type=click.Choice(SOURCES), required=True, help="What to index.")
@click.option(
    "--path",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder, or for git one of the repository. Default: the current one.",
)
@click.option("--url", "urls", multiple=True, help="With url: a page; repeat it for more. Default: all that are known.")
@click.option("--project", help="Whose memory it is. Default: the repository's or folder's name; of pages: global.")
@click.option("--full", is_flag=True, help="Look again also at what is marked as indexed or has not changed.")
@click.option("--clean", is_flag=True, help="Delete before what this source gave the project; nothing else.")
@click.option("--store", "stores", type=_FILE, multiple=True, help="Only this run store; repeat it for more.")
@click.pass_context
def index(
    ctx: click.Context,
    source: str,
    path: Path | None,
    urls: tuple[str, ...],
    project: str | None,
    full: bool,
    clean: bool,
    stores: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Bring finished runs, commits, code, documents or pages into the memory; what is known is not indexed twice.

    With memory: the runs of every run store known on this host, or of the --store ones. With git: the commits of a
    repository, kept as runs in the run store, or in the --store one. With codebase, docs and standards: the files of a
    folder that .gitignore lets through. With url: pages of the web.

    \b
    Examples:
      afterrun index --source memory
      afterrun index --source codebase --path ~/src/shop
      afterrun index --source url --url https://docs.example.org/guide.html --project shop
    """
    _check_options(source, path, urls, project, clean, stores)
    with open_memory() as memory:
        if source in ("memory", "git"):
            failed = _index_runs(memory, source, path, stores, full=full, as_json=as_json)
        elif source == "url":
            done = sources.index_pages(memory, urls, project=project, full=full, clean=clean)
            sources.report(done, as_json=as_json)
            failed = bool(done.failed)
        else:
            kind = cast("FolderSource", source)
            folder = path or Path()
            done = sources.index_folder(memory, folder, source=kind, project=project, full=full, clean=clean)
            sources.report(done, as_json=as_json)
            failed = bool(done.failed)
    if failed:
        ctx.exit(FAILED)


def _check_options(
    source: str, path: Path | None, urls: tuple[str, ...], project: str | None, clean: bool, stores: tuple[Path, ...]
) -> None:
    if source == "memory" and path is not None:
        wrong_usage("--path belongs to a folder's source; name a run store with --store")
    if source == "url" and path is not None:
        wrong_usage("--path belongs to a folder's source; name a page with --url")
    if source == "git" and len(stores) > 1:
        wrong_usage("--source git keeps its commits in one run store: give --store once")
    if source not in ("memory", "git") and stores:
        wrong_usage("--store belongs to --source memory and --source git")
    if source != "url" and urls:
        wrong_usage("--url belongs to --source url")
    if source in ("memory", "git") and (project is not None or clean):
        wrong_usage("--project and --clean belong to codebase, docs, standards and url: a run names its own project")


def _index_runs(
    memory: Memory, source: str, path: Path | None, stores: tuple[Path, ...], *, full: bool, as_json: bool
) -> bool:
    """Index run stores, with git after its commits were put into one; whether one could not be read."""
    if source == "git":
        stores = (save_commits(memory, path or Path(), stores),)
    memory.bring_in_spooled()
    results = [index_one(memory, file, full=full) for file in stores or memory.run_stores()]
    _report(results, as_json=as_json)
    return any(result.error for result in results)


def save_commits(memory: Memory, path: Path, stores: tuple[Path, ...]) -> Path:
    """Keep the commits of the repository at `path` as runs; the run store that has them now."""
    from afterrun.sources import git

    store = stores[0] if stores else memory.settings.run_store
    total = git.count(path)
    if git.is_shallow(path):
        say("note: a shallow clone has only its newest commits; `git fetch --unshallow` brings the others")
    with progress("reading commits", total) as advance:
        for done in save_runs(git.commits(path), store, memory.settings.home):
            advance(done)
    return store


def save_runs(runs: Iterable[Run], path: Path, home: Path) -> Iterator[int]:
    """Save runs batch by batch; yields how many are saved so far."""
    from afterrun.runs import RunStore

    left = iter(runs)
    done = 0
    with RunStore(path, home=home, busy_timeout=SAVE_WAIT) as store:
        while batch := list(islice(left, SAVE_BATCH)):
            store.save_many(batch)
            done += len(batch)
            yield done


def index_one(memory: Memory, path: Path, *, full: bool) -> StoreResult:
    """Index one run store with a progress bar; a store that cannot be read does not keep others from being indexed."""
    from afterrun.runs import RunStore

    try:
        with RunStore(path, home=memory.settings.home, busy_timeout=SAVE_WAIT) as store:
            totals = store.totals()
            expected = totals.indexed + totals.unindexed if full else totals.unindexed or None
            with progress(f"indexing {path.name}", expected) as advance:
                done = memory.index_runs(store, full=full, on_progress=lambda counts: advance(counts.seen))
    except RunStoreError as error:
        return StoreResult(path=path, indexed=None, error=str(error))
    return StoreResult(path=path, indexed=done)


def _report(results: list[StoreResult], *, as_json: bool) -> None:
    if as_json:
        write_json({"stores": results, "total": _total(results)})
        return
    rows = [
        (done.added, done.known, done.empty, done.failed, result.path)
        for result in results
        if (done := result.indexed) is not None
    ]
    if rows:
        write_table(("added", "known", "empty", "failed", "run store"), rows)
    for result in results:
        if result.error:
            say(f"error: {result.error}")
    if not results:
        say("no run store is known here: `afterrun finish` makes one, or name a file with --store")
    if any(row[3] for row in rows):
        say("note: `afterrun status` shows why runs failed, `afterrun retry` tries them again")


def _total(results: list[StoreResult]) -> Indexed:
    from afterrun.index import Indexed

    return sum((result.indexed for result in results if result.indexed), Indexed())
