"""Memories in the order of their times."""

from __future__ import annotations

from uuid import UUID

from afterrun.models import MemoryRecord
from afterrun.store.base import Queries


class TimelineQueries(Queries):
    """The queries of `timeline.sql`."""

    def timeline(self, anchor: UUID, *, before: int, after: int, in_session: bool) -> list[MemoryRecord]:
        """The anchor in whatever state, with up to so many active memories on each side of it, oldest first.

        They are of its project and collection, and with `in_session` of its session.
        """
        return self.records(MemoryRecord, "timeline", anchor=anchor, before=before, after=after, in_session=in_session)
