"""What a server may take at most. Where it ends, a request is refused at once with when to come again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one server process.

    `threads` work at the same time, each with a database connection, while at most `waiting` requests wait for one of
    them; `seconds` bounds a request from its acceptance on. `rate` are the requests a second of one key (0: no bound),
    of which a `burst` may come at once. `body` is the largest request in bytes. `pollers` requests may wait for an
    embedding at the same time, each for `poll_seconds` at most; they hold neither a thread nor a connection.
    """

    threads: int = 8
    waiting: int = 128
    seconds: float = 60.0
    rate: float = 100.0
    burst: int = 200
    body: int = 2 * 1024 * 1024
    pollers: int = 256
    poll_seconds: float = 60.0
    model_seconds: float = 10.0
    """How long a question waits for the embedding model to be loaded."""
