"""Who may come in.

Before the first API key is made, whoever reaches the server owns it: it listens on this machine only, and refuses what
a web page could send to it under a name of its own (DNS rebinding), or across origins. From the first key on every
request needs one. A server that others can reach needs keys from the start.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from afterrun import keys
from afterrun.db import Database
from afterrun.errors import ForbiddenError, UnauthenticatedError
from afterrun.keys import EVERYBODY, Principal

_SCHEME: Final = "bearer "
_STAYS_OPEN: Final = 1.0
"""Seconds for which the answer holds that no key was made yet."""


class Gate:
    """Tells who asks. With `always`, a key is needed even if none was ever made."""

    def __init__(self, *, always: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._always = always
        self._clock = clock
        self._open_until = 0.0

    def __call__(self, database: Database, headers: Mapping[str, str]) -> Principal:
        """Who sends a request with these headers. Raises UnauthenticatedError, ForbiddenError, DatabaseError."""
        authorization = headers.get("authorization", "")
        if authorization[: len(_SCHEME)].lower() == _SCHEME:
            return keys.check(database, authorization[len(_SCHEME) :].strip())
        if authorization or self._needs_key(database):
            raise UnauthenticatedError("an API key is needed: send `Authorization: Bearer ark_…`")
        check_local(headers)
        return EVERYBODY

    def _needs_key(self, database: Database) -> bool:
        if self._always or self._clock() < self._open_until:
            return self._always
        if keys.any_made(database):
            self._always = True  # A key that was made is never unmade.
        else:
            self._open_until = self._clock() + _STAYS_OPEN
        return self._always


def check_local(headers: Mapping[str, str]) -> None:
    """Raise ForbiddenError unless the request names this machine, and comes from no page of another one."""
    if not is_loopback(_host(f"//{headers.get('host', '')}")):
        raise ForbiddenError("without API keys only requests to localhost are answered: run `afterrun key create`")
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_host(origin)):
        raise ForbiddenError("without API keys no page of another origin is answered: run `afterrun key create`")


def is_loopback(host: str) -> bool:
    """Whether this address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
