"""The library: `Memory` for programs, `AsyncMemory` for asyncio; both the same methods."""

from afterrun.client.asynchronous import AsyncMemory
from afterrun.client.memory import Memory, as_ids

__all__ = ["AsyncMemory", "Memory", "as_ids"]
