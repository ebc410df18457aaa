"""The methods that bring files and pages of the web into the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from afterrun import gather
from afterrun.client.opened import Opened
from afterrun.errors import InputError
from afterrun.mirror import Mirrored
from afterrun.models import GLOBAL_PROJECT
from afterrun.queue import EMBED
from afterrun.sources.listing import Listing, list_files, project_name

FolderSource = Literal["codebase", "docs", "standards"]

_FOLDER_SOURCES = ("codebase", "docs", "standards")


class Gathering(Opened):
    """Files and pages, each pass incremental; the workers embed meanwhile."""

    def index_folder(
        self,
        path: Path | str | Listing,
        *,
        source: FolderSource,
        project: str | None = None,
        full: bool = False,
        clean: bool = False,
        on_progress: Callable[[Mirrored], None] = lambda done: None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> Mirrored:
        """Bring what is remembered of a folder in line with its files: code, documents or standards.

        `project` is by default the repository's name, else the folder's. With `full` every file is read again, with
        `clean` all that this source gave the project is deleted before. Raises InputError, DatabaseError.
        """
        if source not in _FOLDER_SOURCES:
            raise InputError(f"source is one of {', '.join(_FOLDER_SOURCES)}, not {source!r}")
        listing = path if isinstance(path, Listing) else list_files(Path(path))
        return gather.gather_folder(
            self.database,
            self.chunker,
            listing,
            source=source,
            project=project or project_name(listing.root),
            full=full,
            clean=clean,
            on_progress=self._nudging(on_progress),
            keep_going=keep_going,
        )

    def index_urls(
        self,
        *urls: str,
        project: str = GLOBAL_PROJECT,
        full: bool = False,
        clean: bool = False,
        on_progress: Callable[[Mirrored], None] = lambda done: None,
    ) -> Mirrored:
        """Bring what is remembered of pages of the web in line with them; without `urls` all that the project has.

        What could not be fetched stands in `failed` of the result. Raises InputError, DatabaseError.
        """
        return gather.gather_pages(
            self.database,
            self.chunker,
            urls,
            project=project,
            full=full,
            clean=clean,
            on_progress=self._nudging(on_progress),
        )

    def _nudging(self, on_progress: Callable[[Mirrored], None]) -> Callable[[Mirrored], None]:
        written = 0

        def progress(done: Mirrored) -> None:
            nonlocal written
            if (now := done.memories.added + done.memories.changed) > written:
                written = now
                self.nudge(EMBED)
            on_progress(done)

        return progress
