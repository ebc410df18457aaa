"""`RepoIndexer`: a repository from anywhere into the memory, as a step of a pipeline that must not fail for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from afterrun.client.gathering import FolderSource
from afterrun.client.memory import Memory
from afterrun.errors import AfterrunError
from afterrun.masking import masked_url
from afterrun.mirror import Mirrored
from afterrun.redact import scrub
from afterrun.sources import git
from afterrun.sources.clone import fetched
from afterrun.sources.listing import list_files

log = logging.getLogger(__name__)

SECONDS: Final = 600.0
"""For a repository from the first byte to the last memory; what is left then is indexed by the next call."""


@dataclass(frozen=True, kw_only=True)
class RepoIndexed:
    """What became of a repository: the passes that were made, and why it is not all there, where it is not."""

    address: str
    project: str
    passes: tuple[Mirrored, ...]
    seconds: float
    error: str | None = None


class RepoIndexer:
    """Indexes repositories as code and documents; each is cloned into a temporary folder, or unpacked, and removed.

    `memory` is that of the settings where none is given. `seconds` bounds one repository.
    """

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        seconds: float = SECONDS,
        sources: Sequence[FolderSource] = ("codebase", "docs"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._seconds = seconds
        self._sources = tuple(sources)
        self._clock = clock

    def index(self, address: str, *, project: str | None = None) -> RepoIndexed:
        """Index the newest state of a repository: a git URL, a local path, or a .tar.gz or .zip of one.

        Never raises for what a repository, the network or the database do: the result says it in `error`. The project
        is `owner/name` of the address by default. Calling it again reads only what changed.
        """
        began = self._clock()
        passes: list[Mirrored] = []
        name, error = project or "", None
        try:
            name = name or _project(address)
            memory = self._memory or Memory()
            try:
                with fetched(address, seconds=self._seconds) as folder:
                    self._index(memory, folder, name, began + self._seconds, passes)
            finally:
                if self._memory is None:
                    memory.close()
        except (AfterrunError, OSError) as failure:
            error = scrub(str(failure))
        if error is None and self._clock() >= began + self._seconds:
            error = f"not done after {self._seconds:g} s: the next call goes on where this one stopped"
        if error:
            log.warning("the repository %s is not indexed, or not all of it: %s", masked_url(address), error)
        return RepoIndexed(
            address=masked_url(address),
            project=name,
            passes=tuple(passes),
            seconds=self._clock() - began,
            error=error,
        )

    def _index(self, memory: Memory, folder: Path, project: str, until: float, passes: list[Mirrored]) -> None:
        listing = list_files(folder)

        def keep_going() -> bool:
            return self._clock() < until

        passes.extend(
            memory.index_folder(listing, source=source, project=project, keep_going=keep_going)
            for source in self._sources
            if keep_going()
        )


def _project(address: str) -> str:
    path = Path(address)
    if path.is_dir() and git.checkout(path) is not None:
        return git.repo_name(path)
    return scrub(git.name_of(address.rstrip("/")) or "repository")
