"""API keys, of which the database knows only a hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from afterrun.store.base import Queries


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key without its secret. No `projects` are all; `reads_global`: also the project that all share."""

    id: str
    name: str
    scopes: Sequence[str]
    projects: Sequence[str]
    reads_global: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class StoredKey:
    """What is needed to check a key that is neither revoked nor expired."""

    secret_hash: bytes
    scopes: Sequence[str]
    projects: Sequence[str]
    reads_global: bool


class KeyQueries(Queries):
    """The queries of `keys.sql`."""

    def add_key(
        self,
        key: str,
        secret_hash: bytes,
        *,
        name: str,
        scopes: Sequence[str],
        projects: Sequence[str],
        reads_global: bool,
        expires_at: datetime | None,
    ) -> ApiKey:
        """Add a key."""
        return self.records(
            ApiKey,
            "add_key",
            id=key,
            secret_hash=secret_hash,
            label=name,
            scopes=list(scopes),
            projects=list(projects),
            reads_global=reads_global,
            expires_at=expires_at,
        )[0]

    def keys(self) -> list[ApiKey]:
        """Every key that was ever made, oldest first."""
        return self.records(ApiKey, "keys")

    def has_keys(self) -> bool:
        """Whether a key was ever made."""
        return bool(self.value("has_keys"))

    def usable_key(self, key: str) -> StoredKey | None:
        """The key with this id, unless it is unknown, revoked or expired."""
        found = self.records(StoredKey, "usable_key", id=key)
        return found[0] if found else None

    def key_used(self, key: str) -> None:
        """Record that the key is in use now, at most once a minute."""
        self.run("key_used", id=key)

    def revoke_key(self, key: str) -> ApiKey | None:
        """Make the key useless for good; None where there is none with this id."""
        found = self.records(ApiKey, "revoke_key", id=key)
        return found[0] if found else None
