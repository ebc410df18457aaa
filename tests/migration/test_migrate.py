"""The migration runner: applies once, records, locks, compares, and refuses what it cannot trust."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from afterrun import schema
from afterrun.db import Database, connect
from afterrun.errors import DatabaseError, DatabaseUnavailableError, ModelMismatchError, SchemaError
from afterrun.store import Store
from afterrun.testing import HashEmbedder

SPEC = HashEmbedder().spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the migrations that a test may change."""
    copy = tmp_path / "migrations"
    shutil.copytree(schema.directory(), copy)
    return copy


def test_a_fresh_database_gets_everything_and_a_second_run_changes_nothing(empty_database_url: str) -> None:
    first = schema.migrate(empty_database_url, SPEC)
    assert first.changed
    assert "0001_memories.sql" in first.applied
    assert first.indexes == (schema.vector_index_name(SPEC.id),)
    second = schema.migrate(empty_database_url, SPEC)
    assert not second.changed
    with connect(empty_database_url) as connection:
        assert schema.pending(connection) == []


def test_an_unmigrated_database_says_what_to_run(empty_database_url: str) -> None:
    with connect(empty_database_url) as connection:
        assert "0001_memories.sql" in schema.pending(connection)
    with (
        Database(empty_database_url) as database,
        pytest.raises(SchemaError, match="afterrun migrate"),
        database.transaction() as connection,
    ):
        Store(connection).installation_id()


def test_a_changed_old_file_is_refused_by_name(empty_database_url: str, folder: Path) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    file = folder / "0001_memories.sql"
    file.write_text(file.read_text() + "\n-- changed\n")
    with pytest.raises(SchemaError, match=r"0001_memories\.sql was changed"):
        schema.migrate(empty_database_url, SPEC, folder=folder)


def test_line_endings_are_no_change(empty_database_url: str, folder: Path) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    file = folder / "0001_memories.sql"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert not schema.migrate(empty_database_url, SPEC, folder=folder).changed


def test_a_database_of_a_newer_version_is_refused(empty_database_url: str, folder: Path) -> None:
    newer = folder / "9999_from_the_future.sql"
    newer.write_text("CREATE TABLE future (id integer);")
    schema.migrate(empty_database_url, SPEC, folder=folder)
    newer.unlink()
    with pytest.raises(SchemaError, match=r"9999_from_the_future\.sql.*update afterrun"):
        schema.migrate(empty_database_url, SPEC, folder=folder)


def test_a_failing_file_leaves_nothing_behind(empty_database_url: str, folder: Path) -> None:
    (folder / "0002_broken.sql").write_text("CREATE TABLE half (id integer); SELECT no_such_function();")
    with pytest.raises(SchemaError, match="no_such_function"):
        schema.migrate(empty_database_url, SPEC, folder=folder)
    with connect(empty_database_url) as connection:
        assert connection.execute("SELECT to_regclass('half')").fetchone() == (None,)
        assert schema.pending(connection, folder)[0] == "0002_broken.sql"


def test_a_file_without_a_transaction_can_build_an_index_concurrently(empty_database_url: str, folder: Path) -> None:
    statement = "-- no-transaction\nCREATE INDEX CONCURRENTLY memories_by_category ON memories (category);"
    (folder / "0002_by_category.sql").write_text(statement)
    assert "0002_by_category.sql" in schema.migrate(empty_database_url, SPEC, folder=folder).applied


def test_a_function_is_applied_again_when_its_text_changes(empty_database_url: str, folder: Path) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    file = folder / "functions" / "memory_question.sql"
    file.write_text(file.read_text() + "\n-- tuned\n")
    assert schema.migrate(empty_database_url, SPEC, folder=folder).functions == ("functions/memory_question.sql",)


