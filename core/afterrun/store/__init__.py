"""The only user of the named queries: one method a query, on a connection whose transaction the caller holds.

Methods take and return records of `models`; what they mean to each other is the business of `lineage` and the verbs.
"""

from __future__ import annotations

from afterrun.store.consolidations import Claim, ConsolidationQueries, members_hash
from afterrun.store.memories import MemoryQueries, SearchFilter, Totals, Vector, content_hash
from afterrun.store.upkeep import DeadLetter, UpkeepQueries

__all__ = ["Claim", "DeadLetter", "SearchFilter", "Store", "Totals", "Vector", "content_hash", "members_hash"]


class Store(MemoryQueries, UpkeepQueries, ConsolidationQueries):
    """All named queries as methods on one connection."""
