"""The only user of the named queries: one method a query, on a connection whose transaction the caller holds.

Methods take and return records of `models`; what they mean to each other is the business of `lineage` and the verbs.
"""

from __future__ import annotations

from afterrun.store.archive import ArchiveQueries
from afterrun.store.clusters import Candidate, ClusterQueries, Pieces, Proposal, Proposed
from afterrun.store.consolidations import Claim, ConsolidationQueries, WaitsFor, members_hash
from afterrun.store.copies import (
    ChunkCopy,
    ConsolidationCopy,
    CopyFilter,
    DeadLetterCopy,
    MemoryCopy,
    SourceFileCopy,
    SourceTypeCopy,
    SpendCopy,
    WindowCopy,
)
from afterrun.store.events import EventQueries, Progress
from afterrun.store.keys import ApiKey, KeyQueries
from afterrun.store.memories import MemoryQueries, SearchFilter, Totals, Vector, content_hash
from afterrun.store.sessions import SessionQueries
from afterrun.store.sources import HeldPiece, SourceFile, SourceQueries, moving_key
from afterrun.store.spend import SpendQueries, Work
from afterrun.store.timeline import TimelineQueries
from afterrun.store.upkeep import DeadLetter, UpkeepQueries

__all__ = [
    "ApiKey",
    "Candidate",
    "ChunkCopy",
    "Claim",
    "ConsolidationCopy",
    "CopyFilter",
    "DeadLetter",
    "DeadLetterCopy",
    "HeldPiece",
    "MemoryCopy",
    "Pieces",
    "Progress",
    "Proposal",
    "Proposed",
    "SearchFilter",
    "SourceFile",
    "SourceFileCopy",
    "SourceTypeCopy",
    "SpendCopy",
    "Store",
    "Totals",
    "Vector",
    "WaitsFor",
    "WindowCopy",
    "Work",
    "content_hash",
    "members_hash",
    "moving_key",
]


class Store(
    MemoryQueries,
    UpkeepQueries,
    ClusterQueries,
    ConsolidationQueries,
    SessionQueries,
    SpendQueries,
    KeyQueries,
    EventQueries,
    TimelineQueries,
    ArchiveQueries,
    SourceQueries,
):
    """All named queries as methods on one connection."""
