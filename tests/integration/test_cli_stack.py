"""The real program as a user runs it: one `afterrun up` for the module, every command a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

NOT_PASSED_ON: Final = ("DATABASE_URL", "REDIS_URL", "ANTHROPIC_API_KEY", "GIT_DIR")
EMBED_SECONDS: Final = 120.0
"""The first batch loads the model, and the machine may be busy."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True, kw_only=True)
class Home:
    """A data folder, and the program run on it."""

    path: Path

    def run(self, *arguments: str, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AFTERRUN_")}
        for name in NOT_PASSED_ON:
            kept.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "afterrun.serve.cli", *arguments],
            env=kept | {"AFTERRUN_HOME": str(self.path)} | environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def text(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        return json.loads(self.text(*arguments, "--json", stdin=stdin))

    def refused(self, *arguments: str) -> dict[str, str]:
        done = self.run(*arguments, "--json")
        assert done.returncode == 1
        error: dict[str, str] = json.loads(done.stdout)["error"]
        return error

    def pending(self) -> int:
        return int(self.json("status")["status"]["pending_chunks"])


def left_in(folder: Path) -> list[str]:
    """What lies in `folder`, except for the cache that torch makes among the temporary files of its user."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


def wait_for(condition: Callable[[], object], seconds: float = EMBED_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    path = Path(tempfile.mkdtemp(prefix="afterrun-cli-"))
    home = Home(path=path)
    try:
        report = home.json("up", "--detach")
        assert report["database"]["embedded"]
        yield home
    finally:
        home.run("down")
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def word() -> str:
    """A word that no other test's memories have."""
    return f"zq{uuid4().hex[:12]}"


def test_a_finished_run_is_recalled(home: Home, word: str) -> None:
    receipt = home.json("finish", "--repo", "shop", "--summary", f"Moved {word} orders from MongoDB to Postgres")
    assert (receipt["stored"], receipt["queued"]) == (True, True)

    def found() -> bool:
        return any(word in hit["content"] for hit in home.json("recall", "--project", "shop", word)["hits"])

    wait_for(found)
    wait_for(lambda: home.pending() == 0)
    meant = home.json("recall", "--min-results", "1", "--explain", f"in which database is {word} kept?")
    assert word in meant["hits"][0]["content"]
    assert meant["hits"][0]["vector"] > 0
    assert word in meant["text"]


def test_a_second_index_adds_nothing(home: Home, tmp_path: Path, word: str) -> None:
    store = str(tmp_path / "memory.db")
    for number in range(3):
        home.run("finish", "--repo", "shop", "--summary", f"{word} number {number}", "--store", store)
    counts = [home.json("index", "--source", "memory", "--store", store)["total"] for _ in range(2)]
    # The workers may have been faster: then they were known at the first pass.
    assert counts[0]["failed"] == 0
    assert counts[1] == {"added": 0, "known": 0, "empty": 0, "failed": 0}
    again = home.json("index", "--source", "memory", "--store", store, "--full")["total"]
    assert again == {"added": 0, "known": 3, "empty": 0, "failed": 0}
    plain = home.text("index", "--source", "memory", "--store", store, "--full").splitlines()
    assert plain[0].split() == ["ADDED", "KNOWN", "EMPTY", "FAILED", "RUN", "STORE"]
    assert plain[1].split() == ["0", "3", "0", "0", store]


def test_an_unreadable_run_store_does_not_hold_up_the_others(home: Home, tmp_path: Path, word: str) -> None:
    broken, good = tmp_path / "broken.db", tmp_path / "good.db"
    broken.write_bytes(b"this is no database, " * 100)
    home.run("finish", "--repo", "shop", "--summary", word, "--store", str(good))
    done = home.run("index", "--source", "memory", "--store", str(broken), "--store", str(good), "--full", "--json")
    first, second = json.loads(done.stdout)["stores"]
    assert done.returncode == 1
    assert str(broken) in first["error"]
    assert second["indexed"]["added"] + second["indexed"]["known"] == 1


def test_a_git_history_is_indexed_once(home: Home, tmp_path: Path, word: str) -> None:
    repository, store = tmp_path / "shop", str(tmp_path / "commits.db")
    names = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    for number in range(3):
        message = f"fix: {word} {number}\n\nSigned-off-by: A <a@b>"
        command = ["git", "-C", str(repository), *names, "commit", "-q", "--allow-empty", "-m", message]
        subprocess.run(command, check=True)
    arguments = ("index", "--source", "git", "--path", str(repository))
    with_store = (*arguments, "--store", store)
    sqlite3.connect(store).close()
    assert home.json(*with_store)["total"]["added"] == 3
    assert home.json(*with_store)["total"]["added"] == 0
    hits = home.json("search", "--project", "shop", "--only-project", f"{word}")
    mine = [hit for hit in hits if word in hit["content"]]
    assert len(mine) == 3
    assert mine[0]["metadata"]["mode"] == "commit"
    assert mine[0]["metadata"]["tags"] == ["fix"]
    assert "Signed-off" not in mine[0]["content"]


def test_a_folder_without_a_repository_is_an_error_that_says_so(home: Home, tmp_path: Path) -> None:
    error = home.refused("index", "--source", "git", "--path", str(tmp_path))
    assert error["type"] == "InputError"
    assert str(tmp_path) in error["message"]


def test_a_note_is_remembered_found_shown_and_forgotten(home: Home, word: str) -> None:
    written = home.json(
        *("remember", "-", "--project", "shop", "--source-type", "decision", "--category", "storage", "--wait"),
        *("--metadata", "ticket=12", "--metadata", "by=Ann", "--created-at", "2026-01-31", "--importance", "0.9"),
        stdin=f"The {word} ledger is append-only.",
    )
    assert (written["created"], written["embedded"]) == (True, True)
    (record,) = home.json("get", written["id"])
    assert record["source_type"] == "decision"
    assert record["metadata"] == {"ticket": 12, "by": "Ann"}
    assert record["created_at"].startswith("2026-01-31T00:00:00")
    assert written["id"] in home.text("search", word)
    assert f"The {word} ledger is append-only." in home.text("get", written["id"])
    assert home.text("history", written["id"]).startswith(f"{written['id']}  active")
    assert home.json("forget", "--yes", written["id"])["forgotten"] == [written["id"]]
    assert word not in home.text("recall", word)
    assert home.json("forget", "--yes", written["id"])["forgotten"] == []
    assert home.json("get", written["id"])[0]["archived"]


def test_filters_reach_the_search(home: Home, word: str) -> None:
    for project, kind in (("one", "decision"), ("two", "fact")):
        home.json("remember", f"{word} of {project}", "--project", project, "--source-type", kind)

    def projects(*options: str) -> set[str]:
        hits = home.json("search", word, "--min-results", "0", *options)
        return {hit["project"] for hit in hits if word in hit["content"]}

    assert projects() == {"one", "two"}
    assert projects("--project", "one") == {"one", "two"}
    assert projects("--project", "one", "--only-project") == {"one"}
    assert projects("--source-type", "fact") == {"two"}
    assert projects("--collection", "docs") == set()
    assert projects("--until", "2000-01-01") == set()
    assert projects("--since", "2000-01-01") == {"one", "two"}
    assert len(home.json("search", word, "--limit", "1")) == 1


def test_a_searchs_plan_is_shown_instead_of_its_hits(home: Home, word: str) -> None:
    plans = home.json("search", "--explain-plan", word)
    assert any("memory_hybrid_search" in plan for plan in plans)
    plain = home.text("search", "--explain-plan", word)
    assert "Buffers: shared" in plain
    assert "\n  ->  " in plain, "the plan's indentation is kept"


def test_duplicates_are_consolidated_and_a_merge_is_undone(home: Home, word: str) -> None:
    for text in (f"The {word} service uses Postgres.", f"The {word} service is using Postgres."):
        home.json("remember", text, "--project", word, "--wait", "--timeout", str(EMBED_SECONDS))
    home.text("consolidate")

    def merged() -> list[Any]:
        found = home.json("consolidate", "--list", "--state", "merged")
        return [entry for entry in found if entry["project"] == word]

    wait_for(merged)
    (merge,) = merged()
    history = home.json("history", merge["canonical"])
    assert {original["memory"]["id"] for original in history["originals"]} <= set(merge["members"])
    assert merge["id"] in home.text("history", merge["canonical"])
    assert merge["id"] in home.text("consolidate", "--list")
    assert home.json("undo", merge["id"])[0]["id"] == merge["id"]
    assert merge["id"] in home.text("consolidate", "--list", "--state", "undone")
    assert all(record["is_active"] for record in home.json("get", *merge["members"]))
    assert home.refused("undo", merge["id"])["type"] == "ConflictError"
    assert home.json("undo", "--since", "2999-01-01") == []


def test_a_dry_run_changes_nothing(home: Home) -> None:
    before = home.json("consolidate", "--list")
    home.json("consolidate", "--dry-run")
    assert home.json("consolidate", "--list") == before


def test_status_tells_how_everything_is(home: Home) -> None:
    status = home.json("status")["status"]
    assert status["memories"]["active"] >= 0
    assert status["broker_error"] is None
    assert set(status["queues"]) >= {"index", "embed", "consolidate", "maintenance"}
    assert str(home.path / "memory.db") in home.text("status")


def test_retry_without_dead_letters_brings_nothing_back(home: Home) -> None:
    assert home.json("retry", "--all") == {"retried": 0}
    assert home.refused("retry", "999999")["type"] == "NotFoundError"


def test_migrating_again_changes_nothing(home: Home) -> None:
    assert home.json("migrate")["changed"] is False


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("get", str(uuid4())), "NotFoundError"),
        (("get", "no-uuid"), "InputError"),
        (("forget", "--yes", str(uuid4())), "NotFoundError"),
        (("history", str(uuid4())), "NotFoundError"),
        (("undo", str(uuid4())), "NotFoundError"),
        (("undo", "--since", "yesterday"), "InputError"),
        (("recall", "x", "--only-project"), "InputError"),
        (("search", "x", "--limit", "100000"), "InputError"),
        (("remember", "   "), "EmptyError"),
    ],
)
def test_what_cannot_be_done_is_an_error_without_a_traceback(home: Home, arguments: tuple[str, ...], kind: str) -> None:
    assert home.refused(*arguments)["type"] == kind


