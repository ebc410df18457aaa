"""The tools that read: four searches by collection, and the three layers index, timeline and whole memories."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from mcp.server.mcpserver.exceptions import ToolError

from afterrun.errors import NotFoundError
from afterrun.serve.mcp.answers import Around, Hits, Index, Line, Moment, Records
from afterrun.serve.mcp.arguments import (
    Anchor,
    AnchorQuery,
    Collection,
    Collections,
    Count,
    Ids,
    InSession,
    MinResults,
    OnlyProject,
    Place,
    Project,
    Query,
    Since,
    SourceTypes,
    TokenBudget,
    TopK,
    Until,
)
from afterrun.serve.mcp.desk import Asked, Desk

if TYPE_CHECKING:
    from afterrun.client import GuardedMemory


class Reading:
    """The reading tools at a desk. A method's docstring is what a model reads when it chooses."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def search_codebase(self, asked: Asked, query: Query, top_k: TopK = 8, project: Project = None) -> Hits:
        """Find code by what it does: functions and classes of the indexed repositories, with path, symbol and lines.

        Use it for "where is … done?" and "is there a function that …?". Use grep for an exact name in the files at
        hand, and search_memory for why the code is as it is. Gives hits best first, each cut to about 400 tokens.
        """
        return await self._search(asked, "codebase", query, top_k, project)

    async def search_memory(self, asked: Asked, query: Query, top_k: TopK = 8, project: Project = None) -> Hits:
        """Find what earlier runs and sessions did, decided and learned: run summaries, decisions, bug fixes, facts.

        Use it before you start a task, and when you wonder why something is as it is or whether it was tried. For a
        text that fills a token budget use memory_recall; for a cheap overview memory_index. Gives hits best first,
        each cut to about 400 tokens.
        """
        return await self._search(asked, "memory", query, top_k, project)

    async def search_docs(self, asked: Asked, query: Query, top_k: TopK = 8, project: Project = None) -> Hits:
        """Find passages of the indexed documentation: Markdown, reStructuredText, HTML and text files, and web pages.

        Use it for how something is meant to be used or set up. For binding rules use search_standards. Gives passages
        best first, with their source in the metadata, each cut to about 400 tokens.
        """
        return await self._search(asked, "docs", query, top_k, project)

    async def search_standards(self, asked: Asked, query: Query, top_k: TopK = 8, project: Project = None) -> Hits:
        """Find the rules that apply here: coding standards, conventions and policies.

        Use it before you write or review code, with the topic as query ("error handling", "naming of tests"). Gives
        passages best first, each cut to about 400 tokens.
        """
        return await self._search(asked, "standards", query, top_k, project)

    async def memory_recall(
        self,
        asked: Asked,
        query: Query,
        project: Project = None,
        only_project: OnlyProject = False,
        collections: Collections = None,
        source_types: SourceTypes = None,
        since: Since = None,
        until: Until = None,
        token_budget: TokenBudget = 2000,
        min_results: MinResults = 5,
    ) -> Hits:
        """Recall what is worth knowing for a task, best first, packed into a token budget; repeats are left out.

        The tool to begin with: one call at the start of a task, with the task as query, gives context from all
        collections. Contents that are longer than their share of the budget are cut (`truncated`); memory_get has the
        whole. To look for one thing use a search_ tool.
        """

        def recalled(memory: GuardedMemory) -> Hits:
            found = memory.recall(
                query,
                project=project,
                only_project=only_project,
                collections=collections,
                source_types=source_types,
                since=since,
                until=until,
                token_budget=token_budget,
                min_results=min_results,
            )
            return Hits.of(found.hits)

        return await self._desk.do(asked, recalled)

    async def memory_search(
        self,
        asked: Asked,
        query: Query,
        limit: TopK = 10,
        project: Project = None,
        only_project: OnlyProject = False,
        collections: Collections = None,
        source_types: SourceTypes = None,
        since: Since = None,
        until: Until = None,
    ) -> Hits:
        """Search all collections with filters: by project, type and time. Nothing but real matches is returned.

        Use it for "all decisions since March" or "bug fixes of this project only": an empty query lists the newest
        that pass the filters. Gives hits best first with their scores, each cut to about 400 tokens.
        """

        def searched(memory: GuardedMemory) -> Hits:
            found = memory.search(
                query,
                project=project,
                only_project=only_project,
                collections=collections,
                source_types=source_types,
                since=since,
                until=until,
                limit=limit,
                min_results=0,
            )
            return Hits.cut(found, memory.memory.chunker)

        return await self._desk.do(asked, searched)

    async def memory_index(
        self,
        asked: Asked,
        query: Query,
        limit: TopK = 20,
        project: Project = None,
        only_project: OnlyProject = False,
        collections: Collections = None,
        source_types: SourceTypes = None,
        since: Since = None,
        until: Until = None,
    ) -> Index:
        """Layer 1 of 3, the cheapest look: one line a memory with its id, project, type, day and cost in tokens.

        Use it when you do not know yet what you need. Then memory_timeline shows what happened around one of the hits
        (layer 2), and memory_get gives the chosen ones in full (layer 3).
        """

        def indexed(memory: GuardedMemory) -> Index:
            found = memory.search(
                query,
                project=project,
                only_project=only_project,
                collections=collections,
                source_types=source_types,
                since=since,
                until=until,
                limit=limit,
                min_results=0,
            )
            return Index(hits=[Line.of(hit, memory.memory.chunker) for hit in found])

        return await self._desk.do(asked, indexed)

    async def memory_timeline(
        self,
        asked: Asked,
        anchor: Anchor = None,
        query: AnchorQuery = None,
        before: Count = 5,
        after: Count = 5,
        in_session: InSession = False,
        project: Project = None,
        collection: Place = "memory",
    ) -> Around:
        """Layer 2 of 3: what happened around a memory, oldest first, one line each.

        Give `anchor` (an id), or `query`, whose best hit becomes the anchor; `project` and `collection` belong to the
        query. Shows the memories before and after it in its project, or in its session with `in_session`. The anchor
        is always among them; one that was merged since is replaced by its successor, and `note` says so.
        """
        if (anchor is None) == (query is None):
            raise ToolError("give either anchor, a memory's id, or query")

        def drawn(memory: GuardedMemory) -> Around:
            start = anchor or _best(memory, query or "", project, collection)
            return _around(memory, start, before, after, in_session)

        return await self._desk.do(asked, drawn)

    async def memory_get(self, asked: Asked, ids: Ids) -> Records:
        """Layer 3 of 3: whole memories by their ids, 1 to 100, in whatever state, with session, category and metadata.

        Use it for the few that memory_index, memory_timeline or a search showed to matter. Ids that no memory has come
        back in `unknown`. Of very long ones only the beginning comes (`truncated`).
        """
        return await self._desk.do(asked, lambda memory: _records(memory, ids))

    async def _search(self, asked: Asked, collection: Collection, query: str, top_k: int, project: str | None) -> Hits:
        def searched(memory: GuardedMemory) -> Hits:
            found = memory.search(query, project=project, collections=[collection], limit=top_k)
            return Hits.cut(found, memory.memory.chunker)

        return await self._desk.do(asked, searched)


def _best(memory: GuardedMemory, query: str, project: str | None, collection: Collection) -> UUID:
    found = memory.search(query, project=project, collections=[collection], limit=1, min_results=0)
    if not found:
        raise NotFoundError(f"nothing in {collection} matches the query: there is no timeline to show")
    return found[0].id


def _around(memory: GuardedMemory, start: UUID, before: int, after: int, in_session: bool) -> Around:
    line = memory.timeline(start, before=before, after=after, in_session=in_session)
    center = next(one for one in line.memories if one.id == line.anchor)
    moved = f"memory {line.asked} was superseded: {line.anchor} took its place and is the anchor here"
    return Around(
        anchor=line.anchor,
        project=center.project,
        collection=center.collection,
        moments=[Moment.of(one, line.anchor, memory.memory.chunker) for one in line.memories],
        note=None if line.anchor == line.asked else moved,
    )


def _records(memory: GuardedMemory, ids: list[UUID]) -> Records:
    found = memory.find(*ids)
    if not found:
        raise NotFoundError(f"no memory has the id {', '.join(sorted(map(str, set(ids))))}")
    return Records.of(found, ids)
