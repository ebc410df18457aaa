"""docs/http.md names every route of the server and no other, with an example, and every status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from afterrun.serve.http import events, memories, probes
from afterrun.serve.http.answers import MEANINGS
from afterrun.serve.http.shapes import EventIn, RecallIn

PAGE: Final = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
ROUTES: Final[list[BaseRoute]] = [*events.router.routes, *memories.router.routes, *probes.router.routes]


def routes() -> set[str]:
    return {
        f"{method} {route.path_format}"
        for route in ROUTES
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def test_every_route_stands_in_the_page_and_no_other() -> None:
    assert set(re.findall(r"`((?:GET|POST|PUT|DELETE) [^`]+)`\]", PAGE)) == routes()
    assert len(routes()) == 11


def test_every_route_of_the_api_has_an_example() -> None:
    for route in routes():
        path = (
            re.escape(route.split(" ")[1])
            .replace(r"\{receipt\}", "[0-9a-f-]{36}")
            .replace(r"\{memory_id\}", "[0-9a-f-]{36}")
        )
        if "/api/" in route:
            assert re.search(rf"^curl '?localhost:8767{path}(?=[ ?\n])", PAGE, re.MULTILINE), route


def test_every_field_and_status_stands_in_the_page() -> None:
    for name in {*EventIn.model_fields, *RecallIn.model_fields}:
        assert f"`{name}`" in PAGE, name
    for status in MEANINGS:
        assert re.search(rf"^\| {status} \|", PAGE, re.MULTILINE), status