def test_a_database_that_is_down_is_an_error_and_not_an_empty_answer(home: Home) -> None:
    for command in (("status",), ("recall", "anything")):
        done = home.run(*command, "--json", DATABASE_URL="postgresql://nobody@127.0.0.1:9/none")
        assert done.returncode == 1
        assert json.loads(done.stdout)["error"]["type"] == "DatabaseUnavailableError"


def test_a_second_up_is_refused(home: Home) -> None:
    for options in ((), ("--detach",)):
        assert home.refused("up", *options)["type"] == "ConflictError"
    assert home.json("status")


def test_the_demo_needs_no_history_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = Home(path=tmp_path / "untouched").run("demo", "--path", str(tmp_path), "--json", TMPDIR=str(tmp_path))
    shown = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "a packaged sample" in done.stderr
    assert len(shown["answers"]) == 2
    for answer in shown["answers"]:
        assert answer["run"]["summary"] in [hit["content"] for hit in answer["found"]["hits"]]
    assert left_in(tmp_path) == []


def test_a_demo_that_fails_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database, " * 100)
    done = Home(path=tmp_path).run("demo", "--db", str(tmp_path / "broken.db"), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "broken.db" in done.stderr
    assert left_in(tmp_path) == ["broken.db"]


def test_up_runs_in_the_foreground_until_it_is_told_to_stop() -> None:
    home = Home(path=Path(tempfile.mkdtemp(prefix="afterrun-cli-")))
    environ = os.environ | {"AFTERRUN_HOME": str(home.path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "afterrun.serve.cli", "up"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        report = []
        for line in process.stdout:
            report.append(line)
            if "stops it" in line:
                break
        assert report[0] == "Afterrun is up\n"
        assert str(home.path) in "".join(report)
        assert home.json("down")["stopped"] is True
        assert process.wait(60) == 0
    assert home.run("status").returncode == 1
    shutil.rmtree(home.path, ignore_errors=True)
