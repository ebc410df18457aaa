"""The search for near-duplicates: each memory once per change, whichever came first, and no chains."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import pytest

from afterrun import clusters, index
from afterrun.client import Memory
from afterrun.clusters import ORIGIN, Thresholds, likeness, thresholds
from afterrun.lineage import MAX_GENERATIONS
from afterrun.models import Run
from afterrun.vectors import embed_pending

NOW = datetime.now(UTC)
TEXT = "alpha beta gamma delta epsilon zeta eta theta"


def embed(memory: Memory) -> None:
    while embed_pending(memory.database, memory.embedder).more:
        pass


def remembered(memory: Memory, *texts: str, project: str = "a", source_type: str = "fact") -> list[UUID]:
    ids = [memory.remember(text, project=project, source_type=source_type).id for text in texts]
    embed(memory)
    return ids


def run(memory: Memory, run_id: str, summary: str, day: int = 0) -> UUID:
    """Index a run of the repo `a` and embed it; the id of its memory."""
    message = Run(repo="a", run_id=run_id, summary=summary, created_at=NOW - timedelta(days=day)).to_message()
    index.index_message(memory.database, message, memory.chunker)
    embed(memory)
    with memory.database.transaction() as connection:
        row = connection.execute("SELECT id FROM memories WHERE source_key = %s", [f"run:a:{run_id}"]).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def as_cluster(*ids: UUID) -> tuple[UUID, ...]:
    return tuple(sorted(ids))


def looked_at(memory: Memory) -> int:
    return memory.scan().looked_at


@pytest.mark.parametrize("backwards", [False, True], ids=["older first", "newer first"])
def test_a_duplicate_is_found_in_whichever_order_the_two_came(memory: Memory, backwards: bool) -> None:
    texts = [f"{TEXT} one", f"{TEXT} two"]
    first = remembered(memory, texts[backwards])
    assert memory.find_clusters() == []
    second = remembered(memory, texts[not backwards])
    assert memory.find_clusters() == [as_cluster(*first, *second)]


def test_the_whole_store_is_covered_and_nothing_is_left_to_do_afterwards(memory: Memory) -> None:
    ids = remembered(memory, *(f"{word} {word}s {word}ed" for word in ("red", "blue", "green", "grey", "black")))
    counts = [memory.scan(limit=2).looked_at for _ in range(4)]
    assert counts == [2, 2, 1, 0]
    memory.remember("Something else entirely.", project="a")
    embed(memory)
    assert [looked_at(memory), looked_at(memory)] == [1, 0]
    assert len(ids) == 5


def test_duplicates_that_concurrent_workers_embed_and_compare_are_found(memory: Memory) -> None:
    pairs = [(f"{TEXT} subject{number} x", f"{TEXT} subject{number} y") for number in range(10)]
    ids = [tuple(memory.remember(text, project=f"p{number}").id for text in pair) for number, pair in enumerate(pairs)]

    def work(_: int) -> None:
        embed_pending(memory.database, memory.embedder, limit=3)
        memory.scan(limit=2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    embed(memory)
    memory.find_clusters()
    assert sorted(memory.waiting_clusters()) == sorted(as_cluster(*pair) for pair in ids)


def test_what_an_undo_restores_is_compared_again(memory: Memory) -> None:
    one, other = remembered(memory, f"{TEXT} one.", f"{TEXT} one!")
    (members,) = memory.find_clusters()
    outcome = memory.consolidate(*members)
    assert outcome.state == "merged"
    embed(memory)
    (third,) = remembered(memory, f"{TEXT} one two")
    memory.find_clusters()
    assert outcome.consolidation is not None
    memory.undo(outcome.consolidation)
    # Never both of them again: a person has taken that back.
    assert sorted(memory.find_clusters()) == sorted([as_cluster(one, third), as_cluster(other, third)])


def test_a_changed_text_is_compared_again_also_within_a_cluster_that_was_judged(memory: Memory) -> None:
    one = run(memory, "1", f"{TEXT} port 80")
    other = run(memory, "2", f"{TEXT} port 81", day=1)
    assert memory.find_clusters() == [as_cluster(one, other)]
    assert memory.consolidate(one, other).state == "waiting"
    assert run(memory, "2", f"{TEXT} port 80", day=1) == other
    assert memory.find_clusters() == [as_cluster(one, other)]
    assert memory.consolidate(one, other).state == "merged"


def test_a_text_that_changes_while_it_is_compared_stays_to_be_compared(memory: Memory) -> None:
    (seed,) = remembered(memory, TEXT)
    with memory.database.transaction() as connection:
        connection.execute("UPDATE chunks SET embedding = NULL WHERE memory_id = %s", [seed])
    assert looked_at(memory) == 0
    embed(memory)
    assert looked_at(memory) == 1


def test_members_are_similar_to_each_other_and_every_pair_is_proposed(memory: Memory) -> None:
    words = [f"word{number}" for number in range(16)]
    chain = [" ".join(words[start : start + 10]) for start in (0, 2, 4, 6)]
    ids = remembered(memory, *chain)
    at_least = 0.75  # neighbours share 8 of 10 words, the next but one 6
    found = clusters.find_clusters(memory.database, memory.chunker.spec.id, at_least=at_least).proposals
    assert sorted(proposal.members for proposal in found) == sorted(as_cluster(ids[at], ids[at + 1]) for at in range(3))
    assert all(proposal.similarity >= at_least for proposal in found)


def test_runs_are_not_mixed_with_notes_nor_one_project_with_another(memory: Memory) -> None:
    run(memory, "1", f"{TEXT} one")
    remembered(memory, f"{TEXT} two")
    remembered(memory, f"{TEXT} three", project="b")
    assert memory.find_clusters() == []


def test_a_roll_up_is_not_mixed_with_its_runs(memory: Memory) -> None:
    first = run(memory, "1", f"{TEXT} one")
    monthly = Run(repo="a", run_id="m", summary=f"{TEXT} two", tier="monthly", period_label="2026-01")
    index.index_message(memory.database, monthly.to_message(), memory.chunker)
    embed(memory)
    assert memory.find_clusters() == []
    second = run(memory, "2", f"{TEXT} three")
    assert memory.find_clusters() == [as_cluster(first, second)]


def test_code_docs_and_standards_are_not_compared(memory: Memory) -> None:
    memory.remember(f"{TEXT} one", project="a", collection="docs")
    memory.remember(f"{TEXT} two", project="a", collection="docs")
    embed(memory)
    assert looked_at(memory) == 0


def test_a_memory_of_many_merges_is_left_alone(memory: Memory) -> None:
    memory.remember(f"{TEXT} one", project="a", metadata={"generation": MAX_GENERATIONS})
    remembered(memory, f"{TEXT} two")
    assert memory.find_clusters() == []


def test_a_canonical_memory_is_not_merged_with_what_it_came_from(memory: Memory) -> None:
    ids = remembered(memory, f"{TEXT} one.", f"{TEXT} one!")
    memory.consolidate(*memory.find_clusters()[0])
    embed(memory)
    assert memory.find_clusters() == []
    assert all(record.superseded_by is not None for record in memory.get(*ids))


def test_a_long_text_is_found_by_a_piece_that_is_not_its_first(memory: Memory) -> None:
    body = " ".join(f"fact{number}" for number in range(75))
    page = " ".join(f"foreword{number}" for number in range(75))
    assert [len(memory.chunker.split(text)) for text in (body, f"{page}\n\n{body}")] == [1, 2]
    (short,) = remembered(memory, body)
    assert memory.find_clusters() == []
    (long,) = remembered(memory, f"{page}\n\n{body}")
    assert memory.find_clusters() == [as_cluster(short, long)]


def test_neighbours_are_found_though_other_projects_crowd_them_out(memory: Memory) -> None:
    for number in range(60):
        memory.remember(f"{TEXT} here", project=f"other-{number}")
    one, other = remembered(memory, f"{TEXT} here", f"{TEXT} there")
    assert memory.find_clusters() == [as_cluster(one, other)]


def test_the_clusters_that_wait_come_the_most_alike_first(memory: Memory) -> None:
    pairs = [
        remembered(memory, TEXT, f"{TEXT} {words}", project=project)
        for project, words in (("a", "one two three"), ("b", "one"), ("c", "one two"))
    ]
    found = memory.scan().proposals
    assert [proposal.project for proposal in found] == ["b", "c", "a"]
    assert memory.waiting_clusters() == [as_cluster(*pairs[at]) for at in (1, 2, 0)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((1, 1), 0.6), ((1, 2), 1.0), ((1, 3), 0.0), ((2, 2), 0.6)],
    ids=["two short ones", "inside twice as much", "inside much more", "both ways"],
)
def test_likeness_is_that_of_the_worst_matched_piece_of_the_shorter(lengths: tuple[int, int], expected: float) -> None:
    base = np.eye(4, dtype=np.float32)
    slanted = np.array([0.6, 0.8, 0, 0], dtype=np.float32)
    of: dict[tuple[int, int], tuple[Sequence[object], Sequence[object]]] = {
        (1, 1): ([base[0]], [slanted]),
        (1, 2): ([base[0]], [base[0], base[3]]),
        (1, 3): ([base[0]], [base[0], base[2], base[3]]),
        (2, 2): ([base[0], base[2]], [slanted, base[2]]),
    }
    one, other = (np.array(side, dtype=np.float32) for side in of[lengths])
    assert likeness(one, other) == likeness(other, one) == pytest.approx(expected)


def test_thresholds_are_those_of_the_model_unless_the_settings_choose() -> None:
    assert thresholds("some-other-model@torch") == ORIGIN == Thresholds(cluster=0.85, near=0.88, exact=0.95)
    of_minilm = thresholds("all-MiniLM-L6-v2@openvino")
    assert of_minilm.cluster < of_minilm.near < of_minilm.exact
    assert thresholds("all-MiniLM-L6-v2", near=0.9).near == 0.9
