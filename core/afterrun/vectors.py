"""Gives pending chunks their vectors: claim in a short transaction, encode outside, write in another.

Nothing is named by id: whoever has time takes what is pending, so a lost or doubled message changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from afterrun.db import Database
from afterrun.embed import Embedder
from afterrun.errors import EmbeddingError
from afterrun.lineage import check_model
from afterrun.models import PendingChunk
from afterrun.store import Store, Vector

log = logging.getLogger(__name__)

_PROBE: Final = "Is the model able to encode a plain sentence?"
_RETRY_SECONDS: Final = 5.0
"""Wait after a chunk's first failure; it doubles with each further one."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """What one batch did: chunks that got a vector, chunks that failed, and whether more could be claimed."""

    embedded: int
    failed: int
    more: bool


def embed_pending(
    database: Database, embedder: Embedder, *, limit: int = 512, lease: float = 300, max_attempts: int = 3
) -> Embedded:
    """Embed up to `limit` pending chunks.

    A batch that fails is halved until the failing chunks stand alone. Each of those counts an attempt, and with its
    last one its memory goes to the dead letters; all others get their vectors.

    Raises:
        EmbeddingError: the model fails on anything at all; then every chunk stays pending and none counts an attempt.
        ModelMismatchError: the database holds another model's vectors.
    """
    with database.transaction() as connection:
        store = Store(connection)
        check_model(store, embedder.spec)
        claimed = store.claim_chunks(embedder.spec.id, limit=limit, lease=lease)
    if not claimed:
        return Embedded(embedded=0, failed=0, more=False)
    try:
        vectors, failures = _encode(embedder, claimed)
        if failures:
            embedder.encode([_PROBE])
    except BaseException:
        with database.transaction() as connection:
            Store(connection).release_chunks([chunk.id for chunk in claimed], wait=_RETRY_SECONDS)
        raise
    with database.transaction() as connection:
        store = Store(connection)
        store.write_vectors(vectors)
        for chunk, error in failures:
            _count_failure(store, chunk, error, max_attempts)
        return Embedded(embedded=len(vectors), failed=len(failures), more=store.claimable())


def _encode(
    embedder: Embedder, chunks: Sequence[PendingChunk]
) -> tuple[list[tuple[int, Vector]], list[tuple[PendingChunk, EmbeddingError]]]:
    try:
        encoded = embedder.encode([chunk.content for chunk in chunks])
    except EmbeddingError as error:
        if len(chunks) == 1:
            return [], [(chunks[0], error)]
        middle = len(chunks) // 2
        vectors, failures = _encode(embedder, chunks[:middle])
        more_vectors, more_failures = _encode(embedder, chunks[middle:])
        return vectors + more_vectors, failures + more_failures
    return [(chunk.id, vector) for chunk, vector in zip(chunks, encoded, strict=True)], []


def _count_failure(store: Store, chunk: PendingChunk, error: EmbeddingError, max_attempts: int) -> None:
    wait = _RETRY_SECONDS * 2**chunk.attempts
    if store.fail_chunk(chunk.id, str(error), max_attempts=max_attempts, wait=wait):
        log.error("memory %s cannot be embedded and goes to the dead letters: %s", chunk.memory_id, error)
        store.bury("embed", str(chunk.memory_id), str(error), attempts=chunk.attempts + 1, memory_id=chunk.memory_id)
