"""What keeps the HTTP server from hanging: bounded workers, the breaker, the rate limit; and how bodies are read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from afterrun.errors import ContendedError, DatabaseUnavailableError, InputError
from afterrun.serve.http.body import parse, parse_lines
from afterrun.serve.http.rate import RateLimit
from afterrun.serve.http.recent import Recent
from afterrun.serve.http.workers import Breaker, OverloadedError, Workers


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_work_beyond_the_queue_is_refused_at_once_and_room_comes_back() -> None:
    async def busy() -> list[str]:
        workers = Workers(threads=1, waiting=1, seconds=30)
        go = threading.Event()
        tasks = [asyncio.create_task(workers.run(lambda: go.wait(10))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="busy"):
            await workers.run(lambda: True)
        assert workers.admitted == 2
        go.set()
        results = [str(result) for result in await asyncio.gather(*tasks)]
        results.append(await workers.run(lambda: "room"))
        workers.close()
        return results

    assert asyncio.run(busy()) == ["True", "True", "room"]


def test_work_that_takes_too_long_ends_the_wait_and_counts_until_it_is_done() -> None:
    async def slow() -> int:
        workers = Workers(threads=1, waiting=0, seconds=0.05)
        go = threading.Event()
        with pytest.raises(OverloadedError, match="no answer"):
            await workers.run(lambda: go.wait(10))
        still = workers.admitted
        go.set()
        while workers.admitted:
            await asyncio.sleep(0.01)
        workers.close()
        return still

    assert asyncio.run(slow()) == 1


def test_after_two_failures_in_a_row_one_caller_finds_out_and_the_others_are_refused() -> None:
    clock = Clock()
    breaker = Breaker(rest=1, clock=clock)
    away = DatabaseUnavailableError("away")
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            breaker.guard(fail(away), breaker.passes())
    with pytest.raises(DatabaseUnavailableError, match="away"):
        breaker.passes()
    with pytest.raises(DatabaseUnavailableError, match="away"):
        breaker.guard(lambda: "it waited in the queue", False)
    clock.now += 1
    assert breaker.passes()
    with pytest.raises(DatabaseUnavailableError):
        breaker.passes()
    assert breaker.guard(lambda: "back", True) == "back"
    assert not breaker.passes()


def test_other_failures_say_nothing_of_the_database() -> None:
    breaker = Breaker()
    for error in (InputError("wrong"), ContendedError("deadlock"), ContendedError("deadlock")):
        with pytest.raises(type(error)):
            breaker.guard(fail(error), breaker.passes())
    assert not breaker.passes()


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    clock = Clock()
    limit = RateLimit(2, 3, clock=clock)
    assert [limit.wait("a") for _ in range(5)] == [0, 0, 0, 1, 1]
    assert limit.wait("b") == 0
    clock.now += 0.5
    assert [limit.wait("a") for _ in range(2)] == [0, 1]
    clock.now += 3600
    assert [limit.wait("a") for _ in range(4)] == [0, 0, 0, 1]
    assert {RateLimit(0, 1).wait("a") for _ in range(9)} == {0}
    assert RateLimit(0.1, 1, clock=clock).wait("a") == 0


def test_buckets_do_not_grow_without_end() -> None:
    clock = Clock()
    limit = RateLimit(100, 1, clock=clock)
    for number in range(30_000):
        clock.now += 0.001
        limit.wait(str(number))
    assert len(limit._buckets) <= 10_001


def test_a_recent_value_is_read_once_for_all_who_ask() -> None:
    clock = Clock()
    readings: list[int] = []

    async def read() -> int:
        readings.append(1)
        await asyncio.sleep(0)
        return len(readings)

    async def ask() -> list[int]:
        recent = Recent(read, seconds=2, clock=clock)
        first = await asyncio.gather(*(recent.value() for _ in range(5)))
        clock.now += 3
        return [*first, await recent.value()]

    assert asyncio.run(ask()) == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        ('"ü"'.encode(), "ü"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'{"\\udc00": "a\\ud800"}', {"\ufffd": "a\ufffd"}),
        (b'[{"a": 1}, {"a": 1}]', [{"a": 1}, {"a": 1}]),
    ],
)
def test_json_is_read_as_it_is_meant(body: bytes, value: Any) -> None:
    assert parse(body) == value


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"nan", b"-Infinity", b"[1,]", b'{"a":1,"a":1}', b"[" * 9_999, b"9" * 5_000, b"\x00"]
)
def test_what_is_no_json_is_refused_without_being_repeated(body: bytes) -> None:
    with pytest.raises(HTTPException) as refused:
        parse(body)
    assert refused.value.status_code == 400
    assert "999" not in refused.value.detail


def test_lines_are_counted_from_one_and_empty_ones_are_left_out() -> None:
    assert parse_lines(b'{"a": 1}\r\n\n  \n{"a": 2}') == [{"a": 1}, {"a": 2}]
    with pytest.raises(HTTPException, match="line 3"):
        parse_lines(b"1\n\n{\n")
