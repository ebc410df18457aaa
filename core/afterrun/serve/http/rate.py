"""How often a key may come: a token bucket each, in this process.

Several servers behind one address count each for itself, which bounds a key to their number times its rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

MOST_KEPT: Final = 10_000
"""Keys whose bucket is kept: of more, those that are full again are dropped."""


class RateLimit:
    """Lets `burst` requests of a key through at once, and `rate` a second in the long run; with rate 0 all of them."""

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, key: str) -> int:
        """0 where the request may pass, else after how many seconds the key may come again."""
        if self._rate <= 0:
            return 0
        now = self._clock()
        tokens, since = self._buckets.get(key, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        if tokens < 1:
            return max(1, math.ceil((1 - tokens) / self._rate))
        self._buckets[key] = (tokens - 1, now)
        if len(self._buckets) > MOST_KEPT:
            self._drop_full(now)
        return 0

    def _drop_full(self, now: float) -> None:
        refill = self._burst / self._rate
        self._buckets = {key: (tokens, at) for key, (tokens, at) in self._buckets.items() if now - at < refill}
