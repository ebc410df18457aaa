"""Who asks: over stdio whoever started the server, over HTTP the holder of an API key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from afterrun.db import Database
    from afterrun.keys import Principal

Gate: TypeAlias = "Callable[[Database, Mapping[str, str]], Principal]"
"""From the database and a request's headers to who asks, as `serve.http.gate.Gate` tells it.

Raises UnauthenticatedError, ForbiddenError, DatabaseError.
"""


def owner(database: Database, headers: Mapping[str, str]) -> Principal:
    """The gate of stdio: who starts a program may do what the program may."""
    from afterrun.keys import EVERYBODY

    return EVERYBODY
