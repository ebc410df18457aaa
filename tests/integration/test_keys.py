"""API keys: hashed, checked, revoked; and that a key neither reads nor writes outside its projects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from afterrun import keys
from afterrun.client import GuardedMemory, Memory
from afterrun.db import Database
from afterrun.errors import ForbiddenError, InputError, NotFoundError, UnauthenticatedError
from afterrun.keys import Principal
from afterrun.store import SearchFilter

PROJECTS: Final = ("shop", "bank", "global", " shop ")
QUESTIONS: Final = ("", "note", "bank vault", "note of the bank", "\x00", "%")


def row(database: Database, key: str, column: str) -> Any:
    with database.transaction() as connection:
        found = connection.execute(f"SELECT {column} FROM api_keys WHERE id = %s".encode(), [key]).fetchone()
    assert found
    return found[0]


def test_a_key_lets_in_with_its_scopes_and_projects(database: Database) -> None:
    made, token = keys.create(database, "ci", scopes=("write",), projects=("shop", " bank "))
    assert keys.check(database, token) == Principal(
        key_id=made.id, scopes=frozenset({"write"}), projects=frozenset({"shop", "bank"})
    )
    assert (made.name, made.projects, made.revoked_at) == ("ci", ["bank", "shop"], None)


def test_the_database_holds_nothing_that_the_token_could_be_made_from(database: Database) -> None:
    made, token = keys.create(database, "ci")
    secret = token.rsplit("_", 1)[1]
    with database.transaction() as connection:
        text = str(connection.execute("SELECT row_to_json(k)::text FROM api_keys k").fetchone())
    assert secret not in text
    assert made.id in text
    assert secret not in repr(keys.listed(database))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"),
        lambda token: token.replace("ark_", "ark_f", 1),
        lambda token: f"ark_{uuid4().hex[:12]}_{token.rsplit('_', 1)[1]}",
        lambda token: token.upper(),
        lambda token: token + "\n",
        lambda token: token.replace("a", "\u0430"),
        lambda token: "\x00" + token,
    ],
)
def test_nearly_the_token_does_not_let_in(database: Database, spoil: Callable[[str], str]) -> None:
    made, token = keys.create(database, "ci")
    with pytest.raises(UnauthenticatedError) as refused:
        keys.check(database, spoil(token))
    assert made.id not in str(refused.value)
    assert token.rsplit("_", 1)[1] not in str(refused.value)


def test_a_revoked_key_is_refused_at_once_and_stays_listed(database: Database) -> None:
    made, token = keys.create(database, "ci")
    keys.check(database, token)
    revoked = keys.revoke(database, made.id)
    with pytest.raises(UnauthenticatedError, match="revoked"):
        keys.check(database, token)
    assert keys.revoke(database, made.id).revoked_at == revoked.revoked_at is not None
    assert [key.id for key in keys.listed(database)] == [made.id]
    with pytest.raises(NotFoundError, match="key list"):
        keys.revoke(database, "0" * 12)


def test_an_expired_key_is_refused(database: Database) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    _, token = keys.create(database, "old", expires_at=long_ago + timedelta(days=1), now=lambda: long_ago)
    with pytest.raises(UnauthenticatedError, match="expired"):
        keys.check(database, token)
    with pytest.raises(InputError, match="later"):
        keys.create(database, "old", expires_at=long_ago)


def test_use_is_recorded_at_most_once_a_minute(database: Database) -> None:
    made, token = keys.create(database, "ci")
    assert made.last_used_at is None
    keys.check(database, token)
    first = row(database, made.id, "last_used_at")
    keys.check(database, token)
    assert row(database, made.id, "last_used_at") == first
    with database.transaction() as connection:
        connection.execute("UPDATE api_keys SET last_used_at = now() - interval '2 minutes'")
    keys.check(database, token)
    assert row(database, made.id, "last_used_at") >= first


def test_once_a_key_was_made_keys_are_asked_for_even_when_all_are_revoked(database: Database) -> None:
    assert not keys.any_made(database)
    made, _ = keys.create(database, "ci")
    keys.revoke(database, made.id)
    assert keys.any_made(database)


@pytest.mark.parametrize(
    "fields",
    [{"scopes": ()}, {"scopes": ("root",)}, {"projects": ("",)}, {"projects": ("x" * 301,)}, {"name": " "}],
)
def test_a_key_that_cannot_be_meant_is_refused(database: Database, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        keys.create(database, **{"name": "ci", **fields})
    assert keys.listed(database) == []


def test_admin_includes_the_other_scopes_but_no_other_project() -> None:
    admin = Principal(scopes=frozenset({"admin"}), projects=frozenset({"shop"}))
    assert admin.may("read")
    assert admin.may("write")
    assert not admin.may_read("bank")
    reader = Principal(scopes=frozenset({"read"}))
    with pytest.raises(ForbiddenError, match="--scope write"):
        reader.require("write")


def test_the_shared_project_is_read_by_default_and_written_only_by_name() -> None:
    shop = Principal(projects=frozenset({"shop"}))
    assert (shop.readable, shop.may_write("global")) == (("global", "shop"), False)
    assert Principal(projects=frozenset({"shop"}), reads_global=False).readable == ("shop",)
    assert Principal(projects=frozenset({"shop", "global"}), reads_global=False).may_read("global")
    assert Principal(projects=frozenset({"shop", "global"})).may_write("global")


def test_a_search_is_narrowed_also_where_it_names_projects_itself() -> None:
    shop = Principal(projects=frozenset({"shop"}), reads_global=False)
    assert shop.narrowed(SearchFilter()).projects == ("shop",)
    assert shop.narrowed(SearchFilter(projects=("bank", "shop"))).projects == ("shop",)
    assert shop.narrowed(SearchFilter(projects=("bank",))).projects == ()
    assert Principal().narrowed(SearchFilter(projects=("bank",))).projects == ("bank",)
    with pytest.raises(ForbiddenError, match="'bank'"):
        shop.narrowed(SearchFilter(project="bank"))


@pytest.fixture
def notes(memory: Memory) -> dict[str, UUID]:
    """A note in each project, by project."""
    return {project: memory.remember(f"A note of the {project} vault.", project=project).id for project in
            ("shop", "bank", "global")}  # fmt: skip


def filters() -> Iterator[dict[str, Any]]:
    """Every combination of filters that a search has."""
    choices: dict[str, tuple[Any, ...]] = {
        "project": (None, *PROJECTS, ""),
        "only_project": (False, True),
        "collections": (None, ("memory",)),
        "source_types": (None, ("fact",)),
        "since": (None, "2020-01-01"),
        "projects": (None, ("bank",), ("bank", "shop"), ()),
        "min_results": (0, 5),
    }
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


@pytest.mark.parametrize(
    ("projects", "reads_global", "readable"),
    [
        (("shop",), True, {"shop", "global"}),
        (("shop",), False, {"shop"}),
        (("bank", "global"), True, {"bank", "global"}),
    ],
)
def test_no_combination_of_filters_finds_another_project(
    memory: Memory, notes: dict[str, UUID], projects: tuple[str, ...], reads_global: bool, readable: set[str]
) -> None:
    guarded = GuardedMemory(memory, Principal(projects=frozenset(projects), reads_global=reads_global))
    seen: set[str] = set()
    refused = 0
    for where, question in zip(filters(), itertools.cycle(QUESTIONS)):
        try:
            found = guarded.search(question, **where)
            found += list(guarded.recall(question, explain=True, **where).hits)
        except ForbiddenError:
            assert (where["project"] or "").strip() not in readable or where["project"] != where["project"].strip()
            refused += 1
            continue
        except InputError:
            assert where["only_project"]
            continue
        seen |= {hit.project for hit in found}
    assert seen == readable
    assert refused


def test_by_id_another_projects_memory_is_as_unknown_as_no_memory(memory: Memory, notes: dict[str, UUID]) -> None:
    guarded = GuardedMemory(memory, Principal(projects=frozenset({"shop"})))
    nobody = uuid4()
    assert [found.project for found in guarded.get(notes["shop"])] == ["shop"]
    for call in (guarded.get, guarded.forget, guarded.history):
        with pytest.raises(NotFoundError) as hidden:
            call(notes["bank"])
        with pytest.raises(NotFoundError) as unknown:
            call(nobody)
        assert str(hidden.value).replace(str(notes["bank"]), "") == str(unknown.value).replace(str(nobody), "")
    with pytest.raises(NotFoundError) as both:
        guarded.get(notes["shop"], notes["bank"], nobody)
    assert str(notes["bank"]) in str(both.value)
    assert all(found.is_active for found in memory.get(*notes.values()))


def test_forgetting_is_all_or_nothing_and_needs_a_project_that_may_be_written(
    memory: Memory, notes: dict[str, UUID]
) -> None:
    guarded = GuardedMemory(memory, Principal(projects=frozenset({"shop"})))
    with pytest.raises(ForbiddenError, match="global"):
        guarded.forget(notes["shop"], notes["global"])
    assert memory.get(notes["shop"])[0].is_active
    assert guarded.forget(notes["shop"]) == [notes["shop"]]


def test_writing_is_bound_to_the_keys_projects_however_the_name_is_spelled(memory: Memory) -> None:
    guarded = GuardedMemory(memory, Principal(projects=frozenset({"shop"})))
    assert guarded.remember("A note.", project=" shop\x00 ").created
    for project in ("bank", " bank", "global", "SHOP", "shop/bank"):
        with pytest.raises(ForbiddenError):
            guarded.remember("A note.", project=project)
        with pytest.raises(ForbiddenError):
            guarded.summarize_session("We decided to use Postgres.", project=project)
    with pytest.raises(ForbiddenError):
        guarded.remember("A note for all.")
    assert memory.status().memories.projects == 1


def test_counts_tell_nothing_of_other_projects(memory: Memory, notes: dict[str, UUID]) -> None:
    shop = GuardedMemory(memory, Principal(projects=frozenset({"shop"}), reads_global=False)).status()
    assert (shop.memories.active, shop.memories.projects, shop.pending_chunks) == (1, 1, 1)
    reader = GuardedMemory(memory, Principal(scopes=frozenset({"read"}))).status()
    assert reader.memories.active == 3
    assert not hasattr(reader, "run_stores")
    assert hasattr(GuardedMemory(memory).status(), "run_stores")


def test_each_verb_needs_its_scope(memory: Memory, notes: dict[str, UUID]) -> None:
    reader = GuardedMemory(memory, Principal(scopes=frozenset({"read"})))
    writer = GuardedMemory(memory, Principal(scopes=frozenset({"write"})))
    refused: tuple[Callable[[], object], ...] = (
        lambda: reader.remember("A note."),
        lambda: reader.forget(notes["shop"]),
        lambda: reader.summarize_session("We decided."),
        lambda: writer.search("note"),
        lambda: writer.recall("note"),
        lambda: writer.get(notes["shop"]),
        lambda: writer.history(notes["shop"]),
        lambda: writer.status(),
    )
    for call in refused:
        with pytest.raises(ForbiddenError, match="scope"):
            call()


def test_what_explain_lists_as_withheld_is_of_the_keys_projects_too(memory: Memory) -> None:
    for project in ("shop", "bank"):
        memory.remember(f"The vault of the {project} opens at nine.", project=project, source_type="fact")
    found = memory.recall("vault", projects=["shop"], source_types=["decision"], explain=True)
    assert {hit.project for hit in found.hits} == set()
    assert [withheld.hit.project for withheld in found.withheld] == ["shop"]
