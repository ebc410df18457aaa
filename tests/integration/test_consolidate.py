"""Consolidation: what is proposed, what a merge changes, and that every step can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from afterrun.client import Memory
from afterrun.errors import (
    ConflictError,
    InputError,
    LanguageModelError,
    LanguageModelRejectedError,
    LanguageModelUnavailableError,
    NotFoundError,
)
from afterrun.judge import Similarity
from afterrun.models import Member, Spend, Verdict
from afterrun.vectors import embed_pending

NOW = datetime.now(UTC)


class ScriptedJudge:
    """A judge that answers as the test says."""

    settles = True

    def __init__(self, answer: Callable[[Sequence[Member]], Verdict], name: str = "scripted") -> None:
        self.name = name
        self.calls = 0
        self._answer = answer

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        self.calls += 1
        return self._answer(members)

    def most_tokens(self, members: Sequence[Member]) -> int:
        return 1000


def all_the_same(members: Sequence[Member]) -> Verdict:
    return Verdict(
        same=tuple(member.id for member in members), wording="We use Postgres 17.", reason="one fact", judge="scripted",
        spend=Spend(calls=1, input_tokens=100, output_tokens=20),
    )  # fmt: skip


def remembered(memory: Memory, texts: Sequence[str], **fields: Any) -> list[UUID]:
    ids = [
        memory.remember(text, created_at=NOW - timedelta(days=len(texts) - at), **fields).id
        for at, text in enumerate(texts)
    ]
    while embed_pending(memory.database, memory.embedder).more:
        pass
    return ids


def with_judge(memory: Memory, judge: ScriptedJudge) -> Memory:
    return Memory(settings=memory.settings, embedder=memory.embedder, judge=judge)


PARAPHRASES = ["We use Postgres 17.", "We use Postgres 17 here.", "We do use Postgres 17."]


def test_a_merge_keeps_type_tags_age_and_lineage_and_deletes_nothing(memory: Memory) -> None:
    ids = remembered(memory, PARAPHRASES[:2], metadata={"tags": ["db"]})
    ids += [memory.remember(PARAPHRASES[2], source_type="decision", importance=0.9, metadata={"tags": ["pg"]}).id]
    with with_judge(memory, ScriptedJudge(all_the_same)) as judged:
        outcome = judged.consolidate(*ids)
        assert outcome.state == "merged"
        assert outcome.canonical is not None
        (canonical,) = judged.get(outcome.canonical)
        assert canonical.source_type == "decision"
        assert canonical.importance == pytest.approx(0.9)
        assert canonical.metadata["tags"] == ["db", "pg"]
        origins = canonical.metadata["consolidated_from"]
        assert isinstance(origins, list)
        assert set(origins) == {str(one) for one in ids}
        assert "consolidated_at" in canonical.metadata
        assert canonical.created_at == max(one.created_at for one in judged.get(*ids))
        assert {one.superseded_by for one in judged.get(*ids)} == {canonical.id}
        assert [hit.id for hit in judged.search("Postgres", min_results=0)] == [canonical.id]
        history = judged.history(canonical.id)
        assert {line.memory.id for line in history.originals} == set(ids)
        assert judged.history(ids[0]).successor == canonical
        assert judged.status().spend == Spend(calls=1, input_tokens=100, output_tokens=20)


def test_a_merge_keeps_the_metadata_of_all_members_and_of_the_newest_where_they_differ(memory: Memory) -> None:
    (older,) = remembered(memory, PARAPHRASES[:1], metadata={"ticket": 1, "host": "a"}, category="db")
    newer = memory.remember(PARAPHRASES[1], metadata={"host": "b"}, created_at=NOW, session="s").id
    with with_judge(memory, ScriptedJudge(all_the_same)) as judged:
        outcome = judged.consolidate(older, newer)
        assert outcome.canonical is not None
        (canonical,) = judged.get(outcome.canonical)
    assert (canonical.metadata["ticket"], canonical.metadata["host"]) == (1, "b")
    assert (canonical.category, canonical.session, canonical.created_at) == ("db", "s", NOW)
    assert canonical.metadata["first_created_at"] == memory.get(older)[0].created_at.isoformat()


def test_undo_restores_the_originals_and_the_same_cluster_is_not_proposed_again(memory: Memory) -> None:
    ids = remembered(memory, PARAPHRASES)
    judge = ScriptedJudge(all_the_same)
    with with_judge(memory, judge) as judged:
        outcome = judged.consolidate(*ids)
        assert outcome.consolidation is not None
        assert judged.undo(outcome.consolidation).state == "undone"
        assert {hit.id for hit in judged.search("Postgres", min_results=0)} == set(ids)
        assert all(one.is_active and one.superseded_by is None for one in judged.get(*ids))
        assert judged.consolidate(*ids).state == "skipped"
        assert judge.calls == 1
        with pytest.raises(ConflictError, match="undone"):
            judged.undo(outcome.consolidation)
        with pytest.raises(NotFoundError):
            judged.undo(uuid4())


def test_a_merge_of_a_merge_is_undone_in_order(memory: Memory) -> None:
    ids = remembered(memory, PARAPHRASES)
    with with_judge(memory, ScriptedJudge(all_the_same)) as judged:
        first = judged.consolidate(*ids[:2])
        second = judged.consolidate(str(first.canonical), ids[2])
        assert second.state == "merged"
        assert first.consolidation is not None
        with pytest.raises(ConflictError, match="undo that merge first"):
            judged.undo(first.consolidation)
        assert len(judged.undo_since(NOW - timedelta(minutes=1))) == 2
        assert {hit.id for hit in judged.search("Postgres", min_results=0)} == set(ids)


def test_the_newer_of_two_contradicting_memories_supersedes_the_older(memory: Memory) -> None:
    older, newer = remembered(memory, ["The port is 5432.", "The port is 5433."])
    judge = ScriptedJudge(lambda members: Verdict(superseded={older: newer}, reason="the port moved"))
    with with_judge(memory, judge) as judged:
        assert judged.consolidate(older, newer).state == "merged"
        assert [hit.id for hit in judged.search("port", min_results=0)] == [newer]
        (cluster,) = judged.history(older).consolidations
        assert cluster.reason == "the port moved"
        judged.undo(cluster.id)
        assert len(judged.search("port", min_results=0)) == 2


@pytest.mark.parametrize(
    ("error", "state"),
    [(LanguageModelError("nonsense"), "waiting"), (LanguageModelUnavailableError("busy", retry_after=90), "waiting")],
    ids=["invalid", "unavailable"],
)
def test_a_judge_that_fails_changes_nothing_and_the_cluster_waits(
    memory: Memory, error: LanguageModelError, state: str
) -> None:
    ids = remembered(memory, PARAPHRASES)

    def fail(members: Sequence[Member]) -> Verdict:
        raise error

    judge = ScriptedJudge(fail)
    with with_judge(memory, judge) as judged:
        assert judged.consolidate(*ids).state == state
        assert judged.consolidate(*ids).state == "skipped"
        assert judge.calls == 1
        assert len(judged.search("Postgres", min_results=0)) == 3


def test_a_rejected_key_is_an_error_and_an_invalid_answer_ends_as_failed(memory: Memory) -> None:
    ids = remembered(memory, PARAPHRASES)

    def refuse(members: Sequence[Member]) -> Verdict:
        raise LanguageModelRejectedError("bad key")

    with with_judge(memory, ScriptedJudge(refuse)) as judged, pytest.raises(LanguageModelRejectedError):
        judged.consolidate(*ids)

    def nonsense(members: Sequence[Member]) -> Verdict:
        raise LanguageModelError("nonsense")

    with with_judge(memory, ScriptedJudge(nonsense)) as judged:
        states = []
        for _ in range(3):
            with memory.database.transaction() as connection:
                connection.execute("UPDATE consolidations SET not_before = now()")
            states.append(judged.consolidate(*ids).state)
        assert states[-1] == "failed"


def test_a_member_forgotten_during_the_call_stays_forgotten(memory: Memory) -> None:
    ids = remembered(memory, PARAPHRASES)

    def forget_meanwhile(members: Sequence[Member]) -> Verdict:
        memory.forget(ids[0])
        return all_the_same(members)

    with with_judge(memory, ScriptedJudge(forget_meanwhile)) as judged:
        assert judged.consolidate(*ids).state == "failed"
        assert {hit.id for hit in judged.search("Postgres", min_results=0)} == set(ids[1:])
        assert judged.consolidate(*ids).state == "skipped"


def test_fifty_consolidations_at_once_merge_once(memory: Memory) -> None:
    ids = remembered(memory, PARAPHRASES)
    with with_judge(memory, ScriptedJudge(all_the_same)) as judged, ThreadPoolExecutor(8) as pool:
        states = list(pool.map(lambda _: judged.consolidate(*ids).state, range(50)))
    assert states.count("merged") == 1
    assert set(states) == {"merged", "skipped"}


def test_fifty_writers_of_one_note_leave_one_active_row(memory: Memory) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: memory.remember("The same note."), range(50)))
    assert len({result.id for result in results}) == 1
    assert sum(result.created for result in results) == 1
    assert memory.get(results[0].id)[0].seen == 50


def test_near_duplicates_are_proposed_once_within_one_project(memory: Memory) -> None:
    ids = remembered(memory, ["alpha beta gamma delta", "alpha beta gamma delta!"], project="a")
    remembered(memory, ["alpha beta gamma delta."], project="b")
    remembered(memory, ["wholly other words stand here"], project="a")
    assert memory.find_clusters() == [tuple(sorted(ids))]
    assert memory.find_clusters() == []


def test_what_the_deterministic_judge_cannot_settle_waits_for_another_judge(memory: Memory) -> None:
    ids = remembered(memory, ["The port is 5432.", "The port is 5433."])
    outcome = memory.consolidate(*ids)
    assert outcome.state == "waiting"
    assert memory.consolidate(*ids).state == "skipped"
    with with_judge(memory, ScriptedJudge(lambda members: Verdict(reason="related"))) as judged:
        assert judged.waiting_clusters() == [tuple(sorted(ids))]
        assert judged.consolidate(*ids).state == "related"
        assert judged.waiting_clusters() == []


def test_exact_repeats_among_runs_are_merged_without_a_key(memory: Memory) -> None:
    ids = remembered(memory, ["Release the build to staging.", "release the build to staging"])
    outcome = memory.consolidate(*ids)
    assert outcome.state == "merged"


def test_a_cluster_needs_two_active_memories_of_one_scope(memory: Memory) -> None:
    one = memory.remember("One.", project="a").id
    other = memory.remember("One.", project="b").id
    with pytest.raises(InputError):
        memory.consolidate(one)
    assert memory.consolidate(one, other).state == "skipped"
    assert memory.consolidate(one, uuid4()).state == "skipped"


def test_merges_of_merges_end(memory: Memory) -> None:
    with with_judge(memory, ScriptedJudge(all_the_same)) as judged:
        current = remembered(memory, ["alpha beta gamma delta"])[0]
        for generation in range(3):
            other = remembered(memory, [f"alpha beta gamma delta {'!' * (generation + 1)}"])[0]
            outcome = judged.consolidate(current, other)
            assert outcome.canonical is not None
            current = outcome.canonical
        assert judged.get(current)[0].metadata["generation"] == 3
        remembered(memory, ["We use Postgres 17"])
        assert judged.find_clusters() == []
