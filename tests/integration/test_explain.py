"""What explains a search: what was withheld by filters, and how Postgres ran it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import pytest

from afterrun.client import Memory
from afterrun.db import connect
from afterrun.errors import DatabaseError
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

NOW = datetime.now(UTC)


def embed_all(memory: Memory, embedder: HashEmbedder) -> None:
    while embed_pending(memory.database, embedder).more:
        pass


@pytest.fixture
def mixed(memory: Memory, embedder: HashEmbedder) -> Memory:
    """Five notes on one topic that differ in what filters look at."""
    memory.remember("The port of the gateway is 8080.", project="shop")
    memory.remember("The port of the gateway was 8081.", project="shop", created_at=NOW - timedelta(days=400))
    memory.remember("The port of the gateway is never 9000.", project="shop", source_type="decision")
    memory.remember("The port of the gateway is documented.", project="shop", collection="docs")
    memory.remember("The port of the gateway is 7070.", project="bank")
    embed_all(memory, embedder)
    return memory


def test_explain_lists_what_each_filter_withheld(mixed: Memory) -> None:
    found = mixed.recall(
        "port of the gateway",
        project="shop",
        only_project=True,
        collections=["memory"],
        source_types=["fact"],
        since=NOW - timedelta(days=30),
        explain=True,
    )
    assert [hit.content for hit in found.hits] == ["The port of the gateway is 8080."]
    assert {entry.hit.content: entry.reason for entry in found.withheld} == {
        "The port of the gateway was 8081.": "filter: since",
        "The port of the gateway is never 9000.": "filter: source_types",
        "The port of the gateway is documented.": "filter: collections",
        "The port of the gateway is 7070.": "filter: only_project",
    }


def test_explain_names_every_filter_that_a_memory_fails_and_keeps_the_order_of_the_search(mixed: Memory) -> None:
    until = NOW - timedelta(days=30)
    found = mixed.recall("port of the gateway", source_types=["debugging"], until=until, explain=True)
    assert found.hits == ()
    reasons = {entry.reason for entry in found.withheld}
    assert reasons == {"filter: source_types", "filter: source_types, until"}
    unfiltered = [hit.id for hit in mixed.search("port of the gateway")]
    assert [entry.hit.id for entry in found.withheld] == unfiltered


def test_without_hard_filters_or_without_explain_no_filter_withholds(mixed: Memory) -> None:
    assert mixed.recall("port of the gateway", project="shop", explain=True).withheld == ()
    assert mixed.recall("port of the gateway", project="shop", only_project=True).withheld == ()


def test_a_searchs_plans_show_both_indexes_inside_of_the_function(memory: Memory, embedder: HashEmbedder) -> None:
    for number in range(300):
        memory.remember(f"Ledger{number} has a retry budget of {number % 7}.")
    embed_all(memory, embedder)
    with connect(memory.settings.require_database()) as connection:
        connection.execute("ANALYZE")
        # So few rows would sooner be scanned and sorted.
        for way in ("seqscan", "sort"):
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET enable_{way} = off".encode())
    memory.close()
    plans = "\n".join(memory.search_plans("ledger42 or ledger43?"))
    assert "FROM memory_hybrid_search(" in plans
    assert "Index Scan using chunks_hnsw_" in plans
    assert "Bitmap Index Scan on memories_search" in plans
    assert "actual time=" in plans
    assert "Buffers: shared hit=" in plans
    assert "'[…]'::halfvec" in plans, "vectors would fill the screen"
    assert len(memory.search("ledger42 or ledger43?")) == 20


def test_a_role_that_may_not_see_plans_is_told_what_to_do(memory: Memory) -> None:
    url = memory.settings.require_database()
    with connect(url) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    reader = urlunsplit(urlsplit(url)._replace(netloc="reader@"))
    try:
        with Memory(database_url=reader, settings=memory.settings, embedder=memory.embedder) as limited:
            assert limited.search("anything") == []
            with pytest.raises(DatabaseError, match="use a superuser, or have one put auto_explain"):
                limited.search_plans("anything")
            assert limited.search("anything") == []
    finally:
        with connect(url) as connection:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")
