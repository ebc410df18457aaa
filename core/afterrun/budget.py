"""What the language model may cost: caps on calls and tokens a day, a day and project, and a run.

A day is a day of UTC. A run is one chain of work: one `afterrun consolidate`, one cluster that a worker judges with all
its attempts, one roll-up, one session summary with all its windows; its caps count within the day, too.

Whoever calls the language model reserves before and settles after, each in a short transaction of its own or at the
end of one that is at hand; no lock is held across the call:

    with reserved(database, budget, work, tokens=haiku.most_tokens(…)) as bill:
        answer = haiku.ask(…)  # may raise; an error's `spend` is recorded as well
        bill.spend = answer.spend

Reserving is exact: what is under way counts with what it may take at most, so that workers at the same time never
pass a cap together. A reservation whose worker died ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from afterrun.db import Connection, Database
from afterrun.errors import BudgetError, LanguageModelError, Spend
from afterrun.settings import Settings
from afterrun.store import Store, Work

TOP: Final = 5
"""Projects and runs that a report names."""
LEASE_SECONDS: Final = 300.0
"""How long a reservation counts if nobody settles it: longer than any call with its timeout."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The caps; 0 is no cap. Tokens are those of the input and of the output together."""

    calls_per_day: int = 0
    tokens_per_day: int = 0
    calls_per_project_day: int = 0
    tokens_per_project_day: int = 0
    calls_per_run: int = 0
    tokens_per_run: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Budget:
        """The caps of the settings."""
        return cls(
            calls_per_day=settings.spend_calls_per_day,
            tokens_per_day=settings.spend_tokens_per_day,
            calls_per_project_day=settings.spend_calls_per_project_day,
            tokens_per_project_day=settings.spend_tokens_per_project_day,
            calls_per_run=settings.spend_calls_per_run,
            tokens_per_run=settings.spend_tokens_per_run,
        )


@dataclass(kw_only=True)
class Bill:
    """What a call under way cost; whoever made the call writes it here."""

    spend: Spend = field(default_factory=Spend)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Spend since midnight UTC against the caps, the projects and runs that spent most, and when the day ends."""

    today: Spend
    budget: Budget
    projects: Mapping[str, Spend]
    runs: Mapping[str, Spend]
    frees_at: datetime


def check(connection: Connection, budget: Budget, work: Work, *, tokens: int = 0, now: datetime | None = None) -> None:
    """Whether one more call for `work`, of up to `tokens` tokens, fits under every cap.

    Raises:
        BudgetError: it does not; says which cap, how much of it is used, when it frees, and which setting it is.
    """
    now = now or datetime.now(UTC)
    since, frees_at = _day(now)
    for cap in _caps(Store(connection), budget, work, since, now):
        for what, used, wanted, most in (
            ("calls", cap.used.calls, 1, cap.calls),
            ("tokens", cap.used.input_tokens + cap.used.output_tokens, tokens, cap.tokens),
        ):
            if most and used + wanted > most:
                raise _reached(f"{what} {cap.scope}", used, wanted, most, f"{what.upper()}_{cap.setting}", frees_at)


def reserve(
    connection: Connection,
    budget: Budget,
    work: Work,
    *,
    tokens: int,
    now: datetime | None = None,
    lease: float = LEASE_SECONDS,
) -> int:
    """Reserve one call of up to `tokens` tokens; what `settle` takes afterwards.

    It locks out others until the transaction ends: call it last, and end the transaction before the language model is
    called. Raises BudgetError as `check`.
    """
    now = now or datetime.now(UTC)
    store = Store(connection)
    store.lock_spend()
    check(connection, budget, work, tokens=tokens, now=now)
    most = Spend(calls=1, input_tokens=tokens)
    return store.reserve_spend(work, most, at=now, until=now + timedelta(seconds=lease))


def settle(connection: Connection, reservation: int, spend: Spend) -> None:
    """Replace a reservation by what the call cost."""
    Store(connection).settle_spend(reservation, spend)


def record(connection: Connection, work: Work, spend: Spend, *, now: datetime | None = None) -> None:
    """Write down what was spent without a reservation."""
    Store(connection).record_spend(work, spend, at=now or datetime.now(UTC))


@contextmanager
def reserved(
    database: Database,
    budget: Budget,
    work: Work,
    *,
    tokens: int,
    now: datetime | None = None,
    lease: float = LEASE_SECONDS,
) -> Iterator[Bill]:
    """Reserve one call, let the block make it, and settle with what the block wrote on the bill.

    A LanguageModelError of the block is recorded with its own spend, and at least as one call. Where nothing is known
    of what was spent, the reservation ends by itself. Raises BudgetError before the block.
    """
    with database.transaction() as connection:
        reservation = reserve(connection, budget, work, tokens=tokens, now=now, lease=lease)
    bill = Bill()
    try:
        yield bill
    except LanguageModelError as error:
        bill.spend = of_failure(error)
        raise
    finally:
        if bill.spend.calls:
            with database.transaction() as connection:
                settle(connection, reservation, bill.spend)


def of_failure(error: LanguageModelError) -> Spend:
    """What a failed call cost: what its answer said, and one call in any case, for it may have been carried out."""
    return error.spend if error.spend.calls else Spend(calls=1)


def spending(connection: Connection, budget: Budget, *, now: datetime | None = None) -> Spending:
    """How much is spent today against the caps."""
    now = now or datetime.now(UTC)
    since, frees_at = _day(now)
    store = Store(connection)
    return Spending(
        today=store.spent(since, now=now),
        budget=budget,
        projects=dict(store.spent_by_project(since, now=now, limit=TOP)),
        runs=dict(store.spent_by_run(since, now=now, limit=TOP)),
        frees_at=frees_at,
    )


@dataclass(frozen=True, kw_only=True)
class _Cap:
    scope: str
    used: Spend
    calls: int
    tokens: int
    setting: str


def _caps(store: Store, budget: Budget, work: Work, since: datetime, now: datetime) -> tuple[_Cap, _Cap, _Cap]:
    return (
        _Cap(
            scope="of today",
            used=store.spent(since, now=now),
            calls=budget.calls_per_day,
            tokens=budget.tokens_per_day,
            setting="PER_DAY",
        ),
        _Cap(
            scope=f"of today for project {work.project}",
            used=store.spent(since, now=now, project=work.project),
            calls=budget.calls_per_project_day,
            tokens=budget.tokens_per_project_day,
            setting="PER_PROJECT_DAY",
        ),
        _Cap(
            scope="of this run",
            used=store.spent(since, now=now, run=work.run),
            calls=budget.calls_per_run,
            tokens=budget.tokens_per_run,
            setting="PER_RUN",
        ),
    )


def _reached(what: str, used: int, wanted: int, most: int, setting: str, frees_at: datetime) -> BudgetError:
    of_run = setting.endswith("PER_RUN")
    when = f"{'another run or ' if of_run else ''}{frees_at:%Y-%m-%d %H:%M}Z"
    return BudgetError(
        f"the language model waits for {when}: {used:,} of the {most:,} {what} are used or under way, and the next call"
        f" may take {wanted:,}; AFTERRUN_SPEND_{setting} is the cap",
        setting=f"AFTERRUN_SPEND_{setting}",
        frees_at=frees_at,
        of_run=of_run,
    )


def _day(now: datetime) -> tuple[datetime, datetime]:
    since = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return since, since + timedelta(days=1)
