"""What a person decides on clusters: the preview, acceptance, the newest wins, rejection; and that it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from afterrun.client import Memory
from afterrun.errors import ConflictError, NotFoundError
from afterrun.review import PERSON, Preview
from afterrun.store import Store
from afterrun.vectors import embed_pending

PORTS = ("The port is 5432.", "The port is 5433.")
REPEATS = ("We use Postgres 17.", "We use Postgres 17 for orders.")


def remembered(memory: Memory, texts: Sequence[str]) -> list[UUID]:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [
        memory.remember(text, project="shop", created_at=begin + timedelta(days=day)).id
        for day, text in enumerate(texts)
    ]
    while embed_pending(memory.database, memory.embedder).more:
        pass
    return ids


def proposed(memory: Memory, texts: Sequence[str]) -> tuple[list[UUID], Preview]:
    """Memories that are proposed as a cluster, and its preview."""
    ids = remembered(memory, texts)
    with memory.database.transaction() as connection:
        Store(connection).propose(ids, collection="memory", project="shop")
    (preview,) = memory.previews()
    return ids, preview


def found(memory: Memory, words: str) -> set[UUID]:
    return {hit.id for hit in memory.search(words, min_results=0)}


def test_a_preview_shows_what_the_rules_would_do_and_asks_nobody(memory: Memory) -> None:
    ids, preview = proposed(memory, REPEATS)
    assert preview.settled
    assert set(preview.same) == set(ids)
    assert preview.wording == "We use Postgres 17 for orders."
    assert preview.most_tokens == 0
    assert [member.id for member in preview.members] == ids[::-1]


def test_with_a_key_a_preview_says_what_the_language_model_may_take(memory: Memory) -> None:
    proposed(memory, REPEATS)
    settings = replace(memory.settings, anthropic_api_key="sk", anthropic_base_url="http://127.0.0.1:9")
    with Memory(settings=settings, embedder=memory.embedder) as keyed:
        assert 1024 < keyed.previews()[0].most_tokens < 10_000


def test_where_the_rules_object_all_members_are_shown_with_the_guard(memory: Memory) -> None:
    ids, preview = proposed(memory, PORTS)
    assert not preview.settled
    assert preview.guard
    assert set(preview.same) == set(ids)
    assert all(number in preview.wording for number in ("5432", "5433"))


def test_an_accepted_cluster_is_merged_as_it_was_shown_and_can_be_undone(memory: Memory) -> None:
    ids, preview = proposed(memory, PORTS)
    outcome = memory.accept(preview)
    assert outcome.state == "merged"
    assert outcome.canonical is not None
    assert memory.get(outcome.canonical)[0].content == preview.wording
    (cluster,) = memory.history(ids[0]).consolidations
    assert (cluster.model, cluster.reason) == (PERSON, "accepted by a person")
    memory.undo(cluster.id)
    assert found(memory, "port") == set(ids)


def test_the_newest_wins_where_a_person_says_so(memory: Memory) -> None:
    (older, newer), preview = proposed(memory, PORTS)
    assert memory.accept(preview, newest_wins=True).state == "merged"
    assert found(memory, "port") == {newer}
    assert memory.get(older)[0].superseded_by == newer


def test_a_member_that_changed_since_it_was_shown_is_not_merged(memory: Memory) -> None:
    ids, preview = proposed(memory, REPEATS)
    with memory.database.transaction() as connection:
        connection.execute("UPDATE memories SET content = 'changed' WHERE id = %s", [ids[0]])
    assert memory.accept(preview).state == "skipped"
    memory.forget(ids[1])
    assert memory.accept(preview).state == "skipped"
    assert memory.previews() == []


def test_a_rejected_cluster_is_never_judged_nor_proposed_again(memory: Memory) -> None:
    texts = ("alpha beta gamma delta", "alpha beta gamma delta!")
    ids = remembered(memory, texts)
    assert memory.find_clusters() == [tuple(sorted(ids))]
    (preview,) = memory.previews()
    assert memory.reject(preview.cluster.id).state == "rejected"
    assert memory.consolidate(*ids).state == "skipped"
    assert memory.accept(preview).state == "skipped"
    with memory.database.transaction() as connection:
        connection.execute("UPDATE memories SET compared_at = NULL")
    assert memory.find_clusters() == []
    third = remembered(memory, ("alpha beta gamma delta?",))
    for members in memory.find_clusters():
        assert len(set(members) & set(ids)) < 2
        assert third[0] in members
    assert memory.previews() == [] or all(shown.cluster.id != preview.cluster.id for shown in memory.previews())
    with pytest.raises(ConflictError, match="rejected"):
        memory.reject(preview.cluster.id)


def test_an_undone_merge_is_not_proposed_again_by_itself_nor_with_another_member(memory: Memory) -> None:
    ids = remembered(memory, ("Alpha beta gamma delta", "alpha beta gamma delta"))
    assert memory.find_clusters() == [tuple(sorted(ids))]
    merged = memory.consolidate(*ids)
    assert merged.state == "merged"
    assert merged.consolidation is not None
    memory.undo(merged.consolidation)
    assert memory.find_clusters() == []
    assert memory.waiting_clusters() == []
    (third,) = remembered(memory, ("alpha beta gamma delta.",))
    for members in memory.find_clusters():
        assert len(set(members) & set(ids)) < 2
    late = memory.consolidate(*ids, third)
    assert (late.state, "undone" in late.reason) == ("skipped", True)
    assert found(memory, "alpha") == {*ids, third}


def test_only_what_exists_and_waits_can_be_rejected(memory: Memory) -> None:
    with pytest.raises(NotFoundError, match="consolidate --list"):
        memory.reject("0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11")


def test_a_person_need_not_wait_for_a_cap_or_a_pause(memory: Memory) -> None:
    _, preview = proposed(memory, PORTS)
    with memory.database.transaction() as connection:
        connection.execute("UPDATE consolidations SET not_before = now() + '1 hour', waits_for = 'spend'")
    assert memory.accept(preview).state == "merged"
