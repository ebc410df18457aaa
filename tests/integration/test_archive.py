"""Export and import: nothing is lost on the way, nothing doubled, no secret let in, no broken file half believed."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import pytest

from afterrun import archive, schema
from afterrun.archive import Imported, Pasted
from afterrun.archive.incoming import BATCH_LINES
from afterrun.client import Memory
from afterrun.db import Connection, connect
from afterrun.errors import EmbeddingError, InputError
from afterrun.index import index_message
from afterrun.judge import Similarity
from afterrun.local import Stack
from afterrun.models import Member, Verdict
from afterrun.settings import Settings
from afterrun.store import CopyFilter, Store, Work
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

NOW: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECRET: Final = "sk-ant-api03-" + "b" * 80
NOT_CARRIED: Final = {
    "api_keys": "secrets of one installation",
    "embedding_models": "the target has its own",
    "event_requests": "answers that one installation gave to requests",
    "heartbeats": "of the workers of one installation",
    "imports": "what was imported here",
    "installation": "which database this is",
    "schema_migrations": "the target has its own",
}
CARRIED: Final = {
    "chunks", "consolidations", "dead_letters", "memories", "session_windows", "source_files", "source_types", "spend",
}  # fmt: skip
SCRIPT: Final = """
import resource, sys
from pathlib import Path
from afterrun.client import Memory
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder
home = Path(sys.argv[2])
settings = Settings(home=home, run_store=home / "memory.db", database_url=sys.argv[1])
memory = Memory(settings=settings, embedder=HashEmbedder(path=sys.argv[3]))
"""
"""Opens the memory that `arguments` names, in a process of its own."""
_numbers = itertools.count(1)


class ScriptedJudge:
    """A judge that answers as the test says."""

    settles = True
    name = "scripted"

    def __init__(self, answer: Callable[[Sequence[Member]], Verdict]) -> None:
        self._answer = answer

    def judge(self, members: Sequence[Member], similarity: Similarity | None = None) -> Verdict:
        return self._answer(members)

    def most_tokens(self, members: Sequence[Member]) -> int:
        return 1000


@pytest.fixture
def fresh(servers: Stack, template: str, settings: Settings, embedder: HashEmbedder) -> Iterator[Memory]:
    """A memory on another database, migrated and empty."""
    name = f"imported_{next(_numbers)}"
    with connect(servers.database_url) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    url = urlunsplit(urlsplit(servers.database_url)._replace(path=f"/{name}"))
    with Memory(settings=replace(settings, database_url=url, redis_url=None), embedder=embedder) as memory:
        yield memory
    with connect(servers.database_url) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def exported(memory: Memory, **where: Any) -> bytes:
    stream = io.BytesIO()
    memory.export_to(stream, **where)
    return stream.getvalue()


def imported(memory: Memory, data: bytes) -> Imported:
    return memory.import_from(io.BytesIO(data))


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def joined(objects: Sequence[Mapping[str, Any]]) -> bytes:
    """Lines whose footer counts what stands between."""
    *body, footer = objects
    counts: dict[str, int] = {}
    for each in body[1:]:
        counts[each["record"]] = counts.get(each["record"], 0) + 1
    return b"".join(json.dumps(each).encode() + b"\n" for each in [*body, {**footer, "counts": counts}])


def rows(memory: Memory) -> dict[str, list[Any]]:
    """Everything in the database but what belongs to one installation, table by table, without numbers given by it."""
    found: dict[str, list[Any]] = {}
    with memory.database.transaction() as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
        ).fetchall()
        for (table,) in tables:
            if table in NOT_CARRIED:
                continue
            number = " - 'id'" if table in ("chunks", "dead_letters", "spend") else ""
            listed = connection.execute(f"SELECT (to_jsonb(t){number})::text FROM {table} t ORDER BY 1")
            found[table] = [row[0] for row in listed]
    return found


def embed(memory: Memory) -> None:
    while embed_pending(memory.database, memory.embedder, max_attempts=1).more:
        pass


def merged(memory: Memory, texts: Sequence[str], wording: str, *, project: str = "shop", age: int = 30) -> UUID:
    """Memories that were merged into one; its id."""
    ids = [
        memory.remember(text, project=project, created_at=NOW - timedelta(days=age - at)).id
        for at, text in enumerate(texts)
    ]
    return merge(memory, ids, wording)


def merge(memory: Memory, ids: Sequence[UUID], wording: str) -> UUID:
    judge = ScriptedJudge(lambda members: Verdict(same=tuple(each.id for each in members), wording=wording))
    with Memory(settings=memory.settings, embedder=memory.embedder, judge=judge) as judging:
        outcome = judging.consolidate(*ids)
    assert outcome.canonical is not None
    return outcome.canonical


def fill(memory: Memory) -> None:
    """One of everything that a database can hold."""
    first = merged(memory, ["Orders are in Postgres.", "We keep orders in Postgres."], "Orders are kept in Postgres.")
    second = merged(memory, ["Postgres holds all orders.", "Orders: Postgres."], "All orders are in Postgres.", age=20)
    merge(memory, [first, second], "Orders live in Postgres.")
    memory.undo(memory.history(merged(memory, ["Undone A.", "Undone B."], "Undone.")).consolidations[0].id)
    memory.forget(memory.remember("To be forgotten.").id)
    memory.remember(
        'Déjà vu — 日本語 \U0001f600 \\ " \n\ttab.', metadata={"n": 1.5, "deep": [{"a": None}]}, category="x"
    )
    memory.remember("A long one. " * 900, project="book", session="s", session_ordinal=3)
    memory.remember("Said twice.")
    memory.remember("Said twice.", importance=0.9)
    index_message(memory.database, {"repo": "shop", "summary": "A run.", "run_id": "7", "tags": ["a"]}, memory.chunker)
    index_message(memory.database, {"repo": "shop"}, memory.chunker)
    memory.summarize_session("We decided to use Valkey. The port is 6380.", project="shop", session="talk")
    with memory.database.transaction() as connection:
        Store(connection).propose([first, second], collection="memory", project="shop")
        connection.execute("UPDATE source_types SET weight = 3 WHERE source_type = 'fact'")
        connection.execute("DELETE FROM source_types WHERE source_type = 'debugging'")
        key = connection.execute("SELECT source_key FROM memories WHERE source_key IS NOT NULL LIMIT 1").fetchone()
        connection.execute(
            "INSERT INTO source_files (project, source, path, size, modified_ns, digest, reader, pieces)"
            " VALUES ('shop', 'docs', 'a.md', 1, 2, 'abc', 1, %s)",
            [list(key or ())],
        )
        work = Work(purpose="judge", project="shop", subject="c", model="m", run="r")
        for calls in (1, 1, 2):
            connection.execute(
                "INSERT INTO spend (at, purpose, project, run, subject, model, calls, input_tokens, output_tokens)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, 10, 5)",
                [NOW, work.purpose, work.project, work.run, work.subject, work.model, calls],
            )
    embed(memory)
    poisonous = HashEmbedder(path=memory.embedder.spec.path, fail_on=lambda text: "poison" in text)
    memory.remember("This is poison.")
    with pytest.raises(EmbeddingError):
        poisonous.encode(["poison"])
    embed_pending(memory.database, poisonous, max_attempts=1)
    memory.find_clusters()
    memory.remember("Not embedded yet.")


def test_what_goes_out_and_comes_in_is_the_same_table_by_table(memory: Memory, fresh: Memory) -> None:
    fill(memory)
    before = rows(memory)
    assert set(before) == CARRIED
    assert all(before.values())
    data = exported(memory)
    done = imported(fresh, data)
    assert done.memories.added == len(before["memories"])
    assert rows(fresh) == before
    assert lines(exported(fresh))[1:] == lines(data)[1:]


def test_the_same_file_again_changes_nothing(memory: Memory, fresh: Memory) -> None:
    fill(memory)
    data = exported(memory)
    imported(fresh, data)
    before = rows(fresh)
    again = imported(fresh, data)
    assert again.memories == Pasted(known=len(before["memories"]))
    assert not any(again.others.values())
    assert rows(fresh) == before
    assert imported(memory, data).memories.added == 0


def test_undo_works_on_the_other_side(memory: Memory, fresh: Memory) -> None:
    canonical = merged(memory, ["The port is 5432.", "Port: 5432."], "The port is 5432, always.")
    embed(memory)
    imported(fresh, exported(memory))
    (cluster,) = fresh.history(canonical).consolidations
    fresh.undo(cluster.id)
    assert fresh.status().memories.active == 2


def test_an_import_that_was_killed_goes_on_where_it_was(memory: Memory, fresh: Memory, tmp_path: Path) -> None:
    for number in range(5 * BATCH_LINES):
        memory.remember(f"Note {number}.", project="shop")
    fill(memory)
    data = exported(memory)
    script = SCRIPT + "memory.import_from(sys.stdin.buffer, on_progress=lambda line: print(line, flush=True))"
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments(fresh)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        feeding = threading.Thread(target=feed, args=(process.stdin, data))
        feeding.start()
        assert int(process.stdout.readline()) >= BATCH_LINES
        os.kill(process.pid, signal.SIGKILL)
        feeding.join()
    held = len(rows(fresh)["memories"])
    assert 0 < held < 5 * BATCH_LINES
    done = imported(fresh, data)
    assert done.memories.known >= BATCH_LINES - 2
    assert rows(fresh) == rows(memory)


def arguments(memory: Memory) -> list[str]:
    """What SCRIPT wants."""
    return [str(memory.settings.database_url), str(memory.settings.home), memory.embedder.spec.path]


def feed(stream: Any, data: bytes) -> None:
    """All but the end of the data, so that the reader cannot come to it before it is killed."""
    try:
        stream.write(data[: len(data) // 2])
        stream.flush()
    except BrokenPipeError:
        pass


def test_two_imports_of_one_file_at_once_double_nothing(memory: Memory, fresh: Memory) -> None:
    fill(memory)
    data = exported(memory)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            imported(fresh, data)
        except BaseException as error:  # noqa: BLE001 - a thread's error is the test's
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [json.loads(row)["id"] for row in rows(fresh)["memories"]] == [
        json.loads(row)["id"] for row in rows(memory)["memories"]
    ]


def test_secrets_and_private_parts_of_a_foreign_file_stay_outside(memory: Memory, fresh: Memory) -> None:
    note = memory.remember("A harmless text that stays.", metadata={"k": "v"})
    other = memory.remember("Another one, left alone.")
    hidden = memory.remember("All of this becomes private.")
    chunked = memory.remember("The text is fine, its chunk is not.")
    embed(memory)
    objects = lines(exported(memory))
    for line in objects:
        if line.get("id") == str(note.id):
            line["content"] = f"The key is {SECRET} and <private>my diary</private> more."
            line["metadata"] = {"log": "password=hunter2hunter2"}
        if line.get("id") == str(hidden.id):
            line["content"] = "<private>All of this becomes private.</private>"
        if line.get("id") == str(chunked.id):
            line["chunks"][0]["content"] = f"token {SECRET}"
    done = imported(fresh, joined(objects))
    assert done.memories == Pasted(added=3, redacted=2, pending=2, empty=1)
    everything = "\n".join(row for table in rows(fresh).values() for row in table)
    for secret in ("bbbb", "diary", "hunter2", "becomes private"):
        assert secret not in everything
    with fresh.database.transaction() as connection:
        waiting = connection.execute("SELECT memory_id FROM chunks WHERE embedding IS NULL ORDER BY 1").fetchall()
    assert [row[0] for row in waiting] == sorted([note.id, chunked.id])
    assert fresh.get(other.id)[0].content == "Another one, left alone."


def test_vectors_of_another_model_are_left_behind_and_made_anew(
    memory: Memory, empty_database_url: str, settings: Settings
) -> None:
    note = memory.remember("Orders are in Postgres.")
    memory.remember("A long one. " * 900)
    embed(memory)
    small = HashEmbedder(64, path=memory.embedder.spec.path)
    schema.migrate(empty_database_url, small.spec)
    with Memory(settings=replace(settings, database_url=empty_database_url), embedder=small) as target:
        done = imported(target, exported(memory))
        assert done.memories == Pasted(added=2, pending=2)
        with target.database.transaction() as connection:
            models = connection.execute("SELECT DISTINCT model, embedding IS NULL FROM chunks").fetchall()
        assert models == [(small.spec.id, True)]
        assert target.search("orders postgres", min_results=0)[0].id == note.id
        embed(target)
        assert target.search("orders postgres", min_results=0)[0].vector is not None


def test_a_filter_by_project_and_time_brings_the_whole_lineage(memory: Memory, fresh: Memory) -> None:
    kept = memory.remember("Of shop, new.", project="shop", created_at=NOW)
    memory.remember("Of shop, old.", project="shop", created_at=NOW - timedelta(days=90))
    memory.remember("Of another.", project="garden", created_at=NOW)
    canonical = merged(memory, ["The port is 5432.", "Port: 5432."], "The port is 5432, always.", age=30)
    embed(memory)
    data = exported(memory, projects=["shop"], since=NOW - timedelta(days=29), until=NOW + timedelta(days=1))
    body = [line for line in lines(data) if line["record"] == "memory"]
    originals = {str(each.memory.id) for each in memory.history(canonical).originals}
    assert len(originals) == 2
    assert {line["id"] for line in body} == {str(kept.id), str(canonical), *originals}
    assert lines(data)[0]["filter"]["projects"] == ["shop"]
    imported(fresh, data)
    assert len(fresh.history(canonical).originals) == 2
    fresh.undo(fresh.history(canonical).consolidations[0].id)
    assert fresh.status().memories.active == 3
    assert exported(memory, projects=["nobody"]).count(b'"record":"memory"') == 0


def test_what_is_here_already_stays_as_it_is(memory: Memory, fresh: Memory) -> None:
    run = {"repo": "shop", "summary": "A run.", "run_id": "7"}
    for each in (memory, fresh):
        index_message(each.database, run, each.chunker)
    note, repeated = memory.remember("Said here and there."), fresh.remember("Said here and there.")
    own = fresh.remember("Only here.")
    embed(memory)
    embed(fresh)
    with fresh.database.transaction() as connection:
        connection.execute("UPDATE source_types SET weight = 9 WHERE source_type = 'fact'")
        connection.execute("UPDATE memories SET compared_at = now()")
    with memory.database.transaction() as connection:
        connection.execute("UPDATE memories SET compared_at = now()")
        connection.execute("INSERT INTO source_types VALUES ('recipe', 10, 2)")
    done = imported(fresh, exported(memory))
    assert done.memories == Pasted(added=1, repeated=1, known=1)
    assert done.others["source_types"] == 1
    assert (fresh.get(note.id)[0].superseded_by, fresh.get(repeated.id)[0].seen) == (repeated.id, 2)
    assert fresh.get(own.id)[0].is_active
    assert fresh.status().memories.active == 3
    assert imported(fresh, exported(memory)).memories.added == 0
    assert fresh.get(repeated.id)[0].seen == 2
    types = {json.loads(row)["source_type"]: json.loads(row)["weight"] for row in rows(fresh)["source_types"]}
    assert (types["fact"], types["recipe"]) == (9, 2)


def test_what_comes_into_a_used_database_is_compared_with_what_is_there(memory: Memory, fresh: Memory) -> None:
    note = memory.remember("Orders are in Postgres.")
    embed(memory)
    memory.find_clusters()
    fresh.remember("Another one.")
    imported(fresh, exported(memory))
    with fresh.database.transaction() as connection:
        row = connection.execute("SELECT compared_at FROM memories WHERE id = %s", [note.id]).fetchone()
    assert row == (None,)


def test_a_memory_finds_its_successor_where_that_one_has_another_id(memory: Memory, fresh: Memory) -> None:
    run = {"repo": "shop", "summary": "The port is 5433 now.", "run_id": "8"}
    for each in (memory, fresh):
        index_message(each.database, run, each.chunker)
    newer, there = (each.search("port", min_results=1)[0].id for each in (memory, fresh))
    older = memory.remember("The port is 5432.", project="shop", created_at=NOW - timedelta(days=90))
    judge = ScriptedJudge(lambda members: Verdict(superseded={older.id: newer}))
    with Memory(settings=memory.settings, embedder=memory.embedder, judge=judge) as judging:
        judging.consolidate(older.id, newer)
    imported(fresh, exported(memory))
    assert fresh.get(older.id)[0].superseded_by == there != newer


def test_a_memory_whose_successor_is_nowhere_stays_out_of_recall_and_says_so(memory: Memory, fresh: Memory) -> None:
    memory.remember("Replaced by something.")
    objects, gone = lines(exported(memory)), str(uuid4())
    for line in objects:
        if line["record"] == "memory":
            line |= {"is_active": False, "superseded_by": gone}
    imported(fresh, joined(objects))
    (row,) = (json.loads(row) for row in rows(fresh)["memories"])
    assert (row["is_active"], row["superseded_by"], row["metadata"]) == (False, None, {"superseded_by": gone})


Change = Callable[[list[dict[str, Any]]], object]


def broken_vector(line: dict[str, Any], data: bytes) -> None:
    line["chunks"][0]["embedding"] = base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda objects: objects[0].update(version=99), "version '99'.*update afterrun"),
        (lambda objects: objects[0].update(format="other"), "line 1 is no header"),
        (lambda objects: objects.pop(0), "line 1 is no header"),
        (lambda objects: objects[2].update(id="x"), "line 3 .*UUID"),
        (lambda objects: objects[2].update(created_at="yesterday"), "line 3 .*created_at: .*ISO 8601"),
        (lambda objects: objects[2].update(surprise=1), "line 3 .*does not know"),
        (lambda objects: objects[2].pop("seen"), "line 3 .*no seen"),
        (lambda objects: objects[2].update(seen="often"), "line 3 .*seen: it is int"),
        (lambda objects: objects[2].update(collection="books"), "line 3 .*collection"),
        (lambda objects: objects[2].update(project=""), "line 3 .*project"),
        (lambda objects: objects[2].update(importance=7), "line 3 is refused"),
        (lambda objects: objects[2].update(source_key="".join(str(uuid4()) for _ in range(300))), "line 3 is refused"),
        (lambda objects: objects[2].update(chunks=[{}]), "line 3 .*chunks"),
        (lambda objects: broken_vector(objects[2], b"short"), "line 3 .*a vector has 5 bytes"),
        (lambda objects: broken_vector(objects[2], b"\xff\x7f" * 384), "line 3 .*not finite"),
        (lambda objects: objects.insert(2, {"record": "song"}), "line 3 .*kind"),
        (lambda objects: objects.insert(2, objects[0]), "line 3 .*no place"),
        (lambda objects: objects.append(objects[2]), "comes after the footer"),
        (lambda objects: objects[-1].update(counts={"memory": 5}), "counts other records"),
        (lambda objects: objects.pop(), "without its footer"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(
    memory: Memory, fresh: Memory, change: Change, message: str
) -> None:
    for number in range(3):
        memory.remember(f"Note {number}.")
    embed(memory)
    data = exported(memory)
    objects = lines(data)
    change(objects)
    with pytest.raises(InputError, match=message):
        imported(fresh, b"".join(json.dumps(line).encode() + b"\n" for line in objects))
    imported(fresh, data)
    assert rows(fresh)["memories"] == rows(memory)["memories"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "line 1"),
        (lambda data: b"\x00\x01\x02" * 99, "line 1 is no JSON"),
        (lambda data: data[:-40], "it was cut"),
        (lambda data: data[: len(data) // 2], "it was cut"),
        (lambda data: data.replace(b'"record":"memory"', b'"record":"memory', 1), "line 3 is no JSON"),
        (lambda data: data.replace(b"Note 1", b"Note \xff", 1), "line 4 is no JSON"),
        (lambda data: data.replace(b'"metadata":{}', b'"metadata":' + b"[" * 100_000, 1), "line 3 is no JSON"),
        (lambda data: data.replace(b"\n", b"\n[]\n", 1), "line 2 is no record"),
        (lambda data: gzip.compress(data)[:-20], "cut or broken"),
        (lambda data: gzip.compress(data)[:200] + b"\x00" * 200, "cut or broken"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(
    memory: Memory, fresh: Memory, damage: Callable[[bytes], bytes], message: str
) -> None:
    for number in range(3):
        memory.remember(f"Note {number}.")
    with pytest.raises(InputError, match=message) as error:
        imported(fresh, damage(exported(memory)))
    assert "Note" not in str(error.value)


def test_of_a_cut_file_whole_batches_are_kept_and_the_rest_comes_later(memory: Memory, fresh: Memory) -> None:
    for number in range(2 * BATCH_LINES):
        memory.remember(f"Note {number}.")
    data = exported(memory)
    cut = b"\n".join(data.split(b"\n")[: BATCH_LINES + 50])
    with pytest.raises(InputError, match=f"lines 1 to {BATCH_LINES + 1} are imported"):
        imported(fresh, cut + b'\n{"record":')
    assert len(rows(fresh)["memories"]) == BATCH_LINES - 1
    imported(fresh, data)
    assert rows(fresh) == rows(memory)


def test_a_file_is_compressed_by_its_name_private_and_replaced_only_as_a_whole(
    memory: Memory, fresh: Memory, tmp_path: Path
) -> None:
    memory.remember("A note.")
    plain, packed = tmp_path / "memories.jsonl", tmp_path / "memories.jsonl.gz"
    for file in (plain, packed):
        memory.export_to(file)
        assert file.stat().st_mode & 0o077 == 0
    assert lines(gzip.decompress(packed.read_bytes()))[1:] == lines(plain.read_bytes())[1:]
    assert fresh.import_from(packed).memories.added == 1
    before = plain.read_bytes()
    with pytest.raises(InputError, match="ISO 8601"):
        memory.export_to(plain, since="yesterday")
    with pytest.raises(ValueError, match="half"):
        write_half(plain)
    assert plain.read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("*memories*")) == [plain.name, packed.name]
    with pytest.raises(InputError, match="cannot be written"):
        memory.export_to(tmp_path / "no" / "folder.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        memory.import_from(tmp_path / "nothing.jsonl")


def test_an_export_shows_one_moment_while_others_write(memory: Memory, fresh: Memory) -> None:
    first = memory.remember("There from the beginning.")
    stream = io.BytesIO()

    def meanwhile(expected: int) -> None:
        memory.remember("Written during the export.")
        memory.forget(first.id)

    archive.export_memories(memory.database, stream, CopyFilter(), on_start=meanwhile)
    imported(fresh, stream.getvalue())
    (row,) = (json.loads(row) for row in rows(fresh)["memories"])
    assert (row["content"], row["is_active"]) == ("There from the beginning.", True)


def write_half(path: Path) -> None:
    with archive.replaced(path) as stream:
        stream.write(b"half")
        raise ValueError("half is written")


def test_the_commands_keep_data_and_messages_apart(memory: Memory, fresh: Memory, tmp_path: Path) -> None:
    memory.remember("A note.")
    sent = command(memory, "export", "-")
    assert (sent.returncode, len(lines(sent.stdout))) == (0, 4)
    assert sent.stderr.decode() == "exported: 1 source types, 1 memory\n"
    received = command(fresh, "import", "--json", stdin=sent.stdout)
    assert (received.returncode, json.loads(received.stdout)["memories"]["added"]) == (0, 1)
    told = command(memory, "export", "--json", str(tmp_path / "a.jsonl.gz"))
    assert json.loads(told.stdout)["counts"]["memory"] == 1
    refused = command(fresh, "import", "-", stdin=b"{}")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.startswith(b"error: line 1 ")


def command(memory: Memory, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command on the memory's database, with a model of the same name and length of vectors."""
    # The tests' database holds vectors of a model that no settings can name, so the command runs with that one.
    script = (
        SCRIPT + "from afterrun.serve import cli; from afterrun.serve.cli import archives\n"
        "archives.open_memory = lambda: memory\nsys.argv = ['afterrun', *sys.argv[4:]]\ncli.main()"
    )
    return subprocess.run([sys.executable, "-c", script, *arguments(memory), *words], input=stdin, capture_output=True)


