"""A source, looked at as a whole: a folder's files, or pages of the web, into memories.

A file is opened only where its size or time differ from what was recorded, and taken apart only where its content does.
So a pass over what did not change asks the database for a few rows a file, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.mirror import Mirror, Mirrored, Taken
from afterrun.sources.contents import LARGEST, unwanted
from afterrun.sources.listing import UNREADABLE, Entry, Listing
from afterrun.sources.readers import READER
from afterrun.sources.web import Fetcher, FetchError, GoneError, address
from afterrun.store import SourceFile

FILES: Final = 200
"""Files that are looked at together."""
CHARACTERS: Final = 1_000_000
"""Text of a transaction, about: what is read and not yet written bounds the memory that a pass needs."""
SETTLED_NS: Final = 2_000_000_000
"""Nanoseconds since a file's last change after which its time can be trusted to change with its content."""

Progress = Callable[[Mirrored], None]


def gather_folder(
    database: Database,
    chunker: Chunker,
    listing: Listing,
    *,
    source: str,
    project: str,
    full: bool = False,
    clean: bool = False,
    on_progress: Progress = lambda done: None,
    keep_going: Callable[[], bool] = lambda: True,
    now_ns: Callable[[], int] = time.time_ns,
) -> Mirrored:
    """Index the listed files of a folder as `source` (codebase, docs or standards) of `project`.

    With `full` every file is read again, with `clean` all that this source gave the project is deleted before.
    `on_progress` hears the counts so far after each batch; `keep_going` is asked before each, and where it says no,
    what was not looked at stays as it is. Raises DatabaseError.
    """
    mirror = Mirror(database, chunker, source=source, project=project)
    if clean:
        mirror.remove_all()
    here: set[str] = set()
    entries = listing.entries()
    while batch := list(islice(entries, FILES)):
        if not keep_going():
            return mirror.result
        _Batch(mirror, listing.root, source=source, full=full, now_ns=now_ns()).index(batch)
        here.update(entry.path for entry in batch)
        on_progress(mirror.result)
    _remove(mirror, [known for known in mirror.known_paths(listing.beginning) if known not in here])
    return mirror.result


def gather_pages(
    database: Database,
    chunker: Chunker,
    urls: Iterable[str],
    *,
    project: str,
    full: bool = False,
    clean: bool = False,
    fetcher: Fetcher | None = None,
    on_progress: Progress = lambda done: None,
) -> Mirrored:
    """Index pages of the web as documents of `project`; without `urls` those that it has are fetched again.

    A server is asked for a page only if it changed; with `full` in any case. A page that is gone (404, 410) loses its
    memories; one that cannot be fetched keeps them, and is told in `failed`. Raises InputError where an address is
    none, DatabaseError.
    """
    mirror = Mirror(database, chunker, source="url", project=project)
    wanted = list(dict.fromkeys(address(url) for url in urls)) or mirror.known_paths()
    if clean:
        mirror.remove_all()
    fetcher = fetcher or Fetcher()
    for url in wanted:
        _fetch(mirror, fetcher, url, full=full)
        on_progress(mirror.result)
    return mirror.result


def _fetch(mirror: Mirror, fetcher: Fetcher, url: str, *, full: bool) -> None:
    before = mirror.known([url]).get(url)
    ask_anew = full or before is None or before.reader != READER
    try:
        page = fetcher.fetch(url, *(() if ask_anew or before is None else (before.etag, before.last_modified)))
    except GoneError as error:
        mirror.skip(str(error))
        mirror.remove([url])
        return
    except FetchError as error:
        mirror.fail(url, str(error))
        return
    if before is not None and (page is None or (not ask_anew and _is_same(before, page.content))):
        mirror.leave(before)
    elif page is not None:
        look = SourceFile(
            path=url,
            size=len(page.content),
            modified_ns=0,
            digest=b"",
            reader=READER,
            etag=page.etag,
            last_modified=page.last_modified,
        )
        mirror.write([mirror.take(look, page.content, named=page.name, modified=None)])


class _Batch:
    """Some files of a folder: what is to be written of them is written as soon as it is much, and at the end."""

    def __init__(self, mirror: Mirror, root: Path, *, source: str, full: bool, now_ns: int) -> None:
        self._mirror = mirror
        self._root = root
        self._source = source
        self._full = full
        self._now_ns = now_ns
        self._taken: list[Taken] = []
        self._characters = 0
        self._touched: list[SourceFile] = []
        self._unusable: list[str] = []

    def index(self, entries: Sequence[Entry]) -> None:
        """Bring what these files gave in line with what they are."""
        known = self._mirror.known([entry.path for entry in entries])
        for entry in entries:
            self._look_at(entry, known.get(entry.path))
        self._write()
        if self._touched:
            self._mirror.touch(self._touched)
        _remove(self._mirror, self._unusable)

    def _look_at(self, entry: Entry, before: SourceFile | None) -> None:
        if reason := entry.skipped or unwanted(self._source, entry.path, entry.size):
            self._mirror.skip(reason)
            self._unusable.extend([entry.path] if before is not None else [])
        elif before is not None and not self._full and _is_as_recorded(entry, before):
            self._mirror.leave(before)
        elif (content := _content(self._root / entry.path, LARGEST[self._source])) is None:
            self._mirror.skip(UNREADABLE)
        elif before is not None and not self._full and _is_same(before, content):
            self._touched.append(replace(before, size=entry.size, modified_ns=self._trusted(entry)))
        else:
            self._take(entry, content)

    def _take(self, entry: Entry, content: bytes) -> None:
        look = SourceFile(path=entry.path, size=entry.size, modified_ns=self._trusted(entry), digest=b"", reader=READER)
        modified = datetime.fromtimestamp(max(0, min(entry.modified_ns, self._now_ns)) / 1e9, UTC)
        taken = self._mirror.take(look, content, named=entry.path, modified=modified)
        self._taken.append(taken)
        self._characters += sum(len(memory.content) for memory in taken.memories)
        if self._characters > CHARACTERS:
            self._write()

    def _write(self) -> None:
        self._mirror.write(self._taken)
        self._taken = []
        self._characters = 0

    def _trusted(self, entry: Entry) -> int:
        # A file that was changed just now may change once more within the same tick of its clock.
        return entry.modified_ns if entry.modified_ns < self._now_ns - SETTLED_NS else 0


def _is_as_recorded(entry: Entry, before: SourceFile) -> bool:
    return before.reader == READER and (entry.size, entry.modified_ns) == (before.size, before.modified_ns)


def _is_same(before: SourceFile, content: bytes) -> bool:
    return before.reader == READER and hashlib.sha256(content).digest() == before.digest


def _content(path: Path, largest: int) -> bytes | None:
    """The file's content; None where it cannot be read, or is not what it was when it was listed."""
    try:
        # Neither a link that was put there meanwhile is followed, nor is a pipe waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = file.read(largest + 1)
    except OSError:
        return None
    return content if len(content) <= largest else None


def _remove(mirror: Mirror, paths: Sequence[str]) -> None:
    for start in range(0, len(paths), FILES):
        mirror.remove(paths[start : start + FILES])
