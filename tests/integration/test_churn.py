"""Both indexes stay right while memories change, are superseded and forgotten, and questions are asked meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import pytest
from pgvector import HalfVector

from afterrun import care
from afterrun.client import Memory
from afterrun.db import Connection
from afterrun.lineage import write_memories
from afterrun.models import NewMemory
from afterrun.store import Store
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

ROWS = 10_000
ROUNDS = 3
QUESTIONS = 40


class Notes:
    """Seeded notes: each is about one of some topics and has words of its own."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._topics = [[f"topic{topic}word{word}" for word in range(12)] for topic in range(200)]

    def text(self) -> str:
        topic = self._rng.choice(self._topics)
        return " ".join(self._rng.sample(topic, 6) + [f"detail{self._rng.randrange(2000)}" for _ in range(3)])

    def question(self) -> str:
        return " ".join([*self._rng.sample(self._rng.choice(self._topics), 3), f"detail{self._rng.randrange(2000)}"])

    def some(self, ids: Sequence[int], count: int) -> list[int]:
        return self._rng.sample(sorted(ids), count)


class Churn:
    """Memories by the number of their source, changed through the store as the product changes them."""

    def __init__(self, memory: Memory, embedder: HashEmbedder, notes: Notes) -> None:
        self._memory = memory
        self._embedder = embedder
        self._notes = notes
        self.active: dict[int, UUID] = {}

    def write(self, numbers: Sequence[int]) -> None:
        """New texts for these sources, known or not."""
        for start in range(0, len(numbers), 1000):
            batch = numbers[start : start + 1000]
            new = [NewMemory(content=self._notes.text(), source_key=f"churn:{number}") for number in batch]
            with self._memory.database.transaction() as connection:
                written = write_memories(connection, new, self._memory.chunker)
            self.active |= {number: row.id for number, row in zip(batch, written, strict=True) if row is not None}
        while embed_pending(self._memory.database, self._embedder, limit=1000).more:
            pass

    def supersede(self, numbers: Sequence[int]) -> None:
        """The first of these memories replaces the others."""
        first, *others = numbers
        with self._memory.database.transaction() as connection:
            Store(connection).supersede([self.active.pop(number) for number in others], self.active[first])

    def forget(self, numbers: Sequence[int]) -> None:
        care.forget(self._memory.database, [self.active.pop(number) for number in numbers])


@contextmanager
def asking(memory: Memory, notes: Notes) -> Iterator[list[int]]:
    """Asks questions all the while, and lists how many hits each answer had; a failure fails the test."""
    ended = threading.Event()
    counts: list[int] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            while not ended.is_set():
                counts.append(len(memory.search(notes.question(), limit=10)))
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []


def nearest(connection: Connection, embedder: HashEmbedder, question: str) -> list[UUID]:
    """The vector arm's ten best, as `memory_hybrid_search` asks for them."""
    size = embedder.spec.dimension
    rows = connection.execute(
        f"SELECT memory_id FROM chunks WHERE model = '{embedder.spec.id}' AND is_active AND embedding IS NOT NULL"
        f" ORDER BY embedding::halfvec({size}) <=> %s::halfvec({size}) LIMIT 10".encode(),
        [HalfVector(embedder.encode([question])[0])],
    )
    return [row[0] for row in rows]


def by_words(connection: Connection, question: str) -> set[UUID]:
    """Every memory that has one of the question's words, before the word arm ranks them."""
    any_of = "replace(plainto_tsquery('afterrun', %s)::text, '&', '|')::tsquery"
    rows = connection.execute(f"SELECT id FROM memories WHERE is_active AND search @@ {any_of}".encode(), [question])
    return {row[0] for row in rows}


@contextmanager
def planned(memory: Memory, *settings: str) -> Iterator[Connection]:
    with memory.database.transaction() as connection:
        for setting in ("hnsw.ef_search = 100", "hnsw.iterative_scan = 'strict_order'", *settings):
            connection.execute(f"SET LOCAL {setting}".encode())
        yield connection


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_indexes_answer_as_a_full_scan_does_after_ten_thousand_rows_were_churned(
    memory: Memory, embedder: HashEmbedder
) -> None:
    notes = Notes(seed=1)
    churn = Churn(memory, embedder, notes)
    churn.write(range(ROWS))
    with asking(memory, Notes(seed=2)) as counts:
        for number in range(ROUNDS):
            churn.write(notes.some(list(churn.active), ROWS // 5))
            churn.supersede(notes.some(list(churn.active), ROWS // 20))
            churn.forget(notes.some(list(churn.active), ROWS // 20))
            churn.write(range(ROWS + number * 500, ROWS + (number + 1) * 500))
    assert len(counts) > ROUNDS
    assert set(counts) == {10}

    questions = [notes.question() for _ in range(QUESTIONS)]
    with planned(memory, "enable_seqscan = off") as connection:
        quick = [nearest(connection, embedder, question) for question in questions]
        words = [by_words(connection, question) for question in questions]
    with planned(memory, "enable_indexscan = off", "enable_bitmapscan = off") as connection:
        exact = [nearest(connection, embedder, question) for question in questions]
        assert [by_words(connection, question) for question in questions] == words
    found = sum(len(set(ids) & set(best)) for ids, best in zip(quick, exact, strict=True))
    assert found / (10 * QUESTIONS) >= 0.97

    assert all(words)
    active = set(churn.active.values())
    assert {memory_id for ids in exact for memory_id in ids} <= active
    assert set().union(*words) <= active
    for question in questions:
        assert {hit.id for hit in memory.search(question)} <= active
