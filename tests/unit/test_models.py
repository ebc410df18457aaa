"""How a run is keyed, and what its errors show."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations

import pytest

from afterrun.errors import InputError
from afterrun.models import LONGEST_KEY, Run, parse_time

STORE = "0b8f1c9e5d0a4c7e9a526f0d7f6a9b11"
SECRET = "ghp_" + "a1B2" * 9


def run(repo: str, run_id: str | None = None, *, store_id: str | None = None, row: int | None = None) -> Run:
    return Run(repo=repo, summary="Fixed it.", run_id=run_id, store_id=store_id, id=row)


@pytest.mark.parametrize(
    ("keyed", "key"),
    [
        (run("billing", "r-7"), "run:billing:r-7"),
        (run("acme/app", "x1", store_id=STORE), "run:acme/app:x1"),
        (run("billing", "r-7", store_id=STORE, row=3), f"run:{STORE}:3"),
        (run("a:b", "c%"), "run:a%3Ab:c%25"),
        (run(STORE, "r-7"), f"run:{STORE}:r-7"),
    ],
)
def test_a_run_is_keyed_by_its_row_or_else_by_its_names(keyed: Run, key: str) -> None:
    assert keyed.source_key == key


def test_runs_of_different_names_never_share_a_key() -> None:
    long = "n" * LONGEST_KEY
    runs = [
        *(run("a:b", "c"), run("a", "b:c"), run("a%3Ab", "c"), run("a", "b%3Ac")),
        *(run(STORE, "3"), run(STORE, store_id=STORE, row=3), run(f"%30{STORE[1:]}", "3"), run(STORE, "x")),
        *(run(long, "1"), run(long, "2"), run(long[1:], "n1"), run(long)),
    ]
    for one, other in combinations(runs, 2):
        assert one.source_key != other.source_key


def test_a_run_of_a_store_also_has_the_key_of_its_names() -> None:
    assert run("a", "b", store_id=STORE, row=3).unstored_source_key == "run:a:b"
    assert run("a", store_id=STORE, row=3).unstored_source_key == run("a").source_key


def test_a_run_without_an_id_is_keyed_by_what_it_says_and_when() -> None:
    then = Run(repo="a", summary="Fixed it.", created_at=datetime(2026, 1, 31, tzinfo=UTC))
    assert then.source_key not in (run("a").source_key, Run(repo="a", summary="Other.").source_key)


@pytest.mark.parametrize("keyed", [run("é" * 600, "1"), run("a", "1" * 5000), run("a", store_id="s" * 5000, row=1)])
def test_a_long_key_is_hashed(keyed: Run) -> None:
    assert len(keyed.source_key) == len("run:") + 64


def test_a_key_is_made_of_text_that_utf_8_cannot_hold() -> None:
    assert run("\ud800").source_key
    assert run("a", "\ud800" * 2000).source_key


@pytest.mark.parametrize("text", [SECRET, f"<private>{SECRET}</private>", "2026-13-01"])
def test_the_error_for_what_is_no_time_shows_nothing_of_it(text: str) -> None:
    with pytest.raises(InputError, match=f"{len(text)} characters.*ISO 8601") as raised:
        parse_time(text)
    assert text not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
