"""`afterrun consolidate`, `undo`, `history` and `status` as a user runs them: each command a process of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from messages_api import MessagesApi, error, merge_all

from afterrun import schema
from afterrun.client import Memory
from afterrun.db import connect
from afterrun.embed import model_spec
from afterrun.settings import Settings
from afterrun.store import Store

PORTS: Final = ("The port is 5432.", "The port is 5433.")
REPEATS: Final = ("We use Postgres 17.", "We use Postgres 17 for orders.")
KEY: Final = "sk-ant-test-" + "k" * 30

pytestmark = pytest.mark.slow


class Shell:
    """A data folder and a database without workers, and the program run on them."""

    def __init__(self, home: Path, database_url: str) -> None:
        self.home = home
        self.database_url = database_url
        settings = Settings(home=home, run_store=home / "memory.db", database_url=database_url)
        self.memory = Memory(settings=settings)

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AFTERRUN_", "ANTHROPIC_"))}
        return {**kept, "AFTERRUN_HOME": str(self.home), "DATABASE_URL": self.database_url, "REDIS_URL": "", **more}

    def run(self, *arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(arguments), env=self.environ(**environ), input=stdin, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str, stdin: str = "", **environ: str) -> Any:
        done = self.run(*arguments, "--json", stdin=stdin, **environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def on_terminal(self, *arguments: str, answers: Sequence[tuple[str, str]], **environ: str) -> str:
        """Run a command on a terminal and give each answer when its question is there; what the terminal showed."""
        leader, follower = pty.openpty()
        environ = self.environ(TERM="xterm-256color", COLUMNS="200", **environ)
        process = subprocess.Popen(command(arguments), env=environ, stdin=follower, stdout=follower, stderr=follower)
        os.close(follower)
        shown = ""
        try:
            for question, answer in answers:
                before = len(shown)
                while question not in shown[before:]:
                    shown += _read(leader)
                os.write(leader, answer.encode() if answer == "\x04" else f"{answer}\n".encode())
            while (more := _read(leader)) is not None and more:
                shown += more
            assert process.wait(timeout=30) == 0, shown
        finally:
            process.kill()
            process.wait()
            os.close(leader)
        return shown

    def proposed(self, *texts: str) -> list[UUID]:
        """Memories that are proposed as a cluster."""
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        ids = [
            self.memory.remember(text, project="shop", created_at=begin + timedelta(days=day)).id
            for day, text in enumerate(texts)
        ]
        with self.memory.database.transaction() as connection:
            Store(connection).propose(ids, collection="memory", project="shop")
        return ids

    def states(self) -> list[str]:
        with self.memory.database.transaction() as connection:
            rows = connection.execute("SELECT state FROM consolidations ORDER BY created_at, id")
            return [row[0] for row in rows]

    def active(self, ids: Sequence[UUID]) -> list[bool]:
        by_id = {one.id: one.is_active for one in self.memory.get(*ids)}
        return [by_id[one] for one in ids]


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "afterrun.serve.cli", *arguments]


def _read(leader: int, seconds: float = 60.0) -> str:
    """What comes next; empty when the program has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 0.5)[0]:
            try:
                return os.read(leader, 65536).decode("utf-8", "replace")
            except OSError:
                return ""
    raise AssertionError("the program said nothing more")


@pytest.fixture
def shell(tmp_path: Path, empty_database_url: str) -> Iterator[Shell]:
    schema.migrate(empty_database_url, model_spec(Settings.model))
    shell = Shell(tmp_path, empty_database_url)
    yield shell
    shell.memory.close()


def test_a_dry_run_shows_what_is_kept_dropped_and_added_and_changes_nothing(shell: Shell) -> None:
    repeats, ports = shell.proposed(*REPEATS), shell.proposed(*PORTS)
    done = shell.run("consolidate", "--dry-run")
    assert done.returncode == 0
    assert "the rules would merge it" in done.stdout
    assert "the rules leave it" in done.stdout
    assert all(str(one) in done.stdout for one in (*repeats, *ports))
    assert "2 clusters wait" in done.stderr
    found = shell.json("consolidate", "--dry-run")
    assert (found["judge"], found["calls"], found["most_tokens"], found["uncompared"]) == ("deterministic", 0, 0, 4)
    first = found["clusters"][0]
    assert [member["id"] for member in first["members"]] == [str(one) for one in repeats[::-1]]
    assert first["wording"] == "We use Postgres 17 for orders."
    assert first["changes"]["added"] == []
    assert all(shell.active([*repeats, *ports]))
    assert shell.states() == ["waiting", "waiting"]


