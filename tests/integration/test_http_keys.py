"""Who may come in over HTTP: every route, kind of key and project, tried against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pytest
from http_server import Answer, Client, ServerThread

from afterrun import keys
from afterrun.client import Memory
from afterrun.serve.http.options import Limits
from afterrun.serve.http.service import Service

PROJECTS: Final = ("shop", "bank", "global")

KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "shop": {"projects": ("shop",)},
    "shop without global": {"projects": ("shop",), "reads_global": False},
    "shop, read": {"projects": ("shop",), "scopes": ("read",)},
    "shop, write": {"projects": ("shop",), "scopes": ("write",)},
    "shop, admin": {"projects": ("shop",), "scopes": ("admin",)},
    "bank and global": {"projects": ("bank", "global")},
    "all": {},
    "all, read": {"scopes": ("read",)},
    "all, write": {"scopes": ("write",)},
    "all, admin": {"scopes": ("admin",)},
}


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What a kind of key may do, worked out anew from the words of docs/http.md."""

    scopes: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]

    @classmethod
    def of(cls, kind: Mapping[str, Any]) -> Rights:
        scopes = set(kind.get("scopes", ("read", "write")))
        listed = frozenset(kind.get("projects", ())) or frozenset(PROJECTS)
        shared = {"global"} if kind.get("reads_global", True) else set()
        return cls(
            scopes=frozenset(scopes | ({"read", "write"} if "admin" in scopes else set())),
            reads=listed | shared,
            writes=listed,
        )


Call = Callable[[Client, str, str], Answer]
"""A request about a project, and the id of a memory there."""

READS_BY_NAME: Final[Mapping[str, Call]] = {
    "recall": lambda client, project, _: client.post("/api/memory/recall", {"query": "vault", "project": project}),
    "search": lambda client, project, _: client.post("/api/memory/search", {"query": "vault", "project": project}),
    "recall only": lambda client, project, _: client.post(
        "/api/memory/recall", {"query": "", "project": project, "only_project": True, "explain": True}
    ),
    "search only": lambda client, project, _: client.post(
        "/api/memory/search", {"query": "vault", "project": project, "only_project": True, "source_types": ["fact"]}
    ),
}
WRITES_BY_NAME: Final[Mapping[str, Call]] = {
    "remember": lambda client, project, _: client.post("/api/memory/remember", {"content": "A.", "project": project}),
    "event": lambda client, project, _: client.post("/api/memory/event", {"content": "B.", "project": project}),
    "batch": lambda client, project, _: client.post(
        "/api/memory/event", [{"content": "C.", "project": "shop"}, {"content": "D.", "project": project}]
    ),
}
WITHOUT_A_NAME: Final[Mapping[str, Call]] = {
    "recall all": lambda client, _, __: client.post(
        "/api/memory/recall", {"query": "note of the vault", "explain": True}
    ),
    "recall newest": lambda client, _, __: client.post("/api/memory/recall", {}),
    "search all": lambda client, _, __: client.post("/api/memory/search", {"query": "vault", "limit": 200}),
    "search filtered": lambda client, _, __: client.post(
        "/api/memory/search",
        {"collections": ["memory"], "source_types": ["fact"], "since": "2020-01-01", "min_results": 99},
    ),
    "status": lambda client, _, __: client.get("/api/memory/status"),
}
BY_ID: Final[Mapping[str, Call]] = {
    "get": lambda client, _, memory: client.get(f"/api/memory/{memory}"),
    "event state": lambda client, _, memory: client.get(f"/api/memory/event/{memory}"),
    "event wait": lambda client, _, memory: client.get(f"/api/memory/event/{memory}?wait=embedded&timeout=0"),
}
ALL: Final[Mapping[str, Call]] = {
    **READS_BY_NAME,
    **WRITES_BY_NAME,
    **WITHOUT_A_NAME,
    **BY_ID,
    "forget": lambda client, _, memory: client.post("/api/memory/forget", {"ids": [memory]}),
}


@pytest.fixture
def notes(memory: Memory) -> dict[str, str]:
    return {
        project: str(memory.remember(f"A note of the {project} vault.", project=project).id) for project in PROJECTS
    }


@pytest.fixture
def client(memory: Memory) -> Iterator[Client]:
    with ServerThread(Service(memory, limits=Limits(rate=0))) as server:
        yield Client(server.url)


