"""The probes at the root, which need no key and tell nothing of what is remembered: alive, ready, measures."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter
from starlette.responses import Response

from afterrun.serve.http.answers import Json
from afterrun.serve.http.routing import Serves
from afterrun.serve.http.shapes import Health

router = APIRouter(tags=["probes"])


@router.get("/healthz", response_model=Health)
async def healthz() -> Json:
    """Whether the process answers. It says nothing of the database: a restart would not mend that."""
    return Json({"status": "ok", "problems": []})


@router.get("/readyz", response_model=Health, responses={503: {"model": Health, "description": "Not ready"}})
async def readyz(service: Serves) -> Json:
    """Whether requests can be served: the database answers, has this version's schema, and the model is loaded."""
    problems = [problem for problem in (await service.database_problem(), service.not_ready) if problem]
    if problems:
        return Json({"status": "not ready", "problems": problems}, status_code=503, headers={"Retry-After": "1"})
    return Json({"status": "ok", "problems": []})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(service: Serves) -> Response:
    """Counters, latencies, and from the database the age of the oldest pending chunk, for Prometheus."""
    status = await service.status()
    service.measures.admitted.set(service.workers.admitted)
    text = service.measures.text(status, datetime.now(UTC))
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
