"""What a worker shows of a task's arguments."""

from __future__ import annotations

import pytest

from afterrun_workers.request import described

SECRET = "ghp_" + "a1B2" * 9
RUN = {"repo": "billing", "run_id": "r-7", "id": 3, "summary": "The whole text", "note": "more text"}
MEMBER = "0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"run": RUN}, "{'run': <repo='billing' run_id='r-7' id=3 14 chars>}"),
        ([RUN], "[<repo='billing' run_id='r-7' id=3 14 chars>]"),
        ({"run": {"summary": None}}, "{'run': <0 chars>}"),
        ({"run": "no run but a text"}, "{'run': <17 chars>}"),
        ({"memory_ids": [MEMBER, "text"]}, f"{{'memory_ids': ['{MEMBER}', <4 chars>]}}"),
        ({"memory_ids": list(range(21))}, "{'memory_ids': [" + ", ".join(map(str, range(20))) + ", …]}"),
        ({}, "{}"),
        ((), "[]"),
        (None, "None"),
    ],
)
def test_arguments_are_shown_by_their_names_and_sizes(arguments: object, shown: str) -> None:
    assert described(arguments) == shown


def test_a_secret_in_a_runs_name_is_not_shown() -> None:
    assert SECRET not in described({"run": {"repo": f"https://{SECRET}@github.com/a/b", "summary": ""}})


def test_a_name_is_cut_where_it_is_long() -> None:
    assert len(described({"run": {"repo": "r" * 10_000, "run_id": "i" * 10_000}})) < 200
