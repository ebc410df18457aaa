"""What calls of the language model cost: reserved before, settled after, summed by day, project and run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from afterrun.errors import Spend
from afterrun.store.base import Queries

_LOCK: Final = 0x5350454E  # "SPEN": whoever compares spend with a cap and adds to it holds this advisory lock


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the language model is called for.

    `purpose` is `judge`, `roll_up` or `summarize`, `subject` what is worked on (such as a consolidation's id), `model`
    the language model's name. `run` is the chain of work whose cap counts it, such as one `afterrun consolidate`.
    """

    purpose: str
    project: str
    subject: str
    model: str
    run: str


class SpendQueries(Queries):
    """The queries of `spend.sql`. A row that is reserved and not settled counts until its reservation ends."""

    def lock_spend(self) -> None:
        """Let no other transaction reserve until this one ends; take it last and end soon."""
        self.run("lock_spend", key=_LOCK)

    def reserve_spend(self, work: Work, most: Spend, *, at: datetime, until: datetime) -> int:
        """Write down before a call what it may cost at most, until a time; the row's id."""
        return int(str(self.value("reserve_spend", at=at, reserved_until=until, **asdict(work), **asdict(most))))

    def record_spend(self, work: Work, spend: Spend, *, at: datetime) -> int:
        """Write down what a call cost that was not reserved; the row's id."""
        return int(str(self.value("reserve_spend", at=at, reserved_until=None, **asdict(work), **asdict(spend))))

    def settle_spend(self, reservation: int, spend: Spend) -> None:
        """Replace what was reserved by what it cost."""
        self.run("settle_spend", id=reservation, **asdict(spend))

    def spent(self, since: datetime, *, now: datetime, project: str | None = None, run: str | None = None) -> Spend:
        """What was spent in the day from `since` on, with reservations that still hold; of all, a project or a run."""
        return self.records(Spend, "spent", since=since, now=now, project=project, run=run)[0]

    def spent_by_project(self, since: datetime, *, now: datetime, limit: int) -> list[tuple[str, Spend]]:
        """The projects that spent most in the day from `since` on, by tokens."""
        return self._by("spent_by_project", since, now, limit)

    def spent_by_run(self, since: datetime, *, now: datetime, limit: int) -> list[tuple[str, Spend]]:
        """The runs that spent most in the day from `since` on, by tokens."""
        return self._by("spent_by_run", since, now, limit)

    def _by(self, name: str, since: datetime, now: datetime, limit: int) -> list[tuple[str, Spend]]:
        rows = self.run(name, since=since, now=now, limit=limit)
        return [(row[0], Spend(calls=row[1], input_tokens=row[2], output_tokens=row[3])) for row in rows]
