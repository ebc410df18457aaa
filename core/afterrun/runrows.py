"""Rows of a run store as records, and back: whatever an old file or another program wrote is read leniently.

The functions work on a connection whose transaction the caller holds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from afterrun.errors import InputError
from afterrun.models import Run, parse_time

_ROW: Final = "id, repo, run_id, created_at, summary, tags, mode, tier, period_label"
_SPACES: Final = (range(9, 14), range(28, 33), (0x85, 0xA0, 0x1680), range(0x2000, 0x200B), (0x2028, 0x2029, 0x202F))
BLANK: Final = "".join(map(chr, (*chain.from_iterable(_SPACES), 0x205F, 0x3000)))
"""What `str.strip` strips: SQLite's own trim knows only the space."""
FILLED: Final = "trim(coalesce(summary, ''), :blank) <> ''"
"""Condition of a row that has a summary; `:blank` is `BLANK`."""
_CUT: Final = " …"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of the run store `store_id` at `path`, over an open connection."""

    connection: sqlite3.Connection
    store_id: str
    path: str

    def find(self, where: str, **values: object) -> list[Run]:
        """The runs of the rows for which `where` holds; it may end in an order and a limit."""
        rows = self.connection.execute(f"SELECT {_ROW} FROM runs WHERE {where}", {"blank": BLANK, **values}).fetchall()
        return [self._run(row) for row in rows]

    def add(self, run: Run, now: datetime, *, once: bool = False) -> Run:
        """Insert `run`, from `now` where it has no time; the row of the same `(repo, run_id)` where there is one.

        With `once`, a row without a `run_id` of the same repo, time and summary is taken for the same run.
        """
        run = _storable_run(run, now)
        stored = replace(run, store_id=self.store_id, store_path=self.path)
        when = stored.created_at.isoformat() if stored.created_at else ""
        same = "repo = :repo AND run_id = :run_id ORDER BY id LIMIT 1"
        alike = "repo = :repo AND run_id IS NULL AND created_at = :at AND summary = :text ORDER BY id LIMIT 1"
        if run.run_id and (found := self.find(same, repo=run.repo, run_id=run.run_id)):
            return found[0]
        if once and not run.run_id and (found := self.find(alike, repo=run.repo, at=when, text=run.summary)):
            return found[0]
        insert = (
            "INSERT INTO runs (repo, run_id, created_at, summary, tags, mode, tier, period_label) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        tags = json.dumps(stored.tags, ensure_ascii=False)
        kind = (stored.mode, stored.tier, stored.period_label)
        row = self.connection.execute(insert, (run.repo, run.run_id, when, run.summary, tags, *kind)).lastrowid
        return replace(stored, id=row)

    def _run(self, row: Sequence[object]) -> Run:
        number, repo, run_id, created_at, summary, tags, mode, tier, period_label = row
        return Run(
            id=number if isinstance(number, int) else None,
            repo=text_of(repo),
            run_id=text_of(run_id) or None,
            created_at=time_of(created_at),
            summary=text_of(summary),
            tags=_tags(tags),
            mode=text_of(mode) or "feature",
            tier=text_of(tier) or "run",
            period_label=text_of(period_label),
            store_id=self.store_id,
            store_path=self.path,
            extra=self._provenance(number) if text_of(tier) not in ("", "run") else {},
        )

    def _provenance(self, roll_up: object) -> dict[str, object]:
        """What a roll-up is made of: the rows of its sources, their names in the pipeline, and who worded it."""
        query = (
            "SELECT source, run_id, worded_by FROM afterrun_sources LEFT JOIN runs ON runs.id = source "
            "WHERE roll_up = ? ORDER BY source"
        )
        sources = self.connection.execute(query, (roll_up,)).fetchall()
        if not sources:
            return {}
        return {
            "rolled_up": [source for source, _, _ in sources],
            "rolled_up_runs": [text_of(run_id) for _, run_id, _ in sources if run_id],
            "worded_by": text_of(sources[0][2]),
        }


def heading(run: Run) -> str:
    """The title of a run in a block of context: its repo, its tier and its period, or its name and its day."""
    if run.tier != "run":
        return f"{run.repo}: {run.tier} {run.period_label}".rstrip()
    day = f"{run.created_at:%Y-%m-%d}" if run.created_at else "no date"
    return f"{run.repo}: run {run.run_id or run.id} ({day})"


def shortened(text: str, room: int) -> str:
    """`text` stripped, and cut at a word where it is longer than `room` characters; a cut is marked."""
    text = text.strip()
    if len(text) <= room:
        return text
    end = max(room - len(_CUT), 0)
    space = max(text.rfind(" ", end // 2, end + 1), text.rfind("\n", end // 2, end + 1))
    return text[: space if space > 0 else end].rstrip() + _CUT


def text_of(value: object) -> str:
    """What a column of text holds, whatever was stored in it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def time_of(value: object) -> datetime | None:
    """The time that a column names, None where it names none."""
    try:
        return parse_time(text_of(value))
    except InputError:
        return None


def _storable_run(run: Run, now: datetime) -> Run:
    return replace(
        run,
        repo=_storable(run.repo),
        run_id=_storable(run.run_id) if run.run_id else None,
        created_at=(run.created_at or now).astimezone(UTC),
        summary=_storable(run.summary),
        tags=tuple(map(_storable, run.tags)),
        mode=_storable(run.mode),
        tier=_storable(run.tier),
        period_label=_storable(run.period_label),
    )


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _tags(value: object) -> tuple[str, ...]:
    try:
        tags = json.loads(text_of(value))
    except (ValueError, RecursionError):
        return ()
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
