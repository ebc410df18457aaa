"""The tools that write or look after the memory: remember, forget, summarize a session, status."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from afterrun.models import GLOBAL_PROJECT
from afterrun.serve.mcp.answers import Forgotten, Health, Noted, SessionFacts
from afterrun.serve.mcp.arguments import (
    Category,
    CreatedAt,
    Ids,
    Importance,
    Metadata,
    Note,
    Owner,
    Place,
    Session,
    SourceType,
    Transcript,
)
from afterrun.serve.mcp.desk import Asked, Desk, progress

if TYPE_CHECKING:
    from afterrun.client import GuardedMemory


class Writing:
    """The writing tools at a desk. A method's docstring is what a model reads when it chooses."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def memory_remember(
        self,
        asked: Asked,
        content: Note,
        project: Owner = GLOBAL_PROJECT,
        source_type: SourceType = "fact",
        importance: Importance = 0.5,
        category: Category = None,
        session: Session = None,
        collection: Place = "memory",
        created_at: CreatedAt = None,
        metadata: Metadata = None,
    ) -> Noted:
        """Remember one thing that later sessions should know: a decision with its reason, a preference, a lesson.

        Use it when something is decided or learnt, or somebody says "remember". One statement a call; for a whole
        transcript use memory_summarize_session. Do not store what stands in the code or will be stale tomorrow. Secrets
        and <private> blocks are removed. It is found by its words at once and by its meaning seconds later; the same
        again strengthens the memory that is there (`created` is false).
        """

        def noted(memory: GuardedMemory) -> Noted:
            written = memory.remember(
                content,
                project=project,
                source_type=source_type,
                importance=importance,
                category=category,
                session=session,
                collection=collection,
                created_at=created_at,
                metadata=metadata,
            )
            return Noted(id=written.id, created=written.created)

        return await self._desk.do(asked, noted)

    async def memory_forget(self, asked: Asked, ids: Ids) -> Forgotten:
        """Take memories out of recall for good, by their ids, 1 to 100. Nothing brings them back.

        Use it only when somebody asks for it or a memory is plainly wrong; look at it with memory_get first. What is
        merely outdated need not be forgotten: remember what holds now. An unknown id is an error, and then none is
        forgotten.
        """
        return await self._desk.do(asked, lambda memory: _forgotten(memory, ids))

    async def memory_summarize_session(
        self,
        asked: Asked,
        text: Transcript,
        project: Owner = GLOBAL_PROJECT,
        session: Session = None,
        created_at: CreatedAt = None,
    ) -> SessionFacts:
        """Read a session's transcript and remember its facts, each as a memory of its own.

        Use it at the end of a session. Claude Haiku reads where the server has a key, else rules pick sentences. It may
        take minutes and tells its progress. The same text again costs nothing; where `stopped` says why a part was not
        read, the same call goes on from there.
        """
        report = progress(asked)

        def summarized(memory: GuardedMemory) -> SessionFacts:
            done = memory.summarize_session(
                text, project=project, session=session, created_at=created_at, on_progress=report
            )
            return SessionFacts.of(done)

        return await self._desk.do(asked, summarized, slow=True)

    async def memory_status(self, asked: Asked) -> Health:
        """How the memory is: what it holds, what waits to be embedded and since when, what failed.

        Use it when a memory that should be there is not found, or when somebody asks whether all works. It tells
        nothing about contents.
        """
        return await self._desk.do(asked, lambda memory: Health.of(memory.status()))


def _forgotten(memory: GuardedMemory, ids: list[UUID]) -> Forgotten:
    forgotten = memory.forget(*ids)
    return Forgotten(forgotten=forgotten, before=[one for one in dict.fromkeys(ids) if one not in forgotten])
