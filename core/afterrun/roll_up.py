"""Runs into months, months into quarters: a summary of ten runs of a repo, and of three of those.

A batch of rows is claimed in its run store, worded outside any transaction, and written in a short one that looks again
whether all its rows are still free. So a race, a crash or a failing service neither doubles nor loses a row: it stays
unconsolidated and is taken up by a later call, after a wait that the run store keeps. The rows themselves stay as they
are, in the run store and as memories; a roll-up is a memory more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from afterrun import index
from afterrun.budget import Budget, reserved
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.errors import (
    BudgetError,
    LanguageModelError,
    LanguageModelRejectedError,
    LanguageModelUnavailableError,
    RunStoreError,
)
from afterrun.models import GLOBAL_PROJECT, Run
from afterrun.redact import scrub
from afterrun.runs import Batch, RunStore
from afterrun.store import Store, Work
from afterrun.summary import Entry, Worded, Writer

log = logging.getLogger(__name__)

BUSY_SECONDS: Final = 2.0
"""How long a run store is waited for: nobody waits for a roll-up, and finish() holds the file for milliseconds."""
FIRST_WAIT: Final = 60.0
LONGEST_WAIT: Final = 3_600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RolledUp:
    """What a pass over the run stores came to.

    `written` are the new rows. `waiting` says of each batch that was due and is left for later why; `unreachable` are
    the run stores that could not be used.
    """

    written: tuple[Run, ...] = ()
    waiting: tuple[str, ...] = ()
    unreachable: tuple[Path, ...] = ()


def roll_up(
    database: Database,
    run_stores: Sequence[Path],
    chunker: Chunker,
    *,
    home: Path,
    writer: Writer,
    budget: Budget,
    lease: float = 300.0,
    seconds: float = 300.0,
    clock: Callable[[], float] = time.monotonic,
) -> RolledUp:
    """Write every roll-up that is due in `run_stores`, for at most about `seconds`, and index it.

    A store that cannot be reached is said and skipped. `lease` is how long a batch is this call's alone.

    Raises:
        LanguageModelRejectedError: the service refuses this client; what was due waits.
        DatabaseError: Postgres cannot be reached or refuses; a row that is written is left to the sweep.
    """
    deadline = clock() + seconds
    rolling = _Rolling(database, chunker, writer, budget)
    unreachable: list[Path] = []
    for path in run_stores:
        try:
            with RunStore(path, home=home, busy_timeout=BUSY_SECONDS) as store:
                while clock() < deadline and (batch := store.claim_roll_up(lease=lease)) is not None:
                    rolling.roll(store, batch)
        except RunStoreError as error:
            log.warning("no roll-ups in %s: %s", path, error)
            unreachable.append(path)
    with database.transaction() as connection:
        Store(connection).beat("roll_up")
    return RolledUp(written=tuple(rolling.written), waiting=tuple(rolling.waiting), unreachable=tuple(unreachable))


class _Rolling:
    """One pass: how a batch becomes a row, and what has become of those so far."""

    def __init__(self, database: Database, chunker: Chunker, writer: Writer, budget: Budget) -> None:
        self.written: list[Run] = []
        self.waiting: list[str] = []
        self._database = database
        self._chunker = chunker
        self._writer = writer
        self._budget = budget

    def roll(self, store: RunStore, batch: Batch) -> None:
        try:
            summary = self._worded(store, batch).text
        except (BudgetError, LanguageModelError) as error:
            self._postpone(store, batch, error)
            return
        run = store.write_roll_up(batch, scrub(summary), worded_by=self._writer.name)
        if run is None:
            log.info("rows of %s were rolled up by another process meanwhile", store.path)
            return
        self.written.append(run)
        self._index(store, run)

    def _worded(self, store: RunStore, batch: Batch) -> Worded:
        entries = [_entry(run) for run in batch.sources]
        if not any(entry.text.strip() for entry in entries):
            return Worded(text="")
        tokens = self._writer.most_tokens(entries)
        if not tokens:
            return self._writer.write(entries)
        work = Work(
            purpose="roll_up",
            project=scrub(batch.repo).strip() or GLOBAL_PROJECT,
            subject=f"{store.store_id}:{batch.sources[0].id}",
            model=self._writer.name,
            run=uuid4().hex,
        )
        with reserved(self._database, self._budget, work, tokens=tokens) as bill:
            worded = self._writer.write(entries)
            bill.spend = worded.spend
        return worded

    def _postpone(self, store: RunStore, batch: Batch, error: BudgetError | LanguageModelError) -> None:
        store.postpone_roll_up(batch, wait=_wait(error, batch.attempts), error=str(error))
        log.warning("%d rows of %s stay as they are for now: %s", len(batch.sources), store.path, error)
        self.waiting.append(f"{batch.tier} {batch.period_label} of {batch.repo}: {error}")
        if isinstance(error, LanguageModelRejectedError):
            raise error

    def _index(self, store: RunStore, run: Run) -> None:
        index.index_runs(self._database, [run], self._chunker)
        with self._database.transaction() as connection:
            database_id = str(Store(connection).installation_id())
        if run.id is not None:
            store.mark_indexed([run.id], database_id=database_id)


def _entry(run: Run) -> Entry:
    day = f"{run.created_at:%Y-%m-%d}" if run.created_at else "no date"
    return Entry(label=run.period_label or day if run.tier != "run" else day, text=scrub(run.summary))


def _wait(error: BudgetError | LanguageModelError, attempts: int) -> float:
    """Seconds until the next attempt: longer after each, and as long as the service or the cap asks, within an hour."""
    if isinstance(error, LanguageModelRejectedError):
        return LONGEST_WAIT
    if isinstance(error, BudgetError):
        return min(max((error.frees_at - datetime.now(UTC)).total_seconds(), FIRST_WAIT), LONGEST_WAIT)
    asked = error.retry_after if isinstance(error, LanguageModelUnavailableError) and error.retry_after else 0.0
    return min(max(FIRST_WAIT * 2.0 ** min(attempts - 1, 10), asked), LONGEST_WAIT)
