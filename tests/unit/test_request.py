"""What a worker shows of a task's arguments."""

from __future__ import annotations

import pytest

from afterrun.redact import MAX_DEPTH, TOO_DEEP
from afterrun_workers.arguments import cut, described, run_of

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


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_what_is_nested_too_deep_is_cut_in_place_without_recursion() -> None:
    arguments = {"run": {"deep": nested(100_000), "flat": [1, {"a": "b"}]}}
    assert cut(arguments)
    assert arguments["run"]["flat"] == [1, {"a": "b"}]
    value: object = arguments["run"]["deep"]
    for _ in range(MAX_DEPTH - 2):
        assert isinstance(value, list)
        value = value[0]
    assert value == TOO_DEEP


def test_what_is_nested_as_deep_as_allowed_stays() -> None:
    value = nested(MAX_DEPTH)
    assert not cut(value)
    assert value == nested(MAX_DEPTH)
    assert cut(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("arguments", "keywords", "run"),
    [
        ((), {"run": RUN}, RUN),
        ((), {"run": RUN, "priority": 1}, RUN),
        ((), RUN, RUN),
        ((RUN,), {}, RUN),
        ((RUN,), {"priority": 1}, RUN),
        (("billing", "text"), {}, {"args": ["billing", "text"]}),
        ((), {"run": "text", "priority": 1}, {"args": [], "run": "text", "priority": 1}),
        ((), {}, {}),
    ],
)
def test_a_run_is_read_however_it_was_sent(
    arguments: tuple[object, ...], keywords: dict[str, object], run: dict[str, object]
) -> None:
    assert run_of(arguments, keywords) == run
