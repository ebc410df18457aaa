"""Where every tool call passes: who asks, within what they may do, and errors as words for a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from afterrun.errors import AfterrunError
from afterrun.serve.mcp.calls import Calls
from afterrun.serve.mcp.gate import Gate

if TYPE_CHECKING:
    from afterrun.client import GuardedMemory, Memory

Asked: TypeAlias = Context[Any, Any]
T = TypeVar("T")


class Desk:
    """Runs a tool's work on the memory as the one who asks may use it."""

    def __init__(self, calls: Calls, gate: Gate) -> None:
        self._calls = calls
        self._gate = gate

    async def do(self, asked: Asked, work: Callable[[GuardedMemory], T], *, slow: bool = False) -> T:
        """What `work` gives. Raises ToolError with the message of an Afterrun error; other errors are the server's."""
        headers = _headers(asked)

        def guarded(memory: Memory) -> T:
            from afterrun.client import GuardedMemory

            return work(GuardedMemory(memory, self._gate(memory.database, headers)))

        try:
            return await self._calls.run(guarded, slow=slow)
        except AfterrunError as error:
            raise ToolError(str(error)) from error


def progress(asked: Asked) -> Callable[[int, int], None]:
    """What a thread calls with how much is done of how much, so that a client sees it and keeps waiting."""
    loop = asyncio.get_running_loop()

    def report(done: int, parts: int) -> None:
        asyncio.run_coroutine_threadsafe(asked.report_progress(done, parts), loop)

    return report


def _headers(asked: Asked) -> Mapping[str, str]:
    request = asked.request_context.request
    return {} if request is None else request.headers
