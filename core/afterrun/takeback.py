"""A person's no: a cluster that must not be merged, and merges that are taken back."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Final
from uuid import UUID

from afterrun import lineage
from afterrun.db import Connection, Database
from afterrun.errors import ConflictError, NotFoundError
from afterrun.models import Cluster
from afterrun.store import Store

log = logging.getLogger(__name__)

REJECTED: Final = "rejected by a person"


def reject(database: Database, consolidation: UUID) -> Cluster:
    """Record that a person does not want this cluster merged: it is not judged, and not proposed again.

    Raises:
        NotFoundError: there is no such consolidation.
        ConflictError: it does not wait any more.
    """
    with database.transaction() as connection:
        store = Store(connection)
        cluster = store.lock_consolidation(consolidation)
        if cluster is None:
            raise NotFoundError(f"no consolidation has the id {consolidation}: see `afterrun consolidate --list`")
        if cluster.state != "waiting":
            raise ConflictError(
                f"consolidation {consolidation} is {cluster.state}: only one that waits can be rejected"
            )
        store.set_consolidation_state(consolidation, "rejected", REJECTED)
        return replace(cluster, state="rejected", reason=REJECTED)


def undo(database: Database, consolidation: UUID) -> Cluster:
    """Take a merge back; see `lineage.undo`."""
    return database.settled(lambda connection: lineage.undo(connection, consolidation))


def undo_since(database: Database, since: datetime) -> list[Cluster]:
    """Take back every merge since `since`, newest first, in one transaction; what was forgotten since stays so."""
    return database.settled(lambda connection: _undo_since(connection, since))


def _undo_since(connection: Connection, since: datetime) -> list[Cluster]:
    merged = Store(connection).consolidations(states=["merged"], limit=1_000_000)
    undone: list[Cluster] = []
    for cluster in sorted(merged, key=lambda cluster: cluster.updated_at, reverse=True):
        if cluster.updated_at < since:
            break
        try:
            undone.append(lineage.undo(connection, cluster.id))
        except ConflictError as error:
            log.info("consolidation %s stays as it is: %s", cluster.id, error)
    return undone