def test_with_a_key_a_dry_run_asks_nobody_and_says_what_it_would_ask(shell: Shell) -> None:
    shell.proposed(*PORTS)
    with MessagesApi(merge_all) as api:
        key = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url}
        done = shell.run("consolidate", "--dry-run", **key)
        assert "claude-haiku-4-5 is asked: calls: 1, tokens: at most" in done.stderr
        assert shell.json("consolidate", "--dry-run", **key)["calls"] == 1
        assert api.requests == []


def test_piped_answers_decide_one_cluster_after_the_other(shell: Shell) -> None:
    accepted, rejected, won = shell.proposed(*REPEATS), shell.proposed(*PORTS), shell.proposed("Use v1.", "Use v2.")
    skipped = shell.proposed("The queue is Redis 7.", "The queue is Valkey 8.")
    done = shell.run("consolidate", "--interactive", stdin="y\nwhat?\nn\nw\ns\n")
    assert done.returncode == 0, done.stderr
    assert "3 of 4 clusters decided" in done.stderr
    assert shell.states() == ["merged", "rejected", "merged", "waiting"]
    assert shell.active(accepted) == [False, False]
    assert shell.active(rejected) == [True, True]
    assert shell.active(won) == [False, True]
    assert shell.active(skipped) == [True, True]
    again = shell.json("consolidate", "--interactive", stdin="q\n")
    assert again == {"outcomes": []}
    assert shell.json("consolidate", "--dry-run")["clusters"][0]["cluster"]["members"] == sorted(map(str, skipped))


def test_without_a_terminal_and_without_input_it_refuses_clearly(shell: Shell) -> None:
    shell.proposed(*PORTS)
    done = shell.run("consolidate", "--interactive")
    assert done.returncode == 2
    assert "no terminal and has no input" in done.stderr
    assert shell.states() == ["waiting"]


def test_an_end_of_input_leaves_the_other_clusters_waiting(shell: Shell) -> None:
    shell.proposed(*REPEATS)
    shell.proposed(*PORTS)
    done = shell.run("consolidate", "--interactive", stdin="n\n")
    assert done.returncode == 0
    assert "the input has ended" in done.stderr
    assert shell.states() == ["rejected", "waiting"]


def test_on_a_terminal_dropped_and_added_words_are_coloured_and_the_answer_is_asked_for(shell: Shell) -> None:
    ids = shell.proposed("We use Postgres 17 here.", "We use Postgres 17 for orders here.")
    shown = shell.on_terminal("consolidate", "--interactive", answers=[("[q] quit: ", "x"), ("[q] quit: ", "y")])
    assert "cluster 1 of 1" in shown
    assert "\x1b[" in shown
    assert "merged into" in shown
    assert shell.active(ids) == [False, False]


def test_an_end_of_input_on_a_terminal_is_no_wrong_usage(shell: Shell) -> None:
    shell.proposed(*REPEATS)
    shown = shell.on_terminal("consolidate", "--interactive", answers=[("quit: ", "\x04")])
    assert "0 of 1 clusters decided" in shown
    assert shell.states() == ["waiting"]


def test_control_characters_of_a_memory_do_not_reach_the_terminal(shell: Shell) -> None:
    shell.proposed("We use \x1b]0;owned\x07 Postgres 17.", "We use \x1b[2J Postgres 17.")
    for arguments in (("consolidate", "--dry-run"), ("consolidate", "--interactive")):
        done = shell.run(*arguments, stdin="s\n")
        assert "\x1b" not in done.stdout
    assert "\x1b]0" not in shell.on_terminal("consolidate", "--dry-run", answers=[])


