"""An agent's session with the real program on the real stack, with a restart of all of it in the middle."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mcp import Client
from mcp_clients import call, program, refused, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="afterrun-mcp-"))
    yield path
    afterrun(path, "down")
    shutil.rmtree(path, ignore_errors=True)


def afterrun(home: Path, *arguments: str) -> None:
    foreign = ("AFTERRUN_", "DATABASE_", "REDIS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    command = [sys.executable, "-m", "afterrun.serve.cli", *arguments]
    subprocess.run(command, env=kept | {"AFTERRUN_HOME": str(home)}, check=True, capture_output=True, timeout=300)


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "mcp" in child.cmdline()]


async def found_by_meaning(client: Client, query: str) -> dict[str, object]:
    """The best hit once the workers have embedded everything."""
    async with asyncio.timeout(240):
        while (await call(client, "memory_status"))["waiting_to_be_embedded"]:
            await asyncio.sleep(0.2)
    best: dict[str, object] = (await call(client, "search_memory", query=query, top_k=1))["hits"][0]
    return best


def test_a_session_outlives_the_stack_and_never_loads_a_model(home: Path) -> None:
    async def session() -> None:
        async with Client(program(home)) as client:
            assert "run `afterrun up`" in await refused(client, "search_memory", query="x")
            await asyncio.to_thread(afterrun, home, "up", "--detach")
            for text in ("Invoices are kept in Postgres.", "The cat sleeps on the sofa.", "We deploy on Tuesdays."):
                await call(client, "memory_remember", content=text, project="shop")
            best = await found_by_meaning(client, "in which database do we store bills?")
            assert best["content"] == "Invoices are kept in Postgres."
            await asyncio.to_thread(afterrun, home, "down")
            assert "run `afterrun up`" in await refused(client, "memory_recall", query="bills")
            await asyncio.to_thread(afterrun, home, "up", "--detach")
            assert (await found_by_meaning(client, "a pet that rests"))["content"] == "The cat sleeps on the sofa."
            (server,) = servers()
            loaded = {Path(mapped.path).name for mapped in server.memory_maps()}
            assert not [name for name in loaded if name.startswith(("libtorch", "libopenvino"))]

    run(session(), seconds=500)