def leaked(answer: Answer, reads: frozenset[str]) -> list[str]:
    """The projects that an answer tells of and must not."""
    return [
        project for project in PROJECTS if project not in reads and f"of the {project} vault" in answer.body.decode()
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_reads_or_writes_outside_its_projects(
    client: Client, memory: Memory, notes: dict[str, str], kind: str
) -> None:
    _, token = keys.create(memory.database, kind, **KINDS[kind])
    rights, asked = Rights.of(KINDS[kind]), client.with_key(token)
    before = memory.status().memories

    for project, note in notes.items():
        for name, call in READS_BY_NAME.items():
            answer = call(asked, project, note)
            expected = 200 if "read" in rights.scopes and project in rights.reads else 403
            assert (name, project, answer.status) == (name, project, expected)
            assert leaked(answer, rights.reads) == []
        for name, call in BY_ID.items():
            answer = call(asked, project, note)
            assert (name, project, answer.status) == (name, project, expected_by_id(name, project, rights))
            assert leaked(answer, rights.reads) == []
        forgotten = asked.post("/api/memory/forget", {"ids": [note, str(uuid4())]})
        assert forgotten.status in {403, 404}

    for name, call in WITHOUT_A_NAME.items():
        answer = call(asked, "", "")
        assert (name, answer.status) == (name, 200 if "read" in rights.scopes else 403)
        assert leaked(answer, rights.reads) == []
    if "read" in rights.scopes:
        counts = asked.get("/api/memory/status").json
        assert counts["memories"]["active"] == len(rights.reads)
        assert ("run_stores" in counts) == (kind == "all, admin")
    assert memory.status().memories == before

    for project, note in notes.items():
        for name, call in WRITES_BY_NAME.items():
            allowed = "write" in rights.scopes and {project, *(("shop",) if name == "batch" else ())} <= rights.writes
            answer = call(asked, project, note)
            assert (name, project, answer.status // 100) == (name, project, 2 if allowed else 4)
            assert allowed or answer.status == 403
        answer = ALL["forget"](asked, project, note)
        assert (project, answer.status) == (project, expected_forget(project, rights))
    written = {found.project for found in memory.search("", limit=200) if "vault" not in found.content}
    assert written <= (rights.writes if "write" in rights.scopes else set())
    kept = {found.project for found in memory.get(*notes.values()) if found.is_active}
    assert kept == set(PROJECTS) - (rights.writes & rights.reads if "write" in rights.scopes else set())


def expected_by_id(name: str, project: str, rights: Rights) -> int:
    sees = "read" in rights.scopes and project in rights.reads
    if name == "get":
        return 200 if sees else 404 if "read" in rights.scopes else 403
    return 200 if sees or ("write" in rights.scopes and project in rights.writes) else 404


def expected_forget(project: str, rights: Rights) -> int:
    if "write" not in rights.scopes:
        return 403
    if project not in rights.reads:
        return 404
    return 200 if project in rights.writes else 403


@pytest.mark.parametrize("name", ALL)
def test_without_a_valid_key_no_route_answers_once_there_is_one(
    client: Client, memory: Memory, notes: dict[str, str], name: str
) -> None:
    made, token = keys.create(memory.database, "revoked")
    keys.revoke(memory.database, made.id)
    strangers = ("", "x", token, token[:-1], f"ark_{uuid4().hex[:12]}_{uuid4().hex}{uuid4().hex}")
    for stranger in (client, *(client.with_key(stranger) for stranger in strangers)):
        answer = ALL[name](stranger, "shop", notes["shop"])
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert leaked(answer, frozenset()) == []
    basic = client.send("GET", "/api/memory/status", None, {"Authorization": "Basic dTpw"})
    assert basic.status == 401
    assert all(found.is_active for found in memory.get(*notes.values()))


def test_who_has_no_key_is_refused_before_the_body_is_read(client: Client, memory: Memory) -> None:
    keys.create(memory.database, "ci")
    assert client.send("POST", "/api/memory/event", b"{", {"Content-Type": "application/json"}).status == 401


def test_probes_need_no_key_and_tell_no_project(client: Client, memory: Memory, notes: dict[str, str]) -> None:
    keys.create(memory.database, "ci")
    for path in ("/healthz", "/metrics", "/docs", "/openapi.json"):
        answer = client.get(path)
        assert (path, answer.status) == (path, 200)
        assert b"bank" not in answer.body


def test_before_the_first_key_this_machine_alone_is_answered(client: Client) -> None:
    assert client.get("/api/memory/status").status == 200
    for headers in (
        {"Host": "evil.example:8767"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
    ):
        assert (headers, client.send("GET", "/api/memory/status", None, headers).status) == (headers, 403)
    for headers in ({"Host": "localhost:1"}, {"Host": "[::1]:8767"}, {"Origin": "http://127.0.0.1:3000"}):
        assert (headers, client.send("GET", "/api/memory/status", None, headers).status) == (headers, 200)


def test_a_server_that_others_reach_asks_for_a_key_from_the_start(memory: Memory) -> None:
    with ServerThread(Service(memory, always_keys=True)) as server:
        assert Client(server.url).get("/api/memory/status").status == 401


def test_a_key_that_comes_too_often_is_told_when_to_come_again(memory: Memory) -> None:
    tokens = [keys.create(memory.database, name)[1] for name in ("busy", "calm")]
    with ServerThread(Service(memory, limits=Limits(rate=0.5, burst=3))) as server:
        busy, calm = (Client(server.url, token) for token in tokens)
        answers = [busy.get("/api/memory/status") for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert answers[3].headers["retry-after"] == "2"
        assert answers[3].error["type"] == "RateError"
        assert calm.get("/api/memory/status").status == 200


def test_idempotency_keys_of_one_api_key_are_nothing_to_another(memory: Memory) -> None:
    tokens = [keys.create(memory.database, name, projects=(name,))[1] for name in ("shop", "bank")]
    with ServerThread(Service(memory)) as server:
        shop, bank = (Client(server.url, token) for token in tokens)
        first = shop.post("/api/memory/event", {"content": "A.", "project": "shop"}, Idempotency_Key="1")
        other = bank.post("/api/memory/event", {"content": "B.", "project": "bank"}, Idempotency_Key="1")
        assert (other.status, other.json["replayed"]) == (202, False)
        assert first.json["receipts"] != other.json["receipts"]
