"""The application: the routes, the frame around each request, the OpenAPI description."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from afterrun.serve.http import events, memories, probes
from afterrun.serve.http.answers import answer_errors, failure, route_of
from afterrun.serve.http.service import Service
from afterrun.serve.http.shapes import EventIn

logger = logging.getLogger(__name__)

_ABOUT = "Long-term memory for AI pipelines. Send an API key as `Authorization: Bearer ark_…`, see `afterrun key`."


class App(FastAPI):
    """A FastAPI application whose description has also what is read by hand: the body of events, and API keys."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description."""
        if self.openapi_schema is None:
            self.openapi_schema = _described(super().openapi())
        return self.openapi_schema


def create_app(service: Service) -> FastAPI:
    """The ASGI application of one service; its life is the service's."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = App(title="Afterrun", version=version("afterrun"), description=_ABOUT, redoc_url=None, lifespan=life)
    app.state.service = service
    for router in (events.router, memories.router, probes.router):
        app.include_router(router)
    answer_errors(app)
    app.add_middleware(Frame, service=service)
    return app


class Frame:
    """Counts and logs each request by its route, and turns a fault of ours into a 500 that tells nothing."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception as error:  # noqa: BLE001 - the last frame: it is logged, and the client gets a 500
            _log_fault(error)
            if not status:
                await failure(500, "ServerError", "the server failed: its log says more")(scope, receive, sent)
        finally:
            self._note(scope, status, time.monotonic() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = route_of(scope)
        self._service.measures.answered(scope["method"], route, status, seconds)
        key = getattr(scope.get("state", {}).get("principal"), "key_id", None) or "-"
        logger.info("%s %s %d %.1f ms key=%s", scope["method"], route, status, seconds * 1000, key)


def _log_fault(error: Exception) -> None:
    # The frames and the kind of error: its message may quote what was sent.
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("a request failed with %s\n%s", type(error).__name__, frames)


def _described(found: dict[str, Any]) -> dict[str, Any]:
    parts = found["components"]
    parts["schemas"]["EventIn"] = EventIn.model_json_schema(ref_template="#/components/schemas/{model}")
    parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in found["paths"].items():
        for operation in operations.values():
            if path.startswith("/api/"):
                operation["security"] = [{"key": []}, {}]
    return found
