"""Reading request bodies: strict JSON, and JSON Lines.

Refused beside what is no JSON: numbers that JSON does not have (NaN), a key twice in one object (which of them counts
would be chance), nesting without end. Lone surrogates, which no UTF-8 can hold, become U+FFFD.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException

T = TypeVar("T")

JSON_LINES: Final = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
_LARGE: Final = 64 * 1024
"""Bytes from which a body is read in a thread: the event loop must not stand still for it."""


class StrictRequest(Request):
    """A request with a body of at most `most` bytes, sent within `seconds`, whose JSON is read by the rules above.

    Raises HTTPException with status 413, 408 or 400.
    """

    def __init__(self, request: Request, *, most: int, seconds: float) -> None:
        super().__init__(request.scope, request.receive)
        self._most = most
        self._seconds = seconds
        self._read: bytes | None = None

    async def body(self) -> bytes:
        """The whole body."""
        if self._read is None:
            try:
                async with asyncio.timeout(self._seconds):
                    self._read = await self._received()
            except TimeoutError:
                raise HTTPException(408, f"the body did not come within {self._seconds:g} s") from None
        return self._read

    async def _received(self) -> bytes:
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._most:
            self._too_large()
        parts: list[bytes] = []
        size = 0
        async for part in self.stream():
            size += len(part)
            if size > self._most:
                self._too_large()
            parts.append(part)
        return b"".join(parts)

    def _too_large(self) -> NoReturn:
        raise HTTPException(413, f"a request has {self._most:,} bytes at most: send less at once")

    async def json(self) -> Any:
        """The body as JSON."""
        return await off_the_loop(parse, await self.body())


async def off_the_loop(read: Callable[[bytes], T], body: bytes) -> T:
    """What `read` makes of the body, in a thread where it is large."""
    return await asyncio.to_thread(read, body) if len(body) > _LARGE else read(body)


def parse(body: bytes) -> Any:
    """The body as JSON. Raises HTTPException with status 400."""
    try:
        return _value(body.decode())
    except UnicodeDecodeError:
        _refuse("the body is not UTF-8")
    except RecursionError:
        _refuse("the body nests too many objects or lists")
    except ValueError as error:
        _refuse(f"the body is no JSON: {_said(error)}")


def parse_lines(body: bytes) -> list[Any]:
    """The body as JSON Lines; empty lines are left out. Raises HTTPException with status 400."""
    return list(_lines(body))


def _lines(body: bytes) -> Iterator[Any]:
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield parse(line)
        except HTTPException as error:
            raise HTTPException(error.status_code, f"line {number}: {error.detail}") from None


def _value(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    # Only an escape can bring one in, since the body is UTF-8.
    return _without_surrogates(value) if "\\u" in text else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _said(error: ValueError) -> str:
    # The place only: the message of a decoder may quote what was sent, and so may that of a number that is too long.
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error) if "twice" in str(error) or "number of JSON" in str(error) else "a number is too long"


def _refuse(why: str) -> NoReturn:
    raise HTTPException(400, f"{why}: send a JSON document, or JSON Lines as application/x-ndjson")
