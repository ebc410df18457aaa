"""The routes on memories: remember, recall, search, forget, status, and one memory by its id."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import UUID

from fastapi import APIRouter

from afterrun.care import ProjectStatus, Status
from afterrun.client import GuardedMemory
from afterrun.models import MemoryRecord, Recall, Remembered
from afterrun.serve.http.answers import Json, described
from afterrun.serve.http.routing import Asks, GuardedRoute, Serves
from afterrun.serve.http.shapes import REMEMBER_SECONDS, ForgetIn, Forgotten, Hits, RecallIn, RememberIn, SearchIn

router = APIRouter(prefix="/api/memory", route_class=GuardedRoute, tags=["memories"])

_BODY: Final = (400, 408, 413, 415, 422)


@router.post("/remember", response_model=Remembered, responses=described(*_BODY))
async def remember(asked: RememberIn, principal: Asks, service: Serves) -> Json:
    """Commit a note; it is found by its words when the answer comes. Needs the scope write."""
    fields = asked.fields()
    written = await service.do(principal, lambda memory: memory.remember(**fields))
    if asked.wait is None:
        return Json(written)
    event = await service.embedded(principal, written.id, min(asked.timeout, REMEMBER_SECONDS))
    return Json(replace(written, embedded=event.state == "embedded"))


@router.post("/recall", response_model=Recall, responses=described(*_BODY))
async def recall(asked: RecallIn, principal: Asks, service: Serves) -> Json:
    """What is worth knowing for a question, best first, packed into a token budget. Needs the scope read."""

    def work(memory: GuardedMemory) -> Json:
        return Json(memory.recall(asked.query, **asked.fields()))

    return await service.ask(principal, asked.query, work)


@router.post("/search", response_model=Hits, responses=described(*_BODY))
async def search(asked: SearchIn, principal: Asks, service: Serves) -> Json:
    """The raw list of hits with their scores, neither packed nor cut. Needs the scope read."""

    def work(memory: GuardedMemory) -> Json:
        return Json({"hits": memory.search(asked.query, **asked.fields())})

    return await service.ask(principal, asked.query, work)


@router.post("/forget", response_model=Forgotten, responses=described(*_BODY, 404))
async def forget(asked: ForgetIn, principal: Asks, service: Serves) -> Json:
    """Take memories out of recall for good; no source brings them back. Needs the scope write."""
    forgotten = await service.do(principal, lambda memory: memory.forget(*asked.ids))
    return Json({"forgotten": forgotten})


@router.get("/status", response_model=Status | ProjectStatus, responses=described())
async def status(principal: Asks, service: Serves) -> Json:
    """Counts, and since when the oldest chunk waits. Needs the scope read.

    A key with the scope admin and all projects sees queues, run stores, clusters and the language model's cost, too.
    """
    return Json(await service.do(principal, lambda memory: memory.status()))


@router.get("/{memory_id:uuid}", response_model=MemoryRecord, responses=described(404, 422))
async def get(memory_id: UUID, principal: Asks, service: Serves) -> Json:
    """One memory in full, in whatever state. Needs the scope read."""
    found = await service.do(principal, lambda memory: memory.get(memory_id))
    return Json(found[0])
