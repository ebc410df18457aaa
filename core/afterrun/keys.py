"""API keys: who may come in over the network, and to which projects.

A key is `ark_<id>_<secret>`; of the secret only its SHA-256 is stored. It has 256 random bits, which nobody can guess,
however fast the hash is: the slow hashes for passwords would only make each request slow.

What a key may see, in one place: `Principal`. It reads and writes its projects, and reads the project `global`, which
is shared by all, unless it was made without; it writes there only where `global` is one of its projects. A key without
a list of projects has all of them. The scope `admin` includes `read` and `write`, but never other projects.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from afterrun.db import Database
from afterrun.errors import ForbiddenError, InputError, NotFoundError, UnauthenticatedError
from afterrun.limits import MAX_NAME
from afterrun.models import GLOBAL_PROJECT
from afterrun.redact import scrub
from afterrun.store import ApiKey, SearchFilter, Store

Scope = Literal["read", "write", "admin"]
SCOPES: Final = ("read", "write", "admin")

_TOKEN: Final = re.compile(r"ark_([0-9a-f]{12})_([0-9a-f]{64})")
_NO_HASH: Final = bytes(32)
"""Compared with the secret of an unknown key, so that an answer's time does not tell which ids exist."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who asks: an API key, or with `key_id` None whoever needs none. No `projects` are all of them."""

    key_id: str | None = None
    scopes: frozenset[str] = frozenset(SCOPES)
    projects: frozenset[str] = frozenset()
    reads_global: bool = True

    def may(self, scope: Scope) -> bool:
        """Whether this scope is there."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise ForbiddenError unless this scope is there."""
        if not self.may(scope):
            raise ForbiddenError(f"this API key has not the scope {scope}: use one made with `--scope {scope}`")

    @property
    def readable(self) -> tuple[str, ...] | None:
        """The projects that may be read; None: all."""
        if not self.projects:
            return None
        return tuple(sorted(self.projects | ({GLOBAL_PROJECT} if self.reads_global else set())))

    def may_read(self, project: str) -> bool:
        """Whether memories of this project may be seen."""
        return self.readable is None or project in self.readable

    def may_write(self, project: str) -> bool:
        """Whether memories of this project may be written and forgotten."""
        return not self.projects or project in self.projects

    def require_write(self, project: str) -> None:
        """Raise ForbiddenError unless this project may be written. Its name must be as it will be stored."""
        if not self.may_write(project):
            raise ForbiddenError(_outside(project, "writes to", self.projects))

    def narrowed(self, where: SearchFilter) -> SearchFilter:
        """A search that finds nothing outside the readable projects, whatever else it asks for.

        Raises ForbiddenError where it names a project that may not be read.
        """
        named = where.project
        if named is not None and not self.may_read(named):
            raise ForbiddenError(_outside(named, "reads", self.readable or ()))
        if self.readable is None or where.projects is None:
            return where if self.readable is None else replace(where, projects=self.readable)
        return replace(where, projects=tuple(name for name in where.projects if name in self.readable))


EVERYBODY: Final = Principal()
"""Who may do everything: the owner of the process, and every request while no key was ever made."""


def create(
    database: Database,
    name: str,
    *,
    scopes: Iterable[str] = ("read", "write"),
    projects: Iterable[str] = (),
    reads_global: bool = True,
    expires_at: datetime | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    random: Callable[[int], str] = secrets.token_hex,
) -> tuple[ApiKey, str]:
    """Make a key; the key and its token, which nobody can show again.

    Raises:
        InputError: a name, scope or project cannot be used, or the key would have expired already.
    """
    chosen = tuple(dict.fromkeys(scopes))
    if not chosen or not set(chosen) <= set(SCOPES):
        raise InputError(f"a key's scopes are some of {', '.join(SCOPES)}, not {', '.join(chosen) or 'none'}")
    if expires_at is not None and expires_at <= now():
        raise InputError(f"a key that expires at {expires_at.isoformat()} could never be used: name a later time")
    key, secret = random(6), random(32)
    with database.transaction() as connection:
        added = Store(connection).add_key(
            key,
            _hashed(secret),
            name=_name("a key's name", name),
            scopes=chosen,
            projects=sorted({_name("a project", project) for project in projects}),
            reads_global=reads_global,
            expires_at=expires_at,
        )
    return added, f"ark_{key}_{secret}"


def listed(database: Database) -> list[ApiKey]:
    """Every key that was ever made, oldest first."""
    with database.transaction() as connection:
        return Store(connection).keys()


def any_made(database: Database) -> bool:
    """Whether a key was ever made; a revoked one counts, so that revoking the last key opens nothing."""
    with database.transaction() as connection:
        return Store(connection).has_keys()


def revoke(database: Database, key: str) -> ApiKey:
    """Make a key useless for good, from the next request on. Raises NotFoundError."""
    with database.transaction() as connection:
        revoked = Store(connection).revoke_key(key)
    if revoked is None:
        raise NotFoundError("no API key has this id: `afterrun key list` shows the ids")
    return revoked


def check(database: Database, token: str) -> Principal:
    """Who comes with this token. Raises UnauthenticatedError where it is not that of a valid key."""
    parts = _TOKEN.fullmatch(token)
    if parts is None:
        raise UnauthenticatedError("this is no API key of Afterrun: send `Authorization: Bearer ark_…`")
    key, secret = parts.groups()
    with database.transaction() as connection:
        store = Store(connection)
        found = store.usable_key(key)
        if not hmac.compare_digest(_hashed(secret), bytes(found.secret_hash) if found else _NO_HASH) or found is None:
            raise UnauthenticatedError("the API key is unknown, revoked or expired: see `afterrun key list`")
        store.key_used(key)
    return Principal(
        key_id=key,
        scopes=frozenset(found.scopes),
        projects=frozenset(found.projects),
        reads_global=found.reads_global,
    )


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _name(what: str, value: str) -> str:
    # As `remember` stores a project's name: what is compared must be spelled alike.
    name = scrub(value).strip()
    if not name or len(name) > MAX_NAME:
        raise InputError(f"{what} must have 1 to {MAX_NAME} characters")
    return name


def _outside(project: str, does: str, projects: Iterable[str]) -> str:
    allowed = ", ".join(sorted(projects))
    return f"this API key {does} {allowed} only, not {project[:MAX_NAME]!r}: use another key or project"
