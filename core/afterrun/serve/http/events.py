"""The routes on events: one or many come in, and each receipt tells how far its event is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from afterrun.errors import InputError
from afterrun.events import MAX_EVENTS, MAX_KEY
from afterrun.models import NewMemory
from afterrun.serve.http.answers import Json, described, failure, wrong_fields
from afterrun.serve.http.body import JSON_LINES, off_the_loop, parse, parse_lines
from afterrun.serve.http.routing import Asks, GuardedRoute, Serves
from afterrun.serve.http.shapes import EventIn, EventOut, Receipts, as_note

router = APIRouter(prefix="/api/memory", route_class=GuardedRoute, tags=["events"])

_EVENT: Final = TypeAdapter(EventIn)
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/EventIn"},
                        {
                            "type": "array",
                            "items": {"$ref": "#/components/schemas/EventIn"},
                            "minItems": 1,
                            "maxItems": MAX_EVENTS,
                        },
                    ]
                }
            },
            JSON_LINES[0]: {"schema": {"type": "string", "description": "A JSON object of an event in each line."}},
        },
    }
}


class _BadBatchError(Exception):
    """Some events of a batch have wrong fields."""

    def __init__(self, details: list[tuple[str, str]]) -> None:
        self.details = details


@router.post(
    "/event",
    status_code=202,
    response_model=Receipts,
    responses=described(400, 408, 409, 413, 415, 422),
    openapi_extra=_BODY,
)
async def accept(
    request: Request,
    principal: Asks,
    service: Serves,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MAX_KEY, pattern="^[ -~]+$")] = None,
) -> Response:
    """Commit one event, a list of them, or JSON Lines; each is found by its words when the answer comes.

    All or none: where an event cannot be used, details say which by its place (from 0). The same request with the same
    Idempotency-Key gets the same receipts for seven days. Needs the scope write.
    """
    try:
        batch = await off_the_loop(_reader(request), await request.body())
    except _BadBatchError as error:
        message = "events have wrong fields, and none was accepted: details say which, by the place in the request"
        return failure(422, "BadEventsError", message, error.details)
    accepted = await service.do(principal, lambda memory: memory.accept(batch, idempotency_key=idempotency_key))
    if not accepted.replayed:
        service.measures.events.inc(len(batch))
        service.has_news()
    return Json(accepted, status_code=202)


@router.get("/event/{receipt:uuid}", response_model=EventOut, responses=described(404, 422))
async def state(
    receipt: UUID,
    principal: Asks,
    service: Serves,
    wait: Literal["embedded"] | None = None,
    timeout: Annotated[float, Query(ge=0, le=60)] = 10.0,
) -> Json:
    """How far an event is: `searchable`, `embedded` or `failed`.

    With `wait=embedded` the answer comes when it is embedded or failed, or after `timeout` seconds. Needs the scope
    read or write.
    """
    if wait is None:
        return Json(await service.do(principal, lambda memory: memory.event(receipt)))
    return Json(await service.embedded(principal, receipt, timeout))


def _reader(request: Request) -> Callable[[bytes], list[NewMemory]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return _from_lines if kind in JSON_LINES else _from_json


def _from_lines(body: bytes) -> list[NewMemory]:
    return _events(parse_lines(body))


def _from_json(body: bytes) -> list[NewMemory]:
    sent = parse(body)
    return _events(sent if isinstance(sent, list) else [sent])


def _events(sent: Sequence[Any]) -> list[NewMemory]:
    if not 1 <= len(sent) <= MAX_EVENTS:
        raise InputError(f"a request has {len(sent):,} events: send 1 to {MAX_EVENTS:,}")
    read: list[NewMemory] = []
    details: list[tuple[str, str]] = []
    for place, value in enumerate(sent):
        try:
            read.append(as_note(_EVENT.validate_python(value)))
        except ValidationError as error:
            details += wrong_fields(error.errors(include_input=False, include_url=False), f"{place}.")
        except InputError as error:
            details.append((f"{place}.created_at", str(error)))
    if details:
        raise _BadBatchError(details)
    return read
