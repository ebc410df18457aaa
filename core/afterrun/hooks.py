"""`finish`: what a pipeline calls when a run has ended. It never slows the run down, and never fails it.

The run is scrubbed, committed to the SQLite run store, and announced to the workers by one bounded publish. Either of
the last two makes it safe: the sweep finds a row that was never announced, and a message carries the whole run. Where
both fail, the run goes to the spool, a small file that the sweep brings in.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from afterrun.errors import ConfigurationError, InputError, QueueError, RunStoreError
from afterrun.limits import MAX_CHARACTERS, MAX_NAME
from afterrun.models import Receipt, Run, parse_time
from afterrun.queue import INDEX_RUN, Publisher, run_kwargs
from afterrun.redact import scrub
from afterrun.runfile import located
from afterrun.runs import RunStore
from afterrun.settings import Settings, load
from afterrun.spool import keep

SHORTEST_WAIT: Final = 0.1
"""Seconds that the broker gets even where the run store has used up the time, as it is then the only way out."""
MOST_TAGS: Final = 1000
"""Tags beyond these are left out: an iterator may be endless."""
UNNAMED: Final = "unnamed"
"""The repo of a run whose caller gave none: it can still be found, and the receipt says so."""
NOWHERE: Final = Path(os.devnull) / "afterrun"
"""The home where there is none: nothing can be written there, and the error names it."""

_NEEDED: Final = ("HOME", "XDG_DATA_HOME", "AFTERRUN_HOME", "AFTERRUN_RUN_STORE", "REDIS_URL")
_Kept = TypeVar("_Kept", RunStore, Publisher)
_Key = TypeVar("_Key")

logger = logging.getLogger("afterrun")
_stores: dict[tuple[str, str], RunStore] = {}
_publishers: dict[tuple[str, int], Publisher] = {}


def finish(
    repo: str,
    summary: str,
    *,
    run_id: str | None = None,
    created_at: datetime | str | None = None,
    tags: Iterable[str] = (),
    mode: str = "feature",
    store: RunStore | str | os.PathLike[str] | None = None,
) -> Receipt:
    """Hand over a finished run; it becomes a memory in the background. Never raises an `Exception`.

    Args:
        repo: the project that the run worked on.
        summary: what the run did. `<private>` blocks and secrets are removed first; what is then empty is stored,
            and never becomes a memory.
        run_id: the run's name in its pipeline; the same `(repo, run_id)` again returns the existing row.
        created_at: when the run ended: a datetime or ISO 8601 text, a naive one is UTC; None is now.
        tags: words to find it by.
        mode: the kind of run.
        store: a run store or its path; None is the one of the settings.

    Returns:
        What became of the run. It is safe if `stored` or `queued`; stored without an `id`, it lies in the spool of the
        home until the sweep brings it into its run store. `error` says what did not go as asked: a value that
        had to be changed, a store that failed, or why it was not queued (a stored run is then left to the sweep).
    """
    try:
        return _Finishing().finish(repo, summary, run_id, created_at, tags, mode, store)
    except Exception as error:
        logger.exception("a finished run was lost")
        return Receipt(id=None, stored=False, queued=False, error=f"{type(error).__name__}: {error}")


class _Finishing:
    """One call of `finish`: its steps, and what each of them has to say."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._notes: list[str] = []

    def finish(
        self,
        repo: object,
        summary: object,
        run_id: object,
        created_at: object,
        tags: object,
        mode: object,
        store: object,
    ) -> Receipt:
        # The run is stored before anything else is tried that may fail, such as a thread to publish it.
        settings = self._settings()
        run = Run(
            repo=self._repo(repo),
            summary=self._summary(summary),
            run_id=None if run_id is None else scrub(self._text("run_id", run_id)) or None,
            created_at=self._created_at(created_at),
            tags=tuple(scrub(tag) for tag in self._tags(tags)),
            mode="feature" if mode is None else scrub(self._text("mode", mode)) or "feature",
        )
        self._check_sizes(run)
        saved = self._saved(run, store, settings)
        publisher = _publisher(settings)
        queued = self._queued(saved or run, publisher, settings, stored=saved is not None)
        stored = saved is not None or (not queued and self._spooled(run, store, settings, publisher))
        error = "; ".join(self._notes) or None
        return Receipt(id=saved.id if saved else None, stored=stored, queued=queued, error=error)

    def _settings(self) -> Settings:
        try:
            return load(os.environ)
        except ConfigurationError as error:
            self._note(f"the settings cannot be used, so those that can and defaults were: {error}")
        usable: dict[str, str] = {}
        settings = Settings(home=NOWHERE, run_store=NOWHERE / "memory.db")
        for name in ("", *_NEEDED):
            more = {**usable, name: os.environ[name]} if name in os.environ else usable
            with suppress(ConfigurationError):
                settings, usable = load(more), more
        return settings

    def _check_sizes(self, run: Run) -> None:
        if len(run.repo) > MAX_NAME:
            self._note(f"repo has {len(run.repo)} characters, more than {MAX_NAME}: the run will never become a memory")
        if len(run.summary) > MAX_CHARACTERS:
            size = f"{len(run.summary)} characters, more than {MAX_CHARACTERS}"
            self._note(f"summary has {size}: the run will never become a memory")

    def _saved(self, run: Run, store: object, settings: Settings) -> Run | None:
        try:
            target = _store(store, settings)
            self._register(target, settings)
            return target.save(run)
        except RunStoreError as error:
            self._note(f"not stored: {error}")
        except Exception as error:
            # Whatever is wrong with the store, the run itself can still be published.
            logger.exception("the run store failed")
            self._note(f"not stored: {type(error).__name__}: {error}")
        return None

    def _register(self, store: RunStore, settings: Settings) -> None:
        try:
            store.register(settings.home)
        except RunStoreError as error:
            self._note(f"the run store could not be registered, the sweep may miss it: {error}")

    def _queued(self, run: Run, publisher: Publisher | None, settings: Settings, *, stored: bool) -> bool:
        if not run.summary.strip():
            return False
        later = "; the sweep will pick it up" if stored else ""
        if publisher is None:
            self._note(f"not queued: REDIS_URL is not set and no local stack runs{later}", level=logging.INFO)
            return False
        wait = max(settings.publish_timeout - (time.monotonic() - self._started), SHORTEST_WAIT)
        try:
            # A run that is not stored goes to the spool next: a message that then still went out would double it.
            _publish(publisher, run, wait, force=not stored, keep=stored)
        except QueueError as error:
            self._note(f"not queued: {error}{later}")
            return False
        except Exception as error:
            logger.exception("a finished run could not be published")
            self._note(f"not queued: {type(error).__name__}: {error}{later}")
            return False
        return True

    def _spooled(self, run: Run, store: object, settings: Settings, publisher: Publisher | None) -> bool:
        try:
            path = keep(settings.home, run, _place(store, settings))
        except Exception as error:
            logger.exception("a finished run was lost, unless the broker still takes it")
            self._note(f"not spooled: {type(error).__name__}: {error}")
            if publisher is not None and run.summary.strip():
                with suppress(Exception):  # said already: this is one chance more, which nobody waits for
                    _publish(publisher, run, 0.0, force=True, keep=True)
            return False
        self._note(f"kept in {path}: the sweep brings it into the run store once that can be written")
        return True

    def _repo(self, value: object) -> str:
        repo = "" if value is None else scrub(self._text("repo", value)).strip()
        if not repo:
            self._note(f"repo is empty: the run is kept under {UNNAMED!r}")
        return repo or UNNAMED

    def _summary(self, value: object) -> str:
        if value is None:
            self._note("summary is None: there is nothing to remember")
            return ""
        if not isinstance(value, str):
            self._note(f"summary is {type(value).__name__}, not a string: its text was taken")
        return scrub(self._text("summary", value))

    def _created_at(self, value: object) -> datetime:
        try:
            match value:
                case None:
                    return datetime.now(UTC)
                case datetime() | str():
                    return parse_time(value)
                case date():
                    return datetime(value.year, value.month, value.day, tzinfo=UTC)
                case int() | float():
                    return datetime.fromtimestamp(value, UTC)
            self._note(f"created_at is {type(value).__name__}, not a time: now was taken")
        except (InputError, ValueError, OverflowError, OSError) as error:
            self._note(f"created_at cannot be used, now was taken: {error}")
        except Exception as error:
            logger.exception("created_at of a finished run has no time")
            self._note(f"created_at cannot be used, now was taken: {type(error).__name__}: {error}")
        return datetime.now(UTC)

    def _tags(self, value: object) -> list[str]:
        if value is None:
            return []
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            self._note("tags is no list of strings: it was taken as one tag")
            return [self._text("tags", value)]
        found: list[str] = []
        try:
            found.extend(self._text("tags", tag) for tag in islice(value, MOST_TAGS))
        except Exception as error:
            logger.exception("the tags of a finished run broke off")
            self._note(f"tags broke off after {len(found)}: {error}")
        return found

    def _text(self, name: str, value: object) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        try:
            return str(value)
        except Exception as error:
            logger.exception("%s of a finished run has no text", name)
            self._note(f"{name} of type {type(value).__name__} has no text: {error}")
            return ""

    def _note(self, text: str, level: int = logging.WARNING) -> None:
        self._notes.append(text)
        logger.log(level, "finish: %s", text)


