"""Writing memories with their chunks, merging them and undoing a merge, on a connection that the caller holds.

What several verbs share. A merge deletes nothing: it adds a canonical memory and points its originals to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from afterrun.chunking import Chunker
from afterrun.db import Connection
from afterrun.errors import ConflictError, ModelMismatchError, NotFoundError
from afterrun.models import Cluster, MemoryRecord, ModelSpec, NewMemory, Remembered, Verdict
from afterrun.pieces import pieces_of
from afterrun.store import Store, content_hash

MAX_GENERATIONS: Final = 3
"""How often the result of a merge may itself be merged: chains of merges drift into memories of many topics."""


def check_model(store: Store, spec: ModelSpec) -> None:
    """Raise ModelMismatchError unless `spec` is the embedding model of this database."""
    current = store.current_model()
    if current != (spec.id, spec.dimension):
        held = f"{current[0]} ({current[1]} dimensions)" if current else "no model"
        raise ModelMismatchError(
            f"the database holds vectors of {held}, this process uses {spec.id} ({spec.dimension} dimensions):"
            " set AFTERRUN_MODEL to the database's model, or run `afterrun migrate` on a new database"
        )


def write_memories(connection: Connection, memories: Sequence[NewMemory], chunker: Chunker) -> list[Remembered | None]:
    """Write memories and their pending chunks; None where a sourced memory is already there as it is.

    A note that is already there is reinforced; a sourced memory with a new text loses its old chunks.
    """
    store = Store(connection)
    check_model(store, chunker.spec)
    written = store.put_memories(memories)
    pieces = {
        row[0]: pieces_of(new, chunker)
        for row, new in zip(written, memories, strict=True)
        if row is not None and row[1]
    }
    store.drop_chunks(list(pieces))
    store.add_chunks(list(pieces.items()), chunker.spec.id)
    return [
        row and Remembered(id=row[0], created=row[1], chunks=len(pieces.get(row[0], ())), embedded=False)
        for row in written
    ]


def merge(
    connection: Connection,
    cluster: UUID,
    members: Sequence[MemoryRecord],
    verdict: Verdict,
    wording: str | None,
    chunker: Chunker,
    *,
    now: datetime | None = None,
) -> UUID | None:
    """Carry out a verdict on locked, active members; the id of the canonical memory, if one was written.

    `wording` is the text of the canonical memory of `verdict.same`; without one nothing is merged. Members that a newer
    one contradicts are superseded by it, or by the canonical memory that took it in.
    """
    store = Store(connection)
    canonical: UUID | None = None
    same = [member for member in members if member.id in verdict.same]
    if wording and len(same) > 1:
        new = _canonical(store, cluster, same, wording, now or datetime.now(UTC))
        written = write_memories(connection, [new], chunker)[0]
        if written is None:
            raise ConflictError(f"cluster {cluster} was merged before; its canonical memory is already there")
        canonical = written.id
        store.supersede([member.id for member in same], canonical)
        store.inherit_seen([member.id for member in same], canonical)
    for older, newer in verdict.superseded.items():
        if older not in verdict.same:
            store.supersede([older], canonical if canonical and newer in verdict.same else newer)
    return canonical


def undo(connection: Connection, consolidation: UUID) -> Cluster:
    """Take a merge back: its originals are active again, its canonical memory becomes a tombstone.

    Raises:
        NotFoundError: there is no such consolidation.
        ConflictError: it is not merged, or its canonical memory was forgotten, or merged again, or has taken the place
            of others since (undo that merge first).
    """
    store = Store(connection)
    cluster = _locked(store, consolidation)
    if cluster.state != "merged":
        raise ConflictError(f"consolidation {consolidation} is {cluster.state}, not merged: there is nothing to undo")
    superseded = store.merged_away(consolidation)
    if cluster.canonical is not None:
        if objection := _objection(store, cluster.canonical, superseded):
            raise ConflictError(f"the memory that came of {consolidation} {objection}")
        store.archive([cluster.canonical])
    replaced_by = [cluster.canonical] if cluster.canonical else []
    store.restore(superseded, [*replaced_by, *cluster.members])
    store.set_consolidation_state(consolidation, "undone")
    return replace(cluster, state="undone")


def _locked(store: Store, consolidation: UUID) -> Cluster:
    # The memories come first, as for whoever carries a verdict out: otherwise the two could wait for each other.
    for found in store.consolidations(ids=[consolidation]):
        store.lock_memories([*found.members, *([found.canonical] if found.canonical else [])])
    cluster = store.lock_consolidation(consolidation)
    if cluster is None:
        raise NotFoundError(f"no consolidation has the id {consolidation}: see `afterrun consolidate --list`")
    return cluster


def _objection(store: Store, canonical: UUID, superseded: Sequence[UUID]) -> str | None:
    """Why a canonical memory cannot give way to what it was made of, if it cannot."""
    for memory in store.lock_memories([canonical]):
        if memory.archived:
            return "was forgotten, and what it was made of with it: there is nothing to undo"
        if memory.superseded_by is not None:
            return f"was merged again into {memory.superseded_by}: undo that merge first"
    if {memory.id for memory in store.superseded_by(canonical)} - set(superseded):
        return "has taken the place of others since, which would be lost: undo that merge first, see `afterrun history`"
    return None


def generation(memory: MemoryRecord) -> int:
    """How many merges lie behind a memory: 0 for an original."""
    return generations(memory.metadata.get("generation"))


def generations(value: object) -> int:
    """The same, of what stands in a memory's metadata under `generation`."""
    return value if isinstance(value, int) else 0


def _canonical(store: Store, cluster: UUID, members: Sequence[MemoryRecord], wording: str, now: datetime) -> NewMemory:
    # The newest member sets age and session, since ranking wants the age of the newest statement of the fact.
    by_age = sorted(members, key=lambda member: (member.created_at, member.id))
    newest = by_age[-1]
    metadata: dict[str, object] = {}
    for member in by_age:
        metadata.update(member.metadata)
    if tags := _union_of_tags(by_age):
        metadata["tags"] = tags
    metadata |= {
        "consolidated_from": [str(member.id) for member in by_age],
        "consolidated_at": now.isoformat(),
        "generation": _generation(members, wording),
        "first_created_at": by_age[0].created_at.isoformat(),
    }
    return NewMemory(
        content=wording,
        collection=newest.collection,
        project=newest.project,
        source_type=store.strongest_type([member.source_type for member in members]),
        category=next((member.category for member in reversed(by_age) if member.category), None),
        importance=max(member.importance for member in members),
        session=newest.session,
        session_ordinal=newest.session_ordinal,
        metadata=metadata,
        source_key=f"consolidation:{cluster}",
        created_at=newest.created_at,
    )


def _generation(members: Sequence[MemoryRecord], wording: str) -> int:
    # Nothing drifts where all say the same word for word: a run that is repeated every day ends no chain.
    drifted = {content_hash(text) for text in (wording, *(member.content for member in members))}
    return max(map(generation, members)) + (len(drifted) > 1)


def _union_of_tags(members: Sequence[MemoryRecord]) -> list[str]:
    tags: dict[str, None] = {}
    for member in members:
        listed = member.metadata.get("tags")
        if isinstance(listed, list):
            tags.update((str(tag), None) for tag in listed)
    return list(tags)
