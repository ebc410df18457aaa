"""What `index` does with folders and pages of the web: with a progress bar, and a summary on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from afterrun.models import GLOBAL_PROJECT
from afterrun.serve.cli.output import progress, say, write_json, write_table

if TYPE_CHECKING:
    from afterrun.client import Memory
    from afterrun.client.gathering import FolderSource
    from afterrun.mirror import Mirrored


def index_folder(
    memory: Memory, path: Path, *, source: FolderSource, project: str | None, full: bool, clean: bool
) -> Mirrored:
    """Bring the memory in line with the files of a folder."""
    from afterrun.sources.listing import list_files, project_name

    listing = list_files(path)
    with progress(f"indexing {source}", len(listing.paths)) as advance:
        return memory.index_folder(
            listing,
            source=source,
            project=project or project_name(path),
            full=full,
            clean=clean,
            on_progress=lambda done: advance(done.seen),
        )


def index_pages(memory: Memory, urls: tuple[str, ...], *, project: str | None, full: bool, clean: bool) -> Mirrored:
    """Bring the memory in line with pages of the web."""
    with progress("fetching pages", len(urls) or None) as advance:
        return memory.index_urls(
            *urls,
            project=project or GLOBAL_PROJECT,
            full=full,
            clean=clean,
            on_progress=lambda done: advance(done.seen),
        )


def report(done: Mirrored, *, as_json: bool) -> None:
    """The summary of a pass: what became of files or pages, and of their pieces."""
    if as_json:
        write_json(done)
        return
    skipped = sum(done.skipped.values())
    files, pieces = ("pages", "memories") if done.source == "url" else ("files", "memories")
    memories = done.memories
    write_table(
        ("", "added", "changed", "removed", "unchanged", "skipped"),
        [
            (files, done.added, done.changed, done.removed, done.unchanged, skipped),
            (pieces, memories.added, memories.changed, memories.removed, memories.unchanged, ""),
        ],
        title=f"{done.source} of {done.project}",
    )
    if done.skipped:
        reasons = sorted((-count, reason) for reason, count in done.skipped.items())
        write_table(("skipped because", files), [(reason, -count) for count, reason in reasons])
    for path, reason in done.failed.items():
        say(f"error: {path} is left as it was: {reason}")