def _store(store: object, settings: Settings) -> RunStore:
    if isinstance(store, RunStore):
        return store
    if store is not None and not isinstance(store, str | os.PathLike):
        raise RunStoreError(f"store is a RunStore or the path of one, not {type(store).__name__}")
    path = settings.run_store if store is None else located(os.fsdecode(store))
    key = (str(path), str(settings.home))
    return _stores.get(key) or _kept(_stores, key, RunStore(path, home=settings.home))


def _place(store: object, settings: Settings) -> Path:
    if isinstance(store, RunStore):
        return store.path
    try:
        return located(os.fsdecode(store)) if isinstance(store, str | os.PathLike) else settings.run_store
    except Exception:
        logger.exception("a finished run names no place to store it: it is left to the run store of the settings")
        return settings.run_store


def _publish(publisher: Publisher, run: Run, wait: float, *, force: bool, keep: bool) -> None:
    kwargs, shown = run_kwargs(run)
    publisher.publish(INDEX_RUN, kwargs, kwargsrepr=shown, timeout=wait, force=force, keep=keep)


def _publisher(settings: Settings) -> Publisher | None:
    if settings.redis_url is None:
        return None
    key = (settings.redis_url, settings.visibility_timeout)
    return _publishers.get(key) or _kept(_publishers, key, Publisher(key[0], visibility_timeout=key[1]))


def _kept(kept: dict[_Key, _Kept], key: _Key, new: _Kept) -> _Kept:
    # Two threads may come first at once. One of the two wins, without a lock that a fork could leave locked.
    winner = kept.setdefault(key, new)
    if winner is not new:
        new.close()
    return winner
