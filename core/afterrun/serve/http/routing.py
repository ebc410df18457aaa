"""What every route under `/api/memory/` does first: who asks, how often, and in which format."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from afterrun.keys import Principal
from afterrun.serve.http.body import JSON_LINES, StrictRequest
from afterrun.serve.http.service import Service


class GuardedRoute(APIRoute):
    """A route whose requests are let in one by one, and whose JSON is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, behind the gate."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await _let_in(request)
            if request.method == "POST":
                _check_content_type(request, lines=self.path_format.endswith("/event"))
            limits = service_of(request).limits
            return await handle(StrictRequest(request, most=limits.body, seconds=limits.seconds))

        return guarded


def service_of(request: Request) -> Service:
    """The service of the app that got this request."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def principal_of(request: Request) -> Principal:
    """Who sent this request."""
    principal = request.state.principal
    assert isinstance(principal, Principal)
    return principal


Serves = Annotated[Service, Depends(service_of)]
Asks = Annotated[Principal, Depends(principal_of)]


async def _let_in(request: Request) -> None:
    service = service_of(request)
    principal = await service.identify(request.headers)
    request.state.principal = principal
    if principal.key_id is not None and (seconds := service.rate.wait(principal.key_id)):
        message = f"this API key sent too many requests: come again in {seconds} s, and send events in batches"
        raise HTTPException(429, message, {"Retry-After": str(seconds)})


def _check_content_type(request: Request, *, lines: bool) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (lines and kind in JSON_LINES):
        more = ", or application/x-ndjson for JSON Lines" if lines else ""
        raise HTTPException(415, f"this route takes Content-Type: application/json{more}")
