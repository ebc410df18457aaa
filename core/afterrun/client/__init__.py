"""The library: `Memory` for programs, `AsyncMemory` for asyncio; both the same methods."""

from afterrun.client.arguments import as_ids
from afterrun.client.asynchronous import AsyncMemory
from afterrun.client.memory import Memory

__all__ = ["AsyncMemory", "Memory", "as_ids"]
