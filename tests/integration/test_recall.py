"""Recall through `memory_hybrid_search`: what is found, in which order, and what a caller gets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pgvector import HalfVector

from afterrun.client import Memory
from afterrun.db import connect
from afterrun.errors import DatabaseUnavailableError, InputError, ModelMismatchError, SchemaError
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

NOW = datetime.now(UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def embed_all(memory: Memory, embedder: HashEmbedder) -> None:
    while embed_pending(memory.database, embedder).more:
        pass


def contents(memory: Memory, query: str, **filters: Any) -> list[str]:
    return [hit.content for hit in memory.search(query, **filters)]


def test_fix_1_a_60_day_old_decision_stands_above_a_60_day_old_fact(memory: Memory, embedder: HashEmbedder) -> None:
    then = NOW - timedelta(days=60)
    for source_type in ("fact", "decision"):
        memory.remember("We deploy on Fridays.", project=source_type, source_type=source_type, created_at=then)
    embed_all(memory, embedder)
    hits = memory.search("When do we deploy?")
    assert [hit.source_type for hit in hits] == ["decision", "fact"]


def test_fix_1_decay_is_a_half_at_one_half_life(memory: Memory) -> None:
    memory.remember("The cache is warm.", source_type="fact", created_at=NOW - timedelta(days=90))
    (hit,) = memory.search("cache", min_results=0)
    assert hit.decay == pytest.approx(0.5, abs=0.001)


def test_fix_2_ten_weak_memories_give_at_least_five_hits(memory: Memory, embedder: HashEmbedder) -> None:
    for number in range(10):
        memory.remember(f"Unrelated remark number {number} about gardening.")
    embed_all(memory, embedder)
    assert len(memory.recall("quantum chromodynamics").hits) >= 5
    assert len(memory.recall("quantum chromodynamics", token_budget=1).hits) >= 5


def test_fix_2_what_both_arms_find_counts_once(memory: Memory, embedder: HashEmbedder) -> None:
    for number in range(3):
        memory.remember(f"Lighthouse {number} is lit.")
    embed_all(memory, embedder)
    for number in range(3):
        memory.remember(f"Remark {number} about gardening, not embedded yet.")
    assert len(memory.search("lighthouse", min_results=5)) >= 5


def test_fix_3_decisions_stand_above_document_chunks_of_like_similarity(memory: Memory, embedder: HashEmbedder) -> None:
    memory.remember("Sessions live in Redis for an hour.", project="a", source_type="document_chunk")
    memory.remember("Sessions live in Redis for an hour.", project="b", source_type="decision")
    embed_all(memory, embedder)
    hits = memory.search("Where do sessions live?")
    assert [hit.source_type for hit in hits] == ["decision", "document_chunk"]
    assert [hit.weight for hit in hits] == pytest.approx([1.5, 0.6])


def test_fix_5_app_a_stands_above_app_b_for_identical_content_and_both_return(
    memory: Memory, embedder: HashEmbedder
) -> None:
    for project in ("app-b", "app-a", "global"):
        memory.remember("The port is 8080.", project=project)
    embed_all(memory, embedder)
    hits = memory.search("port", project="app-a")
    assert [hit.project for hit in hits] == ["app-a", "global", "app-b"]
    assert [hit.affinity for hit in hits] == pytest.approx([1.5, 1.0, 0.7])
    assert {hit.affinity for hit in memory.search("port")} == {1.0}


def test_fix_6_a_memory_is_found_by_its_words_the_moment_it_is_remembered(memory: Memory) -> None:
    memory.remember("The staging cluster runs in Frankfurt.")
    assert contents(memory, "Frankfurt")[0] == "The staging cluster runs in Frankfurt."


def test_only_project_hides_all_others(memory: Memory, embedder: HashEmbedder) -> None:
    for project in ("app-a", "app-b"):
        memory.remember("Logs go to Loki.", project=project)
    embed_all(memory, embedder)
    assert [hit.project for hit in memory.search("logs", project="app-b", only_project=True)] == ["app-b"]
    with pytest.raises(InputError, match="only_project needs a project"):
        memory.search("logs", only_project=True)


def test_filters_apply_before_the_page_is_cut(memory: Memory, embedder: HashEmbedder) -> None:
    for number in range(120):
        memory.remember(f"Retry budget note {number}.", source_type="fact")
    memory.remember("Retry budget is three.", source_type="decision", created_at=NOW - timedelta(days=400))
    embed_all(memory, embedder)
    assert contents(memory, "retry budget", source_types=["decision"]) == ["Retry budget is three."]
    assert contents(memory, "retry budget", until=NOW - timedelta(days=300)) == ["Retry budget is three."]
    assert len(contents(memory, "retry budget", since=NOW - timedelta(days=1), limit=50)) == 50
    assert contents(memory, "retry budget", collections=["docs"]) == []


def test_an_empty_query_is_answered_newest_first(memory: Memory) -> None:
    for day in range(8):
        memory.remember(f"Note of day {day}.", created_at=NOW - timedelta(days=day))
    assert contents(memory, "", limit=3) == ["Note of day 0.", "Note of day 1.", "Note of day 2."]
    assert len(memory.recall("   ").hits) == 8


def test_an_old_memory_that_is_the_only_answer_is_found_first(memory: Memory, embedder: HashEmbedder) -> None:
    memory.remember("The root cause was a leaked file descriptor.", created_at=NOW - timedelta(days=3650))
    for number in range(30):
        memory.remember(f"Fresh chatter {number} about lunch.", source_type="decision")
    embed_all(memory, embedder)
    assert contents(memory, "leaked file descriptor")[0].startswith("The root cause")


def test_a_time_in_the_future_neither_fails_nor_wins(memory: Memory) -> None:
    memory.remember("The build is green.", project="now")
    memory.remember("The build is green.", project="future", created_at=NOW + timedelta(days=1000))
    decays = {hit.project: hit.decay for hit in memory.search("build green")}
    assert decays["future"] == pytest.approx(1.0)
    assert decays["now"] == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize("year", [1, 1970, 9999])
def test_no_date_is_too_far_away_for_a_search(memory: Memory, embedder: HashEmbedder, year: int) -> None:
    then = datetime(year, 12, 31, 23, 59, tzinfo=UTC)
    memory.remember("The first commit added a parser.", source_type="code_context", created_at=then)
    memory.remember("The last commit removed a lexer.", source_type="code_context")
    embed_all(memory, embedder)
    assert contents(memory, "parser")[0] == "The first commit added a parser."
    assert len(contents(memory, "")) == 2


@pytest.mark.parametrize(("zone", "then"), [("Asia/Tokyo", _LAST), ("America/New_York", _FIRST)])
def test_the_servers_time_zone_moves_no_date_out_of_the_calendar(memory: Memory, zone: str, then: datetime) -> None:
    with connect(memory.settings.require_database()) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET timezone = '{zone}'".encode())
    memory.remember("The clock stopped.", created_at=then)
    assert [hit.created_at for hit in memory.search("clock")] == [then]


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM source_types WHERE source_type = '*'",
        "DELETE FROM source_types",
        "UPDATE source_types SET half_life_days = 5e-324, weight = 5e-324",
        "UPDATE source_types SET half_life_days = 'Infinity', weight = 'Infinity'",
        "UPDATE source_types SET half_life_days = 'NaN', weight = 'NaN'",
    ],
)
def test_no_edit_of_the_source_types_fails_a_search_or_hides_a_memory(memory: Memory, edit: str) -> None:
    for source_type in ("fact", "gossip"):
        memory.remember(f"A {source_type} on badgers.", source_type=source_type, created_at=NOW - timedelta(days=30))
    with memory.database.transaction() as connection:
        connection.execute(edit.encode())
    hits = memory.search("badgers", project="shop")
    assert {hit.source_type for hit in hits} == {"fact", "gossip"}
    assert all(0.92 < hit.score / hit.relevance < 1.09 for hit in hits)


def test_one_long_memory_near_the_question_leaves_room_for_a_page_of_others(
    memory: Memory, embedder: HashEmbedder
) -> None:
    chapter = "harbour pilot " + " ".join(f"tide{number}" for number in range(60))
    memory.remember("\n\n".join(f"{chapter} {number}" for number in range(200)))
    for number in range(30):
        memory.remember(f"Note {number}: {chapter} with lights and buoys")
    embed_all(memory, embedder)
    with memory.database.transaction() as connection:
        nearest = (
            "SELECT count(DISTINCT memory_id) FROM (SELECT memory_id FROM chunks ORDER BY embedding <=> %s LIMIT 80) c"
        )
        asked = HalfVector(embedder.encode([chapter])[0])
        assert connection.execute(nearest.encode(), [asked]).fetchone() == (1,), "else this test shows nothing"
        found = connection.execute(
            "SELECT count(*) FROM memory_candidates('{}', '{}', %s, %s, NULL, NULL, NULL, NULL, NULL, 80, 5)",
            [asked, embedder.spec.id],
        ).fetchone()
    assert found == (31,)


def test_a_vector_without_direction_is_no_nearness(memory: Memory, embedder: HashEmbedder) -> None:
    for text in ("The queue is durable.", "The stack is volatile."):
        memory.remember(text)
    embed_all(memory, embedder)
    with memory.database.transaction() as connection:
        connection.execute("UPDATE chunks SET embedding = array_fill(0, ARRAY[%s])::halfvec", [embedder.spec.dimension])
    hits = memory.search("durable queue")
    assert [hit.vector for hit in hits] == [None, None]
    assert hits[0].content == "The queue is durable."


@pytest.mark.parametrize(
    "query",
    ["", "the of and", '"quoted', "a & b | !c", "100% _under_ :colon", "x" * 100_000, "a\x00b", "\ud800",
     "🙂 你好 שלום", "<private>hidden</private>", "'; DROP TABLE memories; --", "\\"],
    ids=lambda query: query[:12].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_any_text_is_a_legal_query(memory: Memory, embedder: HashEmbedder, query: str) -> None:
    for number in range(6):
        memory.remember(f"Some memory {number}.")
    embed_all(memory, embedder)
    assert len(memory.recall(query).hits) >= 5


def test_a_shared_word_finds_across_languages_and_accents(memory: Memory) -> None:
    for text in (
        "Die Datenbank läuft in Zürich.",
        "Le déploiement échoue à minuit.",
        "La copia de seguridad está cifrada.",
        "Резервная копия хранится месяц.",
    ):
        memory.remember(text)
    assert contents(memory, "Wo läuft die Datenbank?")[0].startswith("Die Datenbank")
    assert contents(memory, "deploiement")[0].startswith("Le déploiement")
    assert contents(memory, "¿seguridad?")[0].startswith("La copia")
    assert contents(memory, "Где копия?")[0].startswith("Резервная")


def test_a_budget_is_kept_and_one_long_hit_does_not_stop_the_packing(memory: Memory, embedder: HashEmbedder) -> None:
    memory.remember("alpha " * 3000)
    for number in range(30):
        memory.remember(f"alpha beta gamma remark {number}")
    embed_all(memory, embedder)
    recall = memory.recall("alpha beta", token_budget=60, min_results=3, explain=True)
    assert len(recall.hits) >= 3
    assert recall.tokens <= 60
    assert recall.tokens == sum(memory.chunker.count(hit.content) for hit in recall.hits)
    assert {item.reason for item in recall.withheld} == {"budget"}
    assert all(hit.content in recall.text for hit in recall.hits)


def test_identical_hits_collapse_within_a_project_but_never_below_min_results(
    memory: Memory, embedder: HashEmbedder
) -> None:
    for number, text in enumerate(["The port is 5432.", "the PORT is 5432", "The port is 5433.", "The port is  5432!"]):
        memory.remember(text, created_at=NOW - timedelta(minutes=number))
    embed_all(memory, embedder)
    few = memory.recall("which port?", min_results=1, explain=True)
    assert len(few.hits) == 2
    assert {"5432" in hit.content for hit in few.hits} == {True, False}
    assert {item.reason.split()[0] for item in few.withheld} == {"duplicate"}
    assert len(memory.recall("which port?", min_results=4).hits) == 4


def test_scores_fall_and_equal_scores_are_in_a_stable_order(memory: Memory, embedder: HashEmbedder) -> None:
    for number in range(12):
        memory.remember("Same words here.", project=f"p{number}", created_at=NOW)
    embed_all(memory, embedder)
    first, second = memory.search("same words"), memory.search("same words")
    assert [hit.id for hit in first] == [hit.id for hit in second]
    assert [hit.score for hit in first] == sorted((hit.score for hit in first), reverse=True)
    assert [hit.id for hit in first] == sorted(hit.id for hit in first)


def test_explain_returns_the_raw_constants(memory: Memory, embedder: HashEmbedder) -> None:
    memory.remember("We chose Postgres.", source_type="decision", project="app")
    embed_all(memory, embedder)
    (hit,) = memory.search("Postgres", project="app")
    assert hit.weight == pytest.approx(1.5)
    assert hit.affinity == pytest.approx(1.5)
    assert hit.decay == pytest.approx(1.0, abs=0.001)
    assert hit.vector is not None
    assert hit.text == pytest.approx(1.0)


def test_a_dead_database_is_an_error_and_not_an_empty_answer(memory: Memory) -> None:
    with (
        Memory(
            database_url="postgresql://postgres@127.0.0.1:1/none", settings=memory.settings, embedder=memory.embedder
        ) as unreachable,
        pytest.raises(DatabaseUnavailableError),
    ):
        unreachable.recall("anything")


def test_another_models_process_cannot_write(memory: Memory) -> None:
    with (
        Memory(settings=memory.settings, embedder=HashEmbedder(128, path=memory.chunker.spec.path)) as other,
        pytest.raises(ModelMismatchError, match="words-128@hash"),
    ):
        other.remember("Something.")


@pytest.mark.parametrize(
    "fields",
    [
        {"query": None}, {"limit": 2.5}, {"limit": None}, {"min_results": "5"}, {"project": 5}, {"since": 5},
        {"source_types": "fact"}, {"collections": ["books"]}, {"limit": 0}, {"min_results": -1}, {"limit": 999},
        {"project": "a", "only_project": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_types_and_numbers_are_told(memory: Memory, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        memory.search(**{"query": "anything", **fields})


@pytest.mark.parametrize("name", ["min_results", "token_budget"])
@pytest.mark.parametrize("value", ["5", None, 2.5, True])
def test_wrong_types_are_told_of_recalls_own_numbers_too(memory: Memory, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is a whole number"):
        memory.recall("anything", **{name: value})


def test_an_unmigrated_database_says_what_to_run(memory: Memory, empty_database_url: str) -> None:
    with (
        Memory(database_url=empty_database_url, settings=memory.settings, embedder=memory.embedder) as unmigrated,
        pytest.raises(SchemaError, match="afterrun migrate"),
    ):
        unmigrated.recall("anything")


def test_a_question_of_another_model_is_refused(memory: Memory) -> None:
    other = HashEmbedder(128, path=memory.chunker.spec.path)
    with Memory(settings=memory.settings, embedder=other) as mismatched, pytest.raises(ModelMismatchError):
        mismatched.search("anything")


def test_the_vector_arm_and_the_word_arm_use_their_indexes(memory: Memory, embedder: HashEmbedder) -> None:
    with connect(memory.settings.require_database()) as connection:
        connection.execute("SET enable_seqscan = off")
        vector = [0.1] * embedder.spec.dimension
        plan = connection.execute(
            f"EXPLAIN SELECT memory_id FROM chunks WHERE model = '{embedder.spec.id}' AND is_active"
            f" AND embedding IS NOT NULL ORDER BY embedding::halfvec({embedder.spec.dimension}) <=> '{vector}'::halfvec"
            " LIMIT 60"
        ).fetchall()
        assert "chunks_hnsw_" in str(plan)
        plan = connection.execute(
            "EXPLAIN SELECT id FROM memories WHERE search @@ to_tsquery('afterrun', 'port') AND is_active"
        ).fetchall()
        assert "memories_search" in str(plan)


def test_forgotten_and_superseded_memories_are_not_found(memory: Memory, embedder: HashEmbedder) -> None:
    kept: UUID = memory.remember("The queue is durable.", project="a").id
    gone = memory.remember("The queue is durable.", project="b").id
    embed_all(memory, embedder)
    assert memory.forget(gone) == [gone]
    assert memory.forget(gone) == []
    assert [hit.id for hit in memory.search("queue durable")] == [kept]
