"""What the language model may cost: caps that workers at the same time cannot pass together, counted in Postgres."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from afterrun import budget
from afterrun.budget import Budget
from afterrun.db import Database
from afterrun.errors import BudgetError, LanguageModelError, LanguageModelUnavailableError, Spend
from afterrun.settings import Settings, load
from afterrun.store import Work

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WORK = Work(purpose="judge", project="shop", subject="a cluster", model="claude-haiku-4-5", run="one")


def reserve(
    database: Database, caps: Budget, work: Work = WORK, *, tokens: int = 100, now: datetime = NOON, lease: float = 300
) -> int:
    with database.transaction() as connection:
        return budget.reserve(connection, caps, work, tokens=tokens, now=now, lease=lease)


def today(database: Database, now: datetime = NOON) -> Spend:
    with database.transaction() as connection:
        return budget.spending(connection, Budget(), now=now).today


def test_workers_at_the_same_time_never_pass_a_cap_together(database: Database) -> None:
    def attempt(number: int) -> bool:
        try:
            reserve(database, Budget(calls_per_day=5), replace(WORK, subject=str(number)))
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(attempt, range(20)))
    assert sum(taken) == 5
    assert today(database).calls == 5


def test_tokens_under_way_count_with_what_they_may_take_until_the_real_number_is_known(database: Database) -> None:
    caps = Budget(tokens_per_day=1000)
    reservation = reserve(database, caps, tokens=900)
    with pytest.raises(BudgetError, match=r"900 of the 1,000 tokens of today"):
        reserve(database, caps, tokens=200)
    with database.transaction() as connection:
        budget.settle(connection, reservation, Spend(calls=1, input_tokens=100, output_tokens=20))
    reserve(database, caps, tokens=200)
    assert today(database) == Spend(calls=2, input_tokens=300, output_tokens=20)


def test_a_dead_workers_reservation_ends_by_itself(database: Database) -> None:
    caps = Budget(calls_per_day=1)
    reserve(database, caps, lease=60)
    with pytest.raises(BudgetError):
        reserve(database, caps, now=NOON + timedelta(seconds=59))
    reserve(database, caps, now=NOON + timedelta(seconds=61))


@pytest.mark.parametrize(
    ("caps", "other", "setting"),
    [
        (Budget(calls_per_day=1), {"project": "other", "run": "two"}, "AFTERRUN_SPEND_CALLS_PER_DAY"),
        (Budget(tokens_per_day=150), {"project": "other", "run": "two"}, "AFTERRUN_SPEND_TOKENS_PER_DAY"),
        (Budget(calls_per_project_day=1), {"run": "two"}, "AFTERRUN_SPEND_CALLS_PER_PROJECT_DAY"),
        (Budget(tokens_per_project_day=150), {"run": "two"}, "AFTERRUN_SPEND_TOKENS_PER_PROJECT_DAY"),
        (Budget(calls_per_run=1), {"project": "other"}, "AFTERRUN_SPEND_CALLS_PER_RUN"),
        (Budget(tokens_per_run=150), {"project": "other"}, "AFTERRUN_SPEND_TOKENS_PER_RUN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_cap_counts_its_own_and_the_error_names_the_setting_and_when_it_frees(
    database: Database, caps: Budget, other: dict[str, str], setting: str
) -> None:
    reserve(database, caps)
    with pytest.raises(BudgetError, match=setting) as caught:
        reserve(database, caps, replace(WORK, **other))
    assert caught.value.setting == setting
    assert caught.value.frees_at == datetime(2026, 5, 2, tzinfo=UTC)
    assert "2026-05-02 00:00Z" in str(caught.value)
    assert caught.value.of_run == setting.endswith("RUN")


def test_other_projects_and_runs_go_on(database: Database) -> None:
    caps = Budget(calls_per_project_day=1, calls_per_run=1)
    reserve(database, caps)
    reserve(database, caps, replace(WORK, project="other", run="two"))
    assert today(database).calls == 2


def test_the_day_begins_at_midnight_utc(database: Database) -> None:
    caps = Budget(calls_per_day=1)
    reserve(database, caps, now=datetime(2026, 5, 1, 23, 59, tzinfo=UTC), lease=3600)
    reserve(database, caps, now=datetime(2026, 5, 2, 0, 0, tzinfo=UTC))
    assert today(database, datetime(2026, 5, 2, 0, 1, tzinfo=UTC)).calls == 1


def test_what_a_clock_that_ran_ahead_wrote_down_does_not_hold_up_the_days_until_then(database: Database) -> None:
    caps = Budget(calls_per_day=1)
    reserve(database, caps, now=datetime(2036, 1, 1, tzinfo=UTC))
    reserve(database, caps, now=NOON)
    assert today(database).calls == 1


def test_zero_is_no_cap(database: Database) -> None:
    for _ in range(3):
        reserve(database, Budget(), tokens=10_000_000)
    assert today(database).calls == 3


def test_a_call_is_paid_when_it_fails_and_counts_with_what_its_answer_said(database: Database) -> None:
    spend = Spend(calls=1, input_tokens=7, output_tokens=3)
    with (
        pytest.raises(LanguageModelError),
        budget.reserved(database, Budget(), WORK, tokens=500, now=NOON),
    ):
        raise LanguageModelError("nonsense", spend=spend)
    assert today(database) == spend
    with (
        pytest.raises(LanguageModelUnavailableError),
        budget.reserved(database, Budget(), WORK, tokens=500, now=NOON),
    ):
        raise LanguageModelUnavailableError("busy")
    assert today(database) == Spend(calls=2, input_tokens=7, output_tokens=3)


def test_a_call_that_succeeds_is_paid_with_its_bill(database: Database) -> None:
    with budget.reserved(database, Budget(), WORK, tokens=500, now=NOON) as bill:
        assert today(database) == Spend(calls=1, input_tokens=500)
        bill.spend = Spend(calls=1, input_tokens=80, output_tokens=9)
    assert today(database) == bill.spend


def test_a_report_names_the_projects_that_spent_most(database: Database) -> None:
    for number in range(7):
        reserve(database, Budget(), replace(WORK, project=f"p{number}"), tokens=100 * (number + 1))
    with database.transaction() as connection:
        found = budget.spending(connection, Budget(calls_per_day=9), now=NOON)
    assert list(found.projects) == ["p6", "p5", "p4", "p3", "p2"]
    assert found.runs == {"one": found.today}
    assert found.budget.calls_per_day == 9
    assert found.frees_at == datetime(2026, 5, 2, tzinfo=UTC)


def test_the_caps_are_settings_and_the_defaults_let_a_project_take_half() -> None:
    caps = Budget.of(load({"AFTERRUN_SPEND_CALLS_PER_DAY": "0", "AFTERRUN_SPEND_TOKENS_PER_RUN": "5"}))
    assert (caps.calls_per_day, caps.tokens_per_run) == (0, 5)
    assert Settings.spend_calls_per_project_day * 2 == Settings.spend_calls_per_day
    assert Settings.spend_tokens_per_project_day * 2 == Settings.spend_tokens_per_day