def test_the_words_of_memories_are_derived_again_when_what_a_word_is_changes(
    empty_database_url: str, folder: Path
) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    with connect(empty_database_url) as connection:
        connection.execute(
            "INSERT INTO memories (content, content_hash, search)"
            " SELECT text, text::bytea, memory_search_vector(text)"
            " FROM (SELECT 'Zebra ' || n AS text FROM generate_series(1, 2500) AS n) AS written"
        )
        file = folder / "functions" / "memory_words.sql"
        file.write_text(file.read_text().replace("plain text := content;", "plain text := replace(content, 'Z', 'G');"))
        schema.migrate(empty_database_url, SPEC, folder=folder)
        found = connection.execute("SELECT count(*) FROM memories WHERE search @@ 'gebra'").fetchone()
    assert found == (2500,)


def test_an_interrupted_derivation_starts_again(empty_database_url: str, folder: Path) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    with connect(empty_database_url) as connection:
        connection.execute("INSERT INTO memories (content, content_hash, search) VALUES ('one', '', '')")
        file = folder / "functions" / "memory_words.sql"
        file.write_text(file.read_text() + "\n-- changed\n")
        connection.execute("ALTER TABLE memories ADD CONSTRAINT stop CHECK (search = '') NOT VALID")
        with pytest.raises(DatabaseError):
            schema.migrate(empty_database_url, SPEC, folder=folder)
        connection.execute("ALTER TABLE memories DROP CONSTRAINT stop")
        assert "functions/memory_words.sql" in schema.migrate(empty_database_url, SPEC, folder=folder).functions
        assert connection.execute("SELECT search FROM memories").fetchone() == ("'one':1",)


@pytest.mark.parametrize("name", ["2_short.sql", "0002-dashes.sql", "0002_Upper.sql", "notes.sql"])
def test_a_name_that_is_no_migrations_name_is_refused(empty_database_url: str, folder: Path, name: str) -> None:
    (folder / name).write_text("SELECT 1")
    with pytest.raises(SchemaError, match=re.escape(name)):
        schema.migrate(empty_database_url, SPEC, folder=folder)


def test_migrations_are_numbered_without_gaps_or_doubles() -> None:
    numbers = [int(path.name[:4]) for path in sorted(schema.directory().glob("*.sql"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_two_runners_at_once_both_succeed_and_apply_once(empty_database_url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: schema.migrate(empty_database_url, SPEC), range(2)))
    assert sorted(len(result.applied) for result in results) == [0, len(list(schema.directory().glob("*.sql")))]


def test_a_runner_that_waits_too_long_says_so(empty_database_url: str) -> None:
    with connect(empty_database_url) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [0x41465445])
        with pytest.raises(SchemaError, match="another `afterrun migrate`"):
            schema.migrate(empty_database_url, SPEC, wait=0.2)


def test_an_interrupted_index_build_is_done_again(empty_database_url: str) -> None:
    schema.migrate(empty_database_url, SPEC)
    name = schema.vector_index_name(SPEC.id)
    with connect(empty_database_url) as connection:
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [name])
    assert schema.migrate(empty_database_url, SPEC).indexes == (name,)


def test_an_index_of_a_migration_whose_build_was_interrupted_is_built_again(
    empty_database_url: str, folder: Path
) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    build = "-- no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS by_category ON memories (category);"
    (folder / "9000_by_category.sql").write_text(build)
    with connect(empty_database_url) as connection:
        connection.execute(
            "INSERT INTO memories (content, content_hash, category, search)"
            " SELECT n::text, n::text::bytea, 'same', '' FROM generate_series(1, 2) AS n"
        )
        with pytest.raises(DatabaseError):
            schema.migrate(empty_database_url, SPEC, folder=folder)
        connection.execute("DELETE FROM memories WHERE content = '2'")
        schema.migrate(empty_database_url, SPEC, folder=folder)
        state = connection.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'by_category'::regclass")
        assert state.fetchone() == (True,)


