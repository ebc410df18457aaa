"""Parts of sessions that were read for facts."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from afterrun.store.base import Queries


class SessionQueries(Queries):
    """The queries of `sessions.sql`."""

    def read_windows(self, digests: Sequence[bytes]) -> dict[bytes, list[UUID]]:
        """Those of these parts that were read, with the memories that came of them."""
        return {bytes(row[0]): row[1] for row in self.run("read_windows", digests=list(digests))}

    def put_window(
        self, digest: bytes, memories: Sequence[UUID], *, project: str, session: str | None, extractor: str
    ) -> None:
        """Record that a part was read, and what came of it."""
        self.run(
            "put_window",
            digest=digest,
            project=project,
            session=session,
            extractor=extractor,
            memories=list(memories),
        )
