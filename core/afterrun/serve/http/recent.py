"""A value that costs a query and may be some seconds old: whoever asks the probes in a loop costs nothing more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SECONDS: Final = 2.0


class Recent(Generic[T]):
    """Keeps what `read` gave for `seconds`; those who ask at the same time share one reading."""

    def __init__(
        self,
        read: Callable[[], Awaitable[T]],
        *,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: tuple[float, T] | None = None

    async def value(self) -> T:
        """The value, at most `seconds` old when it is given."""
        async with self._lock:
            if self._kept is None or self._clock() - self._kept[0] > self._seconds:
                value = await self._read()
                self._kept = self._clock(), value
            return self._kept[1]
