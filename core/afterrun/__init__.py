"""Afterrun: long-term memory for AI pipelines.

The public names load on first use, so that `from afterrun import finish` costs a host program next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterrun.client import AsyncMemory, Memory, RepoIndexer
    from afterrun.hooks import finish
    from afterrun.runs import RunStore

__all__ = ["AsyncMemory", "Memory", "RepoIndexer", "RunStore", "finish"]

_HOMES = {
    "AsyncMemory": "afterrun.client",
    "Memory": "afterrun.client",
    "RepoIndexer": "afterrun.client",
    "RunStore": "afterrun.runs",
    "finish": "afterrun.hooks",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'afterrun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
