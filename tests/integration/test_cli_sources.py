"""`afterrun index` on folders and pages, as a user runs it: each command a process of its own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afterrun import schema
from afterrun.embed import model_spec
from afterrun.settings import Settings

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environ(empty_database_url: str, tmp_path: Path) -> dict[str, str]:
    schema.migrate(empty_database_url, model_spec(Settings.model))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AFTERRUN_")}
    return {**kept, "AFTERRUN_HOME": str(tmp_path / "home"), "DATABASE_URL": empty_database_url, "REDIS_URL": ""}


@pytest.fixture
def afterrun(environ: dict[str, str]) -> Run:
    def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), env=environ, capture_output=True, text=True, timeout=60, check=False, **more
        )

    return run


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text("def load(path):\n    return path\n")
    (folder / "guide.md").write_text("# Guide\n\nCall load.\n")
    (folder / "logo.py").write_bytes(b"\0\0")
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "afterrun.serve.cli", *arguments]


def test_a_folder_is_indexed_under_its_name_and_the_summary_says_what_was_skipped(afterrun: Run, shop: Path) -> None:
    done = afterrun("index", "--source", "codebase", "--json", cwd=shop)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "source": "codebase",
        "project": "shop",
        "added": 1,
        "changed": 0,
        "removed": 0,
        "unchanged": 0,
        "skipped": {"binary": 1, "document": 1},
        "memories": {"added": 1, "changed": 0, "removed": 0, "unchanged": 0},
        "failed": {},
    }
    again = afterrun("index", "--source", "codebase", "--path", str(shop))
    assert again.returncode == 0
    assert [line.split() for line in again.stdout.splitlines()] == [
        ["#", "codebase", "of", "shop"],
        ["ADDED", "CHANGED", "REMOVED", "UNCHANGED", "SKIPPED"],
        ["files", "0", "0", "0", "1", "2"],
        ["memories", "0", "0", "0", "0"],
        ["SKIPPED", "BECAUSE", "FILES"],
        ["binary", "1"],
        ["document", "1"],
    ]
    assert again.stderr == ""
    found = afterrun("search", "load", "--collection", "codebase", "--json")
    assert "shop.py: load" in found.stdout


def test_standards_have_a_collection_of_their_own_and_clean_and_project_are_heard(afterrun: Run, shop: Path) -> None:
    for _ in range(2):
        done = afterrun(
            "index", "--source", "standards", "--path", str(shop), "--project", "rules", "--clean", "--json"
        )
    figures = json.loads(done.stdout)
    assert (figures["project"], figures["memories"]["added"], figures["memories"]["removed"]) == ("rules", 1, 1)


def test_a_page_that_cannot_be_fetched_ends_the_command_with_1(afterrun: Run) -> None:
    done = afterrun("index", "--source", "url", "--url", "http://127.0.0.1:1/guide.html")
    assert done.returncode == 1
    assert "error: http://127.0.0.1:1/guide.html is left as it was: it cannot be fetched" in done.stderr


def test_the_progress_bar_goes_to_a_terminal_on_stderr_and_never_to_stdout(environ: dict[str, str], shop: Path) -> None:
    leader, follower = pty.openpty()
    arguments = command("index", "--source", "codebase", "--path", str(shop), "--json")
    process = subprocess.Popen(
        arguments, env={**environ, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=follower, text=True
    )
    os.close(follower)
    stdout, _ = process.communicate(timeout=60)
    shown = os.read(leader, 65536).decode("utf-8", "replace")
    os.close(leader)
    assert json.loads(stdout)["added"] == 1
    assert "indexing codebase" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--source", "code"),
        ("--source", "docs", "--url", "http://host/"),
        ("--source", "url", "--path", "."),
        ("--source", "docs", "--store", __file__),
        ("--source", "git", "--clean"),
        ("--source", "memory", "--project", "a"),
    ],
)
def test_options_of_another_source_are_refused(afterrun: Run, arguments: tuple[str, ...]) -> None:
    assert afterrun("index", *arguments).returncode == 2
