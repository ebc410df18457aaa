"""The tiers of a run store: which rows are due to be rolled up, who is at it, and what came of it.

Ten runs of a repo become one `monthly` row, three of those a `quarterly` one. A batch is claimed by a row of
`afterrun_roll_ups` that holds until a time, so that two processes do not word the same batch, a dead one's claim ends
by itself, and a failure is not tried again at once. All but `due` work within a write transaction of the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from afterrun.models import Run
from afterrun.runrows import BLANK, FILLED, Rows

TIERS: Final = {"run": ("monthly", 10), "monthly": ("quarterly", 3)}
"""What so many rows of a tier become."""
MODE: Final = "roll_up"
"""The mode of rows that are roll-ups."""
NOT_ROLLED_UP: Final = "commit"
"""The mode of rows that are commits: history to be found by recall, not runs of a pipeline."""
NO_PERIOD: Final = "undated"
_MOST_TAGS: Final = 50

_TIER: Final = "coalesce(nullif(tier, ''), 'run')"
# The first two conditions are those of the index afterrun_runs_open.
_OPEN: Final = f"consolidated IS NOT 1 AND mode IS NOT '{NOT_ROLLED_UP}' AND trim(repo, :blank) <> '' AND {FILLED}"
_DUE: Final = f"SELECT repo, {_TIER} AS level, count(*) FROM runs WHERE {_OPEN} GROUP BY repo, level ORDER BY min(id)"
_OLDEST: Final = f"{_OPEN} AND repo = :repo AND {_TIER} = :level ORDER BY datetime(created_at), id LIMIT :n"
_HELD: Final = "SELECT repo, tier FROM afterrun_roll_ups WHERE not_before > ?"
_CLAIM: Final = (
    "INSERT INTO afterrun_roll_ups (repo, tier, not_before, attempts) VALUES (:repo, :tier, :until, 1) "
    "ON CONFLICT (repo, tier) DO UPDATE SET not_before = excluded.not_before, attempts = attempts + 1 "
    "WHERE not_before <= :now RETURNING attempts"
)
_PERIOD: Final = re.compile(r"(\d{4}-\d{2})(?:\.\.(\d{4}-\d{2}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rows of one repo, oldest first, that are to become one row of `tier`; `attempts` counts its claims so far."""

    repo: str
    tier: str
    sources: tuple[Run, ...]
    attempts: int = 0

    @property
    def period_label(self) -> str:
        """The months that the sources cover, such as `2026-03` or `2026-03..2026-05`."""
        months = sorted(month for run in self.sources for month in months_of(run))
        if not months:
            return NO_PERIOD
        return months[0] if months[0] == months[-1] else f"{months[0]}..{months[-1]}"

    @property
    def created_at(self) -> datetime | None:
        """The time of the newest source."""
        return max((run.created_at for run in self.sources if run.created_at), default=None)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the sources, each once."""
        return tuple(dict.fromkeys(tag for run in self.sources for tag in run.tags))[:_MOST_TAGS]


def months_of(run: Run) -> tuple[str, ...]:
    """First and last month of the period of a row: a roll-up's by its label, any other's by its time, in UTC."""
    if run.tier != "run" and (named := _PERIOD.fullmatch(run.period_label)):
        return named[1], named[2] or named[1]
    return (f"{run.created_at.astimezone(UTC):%Y-%m}",) if run.created_at else ()


def due(rows: Rows, *, now: float) -> Iterator[Batch]:
    """The batches that are due and that nobody holds. It only reads: who finishes a run need not wait for it."""
    held = {(repo, tier) for repo, tier in rows.connection.execute(_HELD, (now,))}
    for repo, level, count in rows.connection.execute(_DUE, {"blank": BLANK}).fetchall():
        tier, size = TIERS.get(level, ("", 0))
        if not tier or count < size or (repo, tier) in held:
            continue
        sources = rows.find(_OLDEST, repo=repo, level=level, n=size)
        # Fewer where another process has taken some since they were counted.
        if len(sources) == size:
            yield Batch(repo=repo, tier=tier, sources=tuple(sources))


def claim(rows: Rows, batch: Batch, *, now: float, lease: float) -> Batch | None:
    """Take the batch for `lease` seconds from `now`; None where another process has come first."""
    if _still_open(rows, batch) != len(batch.sources):
        return None
    held = {"repo": batch.repo, "tier": batch.tier, "until": now + lease, "now": now}
    row = rows.connection.execute(_CLAIM, held).fetchone()
    return replace(batch, attempts=row[0]) if row else None


def write(rows: Rows, batch: Batch, summary: str, *, worded_by: str, now: datetime) -> Run | None:
    """Insert the roll-up, mark its sources and end the claim; None, and nothing done, if a source is rolled up."""
    if _still_open(rows, batch) != len(batch.sources):
        return None
    run = Run(
        repo=batch.repo,
        summary=summary,
        created_at=batch.created_at,
        tags=batch.tags,
        mode=MODE,
        tier=batch.tier,
        period_label=batch.period_label,
    )
    written = rows.add(run, now)
    sources = [(run.id,) for run in batch.sources]
    provenance = [(source, written.id, worded_by) for (source,) in sources]
    insert = "INSERT INTO afterrun_sources (source, roll_up, worded_by) VALUES (?, ?, ?)"
    rows.connection.executemany(insert, provenance)
    rows.connection.executemany("UPDATE runs SET consolidated = 1 WHERE id = ?", sources)
    rows.connection.execute("DELETE FROM afterrun_roll_ups WHERE repo = ? AND tier = ?", (batch.repo, batch.tier))
    return rows.find("id = :id", id=written.id)[0]


def postpone(rows: Rows, batch: Batch, *, until: float, error: str) -> None:
    """Leave the batch alone until a time, and keep why."""
    update = "UPDATE afterrun_roll_ups SET not_before = ?, error = ? WHERE repo = ? AND tier = ?"
    rows.connection.execute(update, (until, error, batch.repo, batch.tier))


def _still_open(rows: Rows, batch: Batch) -> int:
    """How many sources of the batch are in no roll-up yet."""
    marks = ", ".join("?" * len(batch.sources))
    query = f"SELECT count(*) FROM runs WHERE id IN ({marks}) AND consolidated IS NOT 1"
    return int(rows.connection.execute(query, [run.id for run in batch.sources]).fetchone()[0])