def test_another_model_or_dimension_is_refused_by_name(empty_database_url: str) -> None:
    schema.migrate(empty_database_url, SPEC)
    for other in (replace(SPEC, id="other@torch"), replace(SPEC, dimension=768)):
        with pytest.raises(ModelMismatchError, match=re.escape(SPEC.id)):
            schema.migrate(empty_database_url, other)


def test_an_unreachable_server_is_an_error_within_the_timeout() -> None:
    with pytest.raises(DatabaseUnavailableError, match="cannot reach Postgres"):
        schema.migrate("postgresql://nobody:secret@127.0.0.1:1/none", SPEC)
    with pytest.raises(DatabaseUnavailableError) as caught:
        schema.migrate("postgresql://nobody:secret@127.0.0.1:1/none", SPEC)
    assert "secret" not in str(caught.value)


def test_a_role_that_is_no_superuser_migrates_once_the_extensions_are_there(
    empty_database_url: str, folder: Path
) -> None:
    with connect(empty_database_url) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("CREATE EXTENSION unaccent")
        connection.execute("CREATE ROLE tenant LOGIN")
        connection.execute("GRANT ALL ON SCHEMA public TO tenant")
        connection.execute(f"GRANT ALL ON DATABASE {connection.info.dbname} TO tenant".encode())
    tenant = urlunsplit(urlsplit(empty_database_url)._replace(netloc="tenant@"))
    try:
        assert schema.migrate(tenant, SPEC, folder=folder).changed
        file = folder / "functions" / "memory_candidates.sql"
        file.write_text(file.read_text() + "\n-- tuned\n")
        assert schema.migrate(tenant, SPEC, folder=folder).functions == ("functions/memory_candidates.sql",)
    finally:
        with connect(empty_database_url) as connection:
            connection.execute("DROP OWNED BY tenant CASCADE")
            connection.execute("DROP ROLE tenant")


def test_a_database_that_cannot_hold_any_text_is_refused(empty_database_url: str) -> None:
    with connect(empty_database_url) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(SchemaError, match="encoding is LATIN1"):
            schema.migrate(urlunsplit(urlsplit(empty_database_url)._replace(path="/latin")), SPEC)
    finally:
        with connect(empty_database_url) as connection:
            connection.execute("DROP DATABASE latin")


def test_a_schema_may_have_any_name(empty_database_url: str, folder: Path) -> None:
    with connect(empty_database_url) as connection:
        connection.execute('CREATE SCHEMA "My Memories"')
        path = f"ALTER DATABASE {connection.info.dbname} SET search_path = "
        connection.execute(f'{path} "My Memories", public'.encode())
    schema.migrate(empty_database_url, SPEC, folder=folder)
    file = folder / "functions" / "memory_hybrid_search.sql"
    file.write_text(file.read_text().replace("max_hits integer DEFAULT 20", "max_hits bigint DEFAULT 20"))
    schema.migrate(empty_database_url, SPEC, folder=folder)
    with connect(empty_database_url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_proc WHERE proname = 'memory_hybrid_search'").fetchone()
    assert found == (1,)


def test_what_was_being_written_while_words_changed_is_derived_again_too(empty_database_url: str, folder: Path) -> None:
    schema.migrate(empty_database_url, SPEC, folder=folder)
    file = folder / "functions" / "memory_words.sql"
    file.write_text(file.read_text().replace("plain text := content;", "plain text := replace(content, 'Z', 'G');"))
    with ThreadPoolExecutor(1) as pool, connect(empty_database_url) as connection:
        with connection.transaction():
            connection.execute(
                "INSERT INTO memories (content, content_hash, search)"
                " VALUES ('Zebra', '', memory_search_vector('Zebra'))"
            )
            migrating = pool.submit(schema.migrate, empty_database_url, SPEC, folder=folder)
            with pytest.raises(TimeoutError):
                migrating.result(timeout=1)
        migrating.result(timeout=30)
        assert connection.execute("SELECT search FROM memories").fetchone() == ("'gebra':1",)
