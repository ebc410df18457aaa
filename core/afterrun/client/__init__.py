"""The library: `Memory` for programs, `AsyncMemory` for asyncio; both the same methods."""

from afterrun.client.arguments import as_ids
from afterrun.client.asynchronous import AsyncMemory
from afterrun.client.guarded import GuardedMemory
from afterrun.client.memory import Memory
from afterrun.client.repositories import RepoIndexed, RepoIndexer

__all__ = ["AsyncMemory", "GuardedMemory", "Memory", "RepoIndexed", "RepoIndexer", "as_ids"]
