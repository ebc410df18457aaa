"""docs/mcp.md and the README tell what the MCP server has: every tool with its arguments, and setups that are JSON."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from afterrun.serve.cli.mcp import DEFAULT_PORT
from afterrun.serve.mcp import Calls, make_server, owner

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def schemas() -> dict[str, dict[str, Any]]:
    tools = asyncio.run(make_server(Calls(), owner).list_tools())
    return {tool.name: tool.input_schema for tool in tools}


def written(name: str, schema: dict[str, Any]) -> str:
    """An argument as the page writes it, with its default if that is not none."""
    default = schema.get("default")
    return name if default is None else f"{name}={default if isinstance(default, str) else json.dumps(default)}"


def test_every_tool_stands_in_the_page_with_its_arguments_and_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\| [^|]+ \|$", PAGE, re.MULTILINE)
    documented = {name: re.findall(r"`([^`]+)`", arguments) for name, arguments in rows}
    assert documented == {
        name: [written(argument, of) for argument, of in schema["properties"].items()]
        for name, schema in schemas().items()
    }


def test_the_tools_that_write_stand_beside_their_scope() -> None:
    (row,) = re.findall(r"^\| `write` \| (.*) \|$", PAGE, re.MULTILINE)
    tools = asyncio.run(make_server(Calls(), owner).list_tools())
    writing = {tool.name for tool in tools if tool.annotations and not tool.annotations.read_only_hint}
    assert set(re.findall(r"`(\w+)`", row)) == writing


@pytest.mark.parametrize("page", [PAGE, README])
def test_the_setups_are_json_that_starts_this_server(page: str) -> None:
    setups = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    assert setups
    for setup in setups:
        server = setup["mcpServers"]["afterrun"]
        if "url" in server:
            assert server["url"] == f"http://127.0.0.1:{DEFAULT_PORT}/mcp"
        else:
            assert server["command"].endswith("afterrun")
            assert server["args"] == ["mcp"]
    assert "claude mcp add afterrun -- afterrun mcp" in page
    assert "~/.cursor/mcp.json" in page
