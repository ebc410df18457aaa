"""The methods that carry a memory from one database to another: export and import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from afterrun import archive
from afterrun.archive import Exported, Imported
from afterrun.client.arguments import as_names, as_time
from afterrun.client.opened import Opened
from afterrun.queue import EMBED
from afterrun.store import CopyFilter


class Archives(Opened):
    """A memory in a file, as JSON Lines."""

    def export_to(
        self,
        file: str | Path | BinaryIO,
        *,
        projects: Iterable[str] | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        on_start: Callable[[int], None] = lambda expected: None,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> Exported:
        """Write memories with their vectors and lineage to a file or stream; see `archive.export_memories`.

        A file is compressed where its name ends in `.gz`, and replaced only when all is written. `since` and `until`
        bound the time of a memory. Raises InputError, DatabaseError.
        """
        where = CopyFilter(
            projects=as_names("projects", projects),
            since=None if since is None else as_time("since", since),
            until=None if until is None else as_time("until", until),
        )
        with archive.replaced(Path(file)) if isinstance(file, str | Path) else nullcontext(file) as stream:
            return archive.export_memories(self.database, stream, where, on_start=on_start, on_progress=on_progress)

    def import_from(
        self, file: str | Path | BinaryIO, *, on_progress: Callable[[int], None] = lambda lines: None
    ) -> Imported:
        """Bring an export in; what is here stays as it is, and the same file may come again.

        See `archive.import_memories`. Raises InputError, ModelMismatchError, DatabaseError.
        """
        with archive.opened(Path(file)) if isinstance(file, str | Path) else nullcontext(file) as stream:
            done = archive.import_memories(self.database, stream, self.chunker, on_progress=on_progress)
        if done.memories.added:
            self.nudge(EMBED)
        return done