def test_a_bad_key_ends_the_command_at_once_with_1_and_a_clear_error(shell: Shell) -> None:
    shell.proposed(*PORTS)
    shell.proposed(*REPEATS)
    with MessagesApi(error(401, "authentication_error")) as api:
        done = shell.run("consolidate", ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=api.url)
        assert (done.returncode, len(api.requests)) == (1, 1)
    assert "check ANTHROPIC_API_KEY" in done.stderr
    assert KEY not in done.stderr
    assert shell.states() == ["waiting", "waiting"]
    assert "2 for a key" in shell.run("status").stdout
    with MessagesApi(merge_all) as api:
        mended = shell.run("consolidate", ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=api.url)
        assert mended.returncode == 0
    assert shell.states() == ["merged", "merged"]


def test_a_service_that_is_down_ends_the_command_with_1_and_the_clusters_wait(shell: Shell) -> None:
    shell.proposed(*PORTS)
    shell.proposed(*REPEATS)
    with MessagesApi(error(529, "overloaded_error")) as api:
        done = shell.run("consolidate", ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=api.url)
        assert (done.returncode, len(api.requests)) == (1, 1)
    assert "does not answer" in done.stderr
    assert shell.states() == ["waiting", "waiting"]


def test_a_reached_cap_is_said_by_consolidate_and_by_status(shell: Shell) -> None:
    shell.proposed(*PORTS)
    shell.proposed(*REPEATS)
    with MessagesApi(merge_all) as api:
        caps = {"AFTERRUN_SPEND_CALLS_PER_DAY": "1"}
        done = shell.run("consolidate", ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=api.url, **caps)
        assert (done.returncode, len(api.requests)) == (0, 1)
        assert "a cap on spend" in done.stderr
    assert sorted(shell.states()) == ["merged", "waiting"]
    shown = shell.run("status", **caps).stdout
    assert "1 for a cap on spend" in shown
    assert "project shop" in shown
    assert "run consolidate " in shown
    found = shell.json("status", **caps)["status"]
    assert found["paused"] == {"spend": 1}
    assert found["spending"]["today"] == {"calls": 1, "input_tokens": 100, "output_tokens": 20}
    assert found["spending"]["budget"]["calls_per_day"] == 1
    assert found["spending"]["projects"]["shop"]["calls"] == 1


def test_a_run_is_one_call_of_the_command(shell: Shell) -> None:
    shell.proposed(*PORTS)
    shell.proposed(*REPEATS)
    with MessagesApi(merge_all) as api:
        settings = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url, "AFTERRUN_SPEND_CALLS_PER_RUN": "1"}
        for calls in (1, 2):
            assert shell.run("consolidate", **settings).returncode == 0
            assert len(api.requests) == calls
    assert shell.states() == ["merged", "merged"]


def test_history_shows_reasons_rules_generations_and_undone_merges(shell: Shell) -> None:
    ids = shell.proposed(*REPEATS)
    shell.run("consolidate")
    canonical = shell.memory.get(ids[0])[0].superseded_by
    assert canonical is not None
    (merge,) = shell.json("consolidate", "--list", "--state", "merged")
    for asked in (canonical, ids[0]):
        tree = shell.run("history", str(asked)).stdout
        assert f"{canonical}  active" in tree
        assert "generation 1" in tree
        assert "merged by deterministic" in tree
        assert "say the same" in tree
        assert merge["id"] in tree
        assert all(line == line.rstrip() for line in tree.splitlines())
    tree = shell.run("history", str(canonical)).stdout
    assert all(str(one) in tree for one in ids)
    undone = shell.run("undo", merge["id"])
    assert undone.returncode == 0
    tree = shell.run("history", str(ids[0])).stdout
    assert f"{ids[0]}  active" in tree
    assert "undone by deterministic" in tree
    assert "forgotten" in shell.run("history", str(canonical)).stdout
    assert shell.json("history", str(ids[0]))["consolidations"][0]["state"] == "undone"


def test_undo_since_takes_back_every_merge_since_then(shell: Shell) -> None:
    early = shell.proposed(*REPEATS)
    shell.run("consolidate")
    with connect(shell.database_url) as connection:
        connection.execute("UPDATE consolidations SET updated_at = updated_at - interval '1 hour'")
    late = shell.proposed("Use Redis for queues.", "use redis for queues")
    shell.run("consolidate")
    since = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
    assert len(shell.json("undo", "--since", since)) == 1
    assert shell.active(late) == [True, True]
    assert shell.active(early) == [False, False]
    assert shell.json("undo", "--since", since) == []
    shell.run("consolidate")
    assert shell.active(late) == [True, True]
