"""How results and errors become answers: every error is `{"error": {"type", "message", "details"}}`.

Messages are ours and hold neither secrets nor memory text; what a client sent is never repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from afterrun.errors import (
    AfterrunError,
    ConflictError,
    ContendedError,
    DatabaseUnavailableError,
    EmbeddingError,
    ForbiddenError,
    InputError,
    NotFoundError,
    RefusedError,
    SchemaError,
    UnauthenticatedError,
)
from afterrun.events import BadEventsError
from afterrun.serve.cli.output import as_json
from afterrun.serve.http.shapes import Problem
from afterrun.serve.http.workers import RETRY_SECONDS, OverloadedError

STATUS: Final[Mapping[type[AfterrunError], int]] = {
    UnauthenticatedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    InputError: 422,
    RefusedError: 422,
    OverloadedError: 503,
    DatabaseUnavailableError: 503,
    SchemaError: 503,
    EmbeddingError: 503,
}
"""The status of each kind of error; of any other it is 500."""

_NAMES: Final = {
    400: "MalformedError",
    404: "NotFoundError",
    405: "MethodError",
    408: "TimeoutError",
    413: "TooLargeError",
    415: "ContentTypeError",
    429: "RateError",
}
_WHAT_TO_DO: Final = {
    404: "there is no such route: see /docs",
    405: "this route has other methods: see /docs",
}
_DATABASE_AWAY: Final = "the database cannot be reached just now: try again in a moment, nothing was changed"
MEANINGS: Final = {
    400: "The body is no JSON",
    401: "No valid API key",
    403: "The API key lacks the scope or the project",
    404: "Unknown id, or one that the API key may not see",
    408: "The body did not come in time",
    409: "The Idempotency-Key came with other events",
    413: "The request is too large",
    415: "The content type is not one of this route",
    422: "A field is missing, unknown or wrong; details say which",
    429: "Too many requests of this key; Retry-After says when to come again",
    500: "A fault of the server; its log says more",
    503: "The server is busy, or the database or the model away; Retry-After says when to come again",
}


logger = logging.getLogger(__name__)


class Json(JSONResponse):
    """JSON in ASCII: whatever a text holds, it can be sent."""

    def render(self, content: Any) -> bytes:
        """The bytes of the answer."""
        return json.dumps(as_json(content), allow_nan=False, separators=(",", ":")).encode()


def route_of(scope: Scope) -> str:
    """The path of the route that a request reached, without what was put in for its parameters."""
    return str(getattr(scope.get("route"), "path_format", "unknown"))


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These errors, and those that every route has, for the OpenAPI description."""
    every = (*statuses, 401, 403, 429, 500, 503)
    return {status: {"model": Problem, "description": MEANINGS[status]} for status in every}


def failure(
    status: int,
    kind: str,
    message: str,
    details: Iterable[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Json:
    """The answer to a request that failed."""
    listed = [{"where": where, "message": said} for where, said in details]
    retry = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    body = {"error": {"type": kind, "message": message, "details": listed}}
    return Json(body, status_code=status, headers={**retry, **challenge, **(headers or {})})


def of_error(error: AfterrunError) -> Json:
    """The answer to a request that ended with one of our errors.

    Where the database stands is for the log, not for whoever asks.
    """
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    details = [(str(place), why) for place, why in error.problems.items()] if isinstance(error, BadEventsError) else []
    away = isinstance(error, DatabaseUnavailableError) and not isinstance(error, ContendedError)
    message = _DATABASE_AWAY if away else str(error)
    return failure(status, type(error).__name__, message, details)


def wrong_fields(errors: Iterable[Any], where: str = "") -> list[tuple[str, str]]:
    """Pydantic's errors as places and messages, without what was sent."""
    return [(where + ".".join(map(str, error["loc"])), error["msg"]) for error in errors]


def answer_errors(app: FastAPI) -> None:
    """Have every error of the app answered in our shape."""

    @app.exception_handler(AfterrunError)
    async def ours(request: Request, error: AfterrunError) -> Response:
        answer = of_error(error)
        if answer.status_code >= 500:
            logger.warning("%s %s: %s", request.method, route_of(request.scope), error)
        return answer

    @app.exception_handler(RequestValidationError)
    async def fields(request: Request, error: RequestValidationError) -> Response:
        message = "the request's fields cannot be used: details say which"
        return failure(422, "InputError", message, wrong_fields(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        kind = _NAMES.get(error.status_code, "RequestError")
        message = _WHAT_TO_DO.get(error.status_code, str(error.detail))
        return failure(error.status_code, kind, message, headers=error.headers)