@pytest.mark.slow
def test_memory_stays_flat_both_ways(memory: Memory, fresh: Memory, tmp_path: Path) -> None:
    peaks: list[tuple[int, int]] = []
    for count in (1_000, 8_000):
        for each in (memory, fresh):
            with each.database.transaction() as connection:
                # Most of the time of a large import goes into this index, and none of its memory is ours.
                connection.execute(f"DROP INDEX IF EXISTS {schema.vector_index_name(memory.embedder.spec.id)}")
                connection.execute("TRUNCATE memories CASCADE")
        with memory.database.transaction() as connection:
            insert_many(connection, count, memory.embedder.spec.id)
        file = tmp_path / f"{count}.jsonl"
        peaks.append((peak(memory, "export_to", file), peak(fresh, "import_from", file)))
        assert fresh.status().memories.active == count
    for small, large in zip(*peaks, strict=True):
        assert large < small + 16_000


def insert_many(connection: Connection, count: int, model: str) -> None:
    connection.execute(
        "INSERT INTO memories (content, content_hash, search)"
        " SELECT 'Note ' || n || ' says ' || md5(n::text), sha256(n::text::bytea), to_tsvector('simple', 'note')"
        " FROM generate_series(1, %s) n",
        [count],
    )
    connection.execute(
        "INSERT INTO chunks (memory_id, model, ordinal, content, embedding, collection, project, is_active)"
        " SELECT id, %s, 0, content, (SELECT array_agg(random())"
        " FROM generate_series(1, 384) WHERE m.id IS NOT NULL)::halfvec, collection, project, true FROM memories m",
        [model],
    )


def peak(memory: Memory, method: str, file: Path) -> int:
    """Kilobytes that a process of its own held at most while it ran a method on a file."""
    script = SCRIPT + f"memory.{method}(sys.argv[4]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    return int(subprocess.check_output([sys.executable, "-c", script, *arguments(memory), str(file)]))
