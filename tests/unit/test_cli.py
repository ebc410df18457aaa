"""The command line without anything running: usage, formats, exit codes."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click
import pytest
from click.testing import CliRunner, Result

from afterrun.client import Memory
from afterrun.index import Indexed
from afterrun.models import Hit, Remembered, Run
from afterrun.runs import RunStore
from afterrun.serve.cli import main
from afterrun.serve.cli.hits import write_hits
from afterrun.serve.cli.output import ago, as_json, one_line, write_json, write_table
from afterrun.serve.cli.program import BROKEN_PIPE, INTERRUPTED, Program
from afterrun.serve.cli.questions import draw

DOCS: Final = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS: Final[dict[str, click.Command]] = {
    f"{group}{name}": command
    for group, commands in (
        ("", main.commands),
        *((f"{n} ", c.commands) for n, c in main.commands.items() if isinstance(c, click.Group)),
    )
    for name, command in commands.items()
    if not isinstance(command, click.Group)
}
ID: Final = "0b8f1c9e-5d0a-4c7e-9a52-6f0d7f6a9b11"
NEED_A_DATABASE: Final = {
    "migrate": (),
    "index": ("--source", "memory"),
    "remember": ("a note",),
    "summarize": ("-",),
    "recall": ("a question",),
    "search": ("a question",),
    "get": (ID,),
    "forget": (ID, "--yes"),
    "history": (ID,),
    "status": (),
    "consolidate": (),
    "undo": (ID,),
    "retry": ("--all",),
    "export": ("memories.jsonl",),
    "import": ("memories.jsonl",),
    "key create": ("--name", "ci"),
    "key list": (),
    "key revoke": ("5f0c3a520c6e",),
}
UNSET: Final = {"DATABASE_URL": None, "REDIS_URL": None, "AFTERRUN_RUN_STORE": None, "AFTERRUN_RUN_STORES": None}
NOW: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)


def run(home: Path, *arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner(env={**UNSET, "AFTERRUN_HOME": str(home)}).invoke(main, arguments, input=stdin)


def options(command: click.Command) -> list[str]:
    return [option for parameter in command.params for option in parameter.opts if option.startswith("-")]


def section(name: str) -> str:
    found = re.search(rf"^## afterrun {name}$(.*?)(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section for {name}"
    return found[1]


def hit(**changes: Any) -> Hit:
    values: dict[str, Any] = {
        "id": UUID(ID), "content": "Moved orders\nto Postgres", "collection": "memory", "project": "shop",
        "source_type": "decision", "category": None, "metadata": {}, "created_at": NOW, "score": 0.5,
        "relevance": 0.25, "vector": 0.7, "text": None, "decay": 1.0, "weight": 1.5, "affinity": 1.0,
    }  # fmt: skip
    return Hit(**(values | changes))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_option_is_documented(name: str) -> None:
    text = section(name)
    assert [option for option in options(COMMANDS[name]) if f"`{option}`" not in text] == []


def test_the_documentation_has_no_command_that_does_not_exist() -> None:
    assert sorted(re.findall(r"^## afterrun ([\w ]+)$", DOCS, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_takes_json_and_gives_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert "--json" in options(command)
    assert re.search(r"Examples?:\n\s+\S*.*afterrun " + name, command.help or "")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_says_what_it_is_for(name: str) -> None:
    unsaid = [p.name for p in COMMANDS[name].params if isinstance(p, click.Option) and not p.help]
    assert unsaid == []


@pytest.mark.parametrize("name", sorted(NEED_A_DATABASE))
def test_without_anything_running_the_message_says_what_to_do(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, *name.split(), *NEED_A_DATABASE[name])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: DATABASE_URL is not set")
    assert "run `afterrun up`" in done.stderr


@pytest.mark.parametrize("name", sorted(NEED_A_DATABASE))
def test_with_json_an_error_is_an_object_on_stdout(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, *name.split(), *NEED_A_DATABASE[name], "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["type"]) == (1, "NotRunningError")
    assert "afterrun up" in error["message"]


def test_debug_shows_the_traceback_of_an_error(tmp_path: Path) -> None:
    assert "Traceback" not in run(tmp_path, "status").stderr
    assert "Traceback" in run(tmp_path, "--debug", "status").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("index",),
        ("index", "--source", "code"),
        ("index", "--source", "memory", "--path", "."),
        ("index", "--source", "memory", "--store", "/no/such/file.db"),
        ("finish", "--repo", "a"),
        ("finish", "--summary", "a"),
        ("finish", "--repo", "a", "--summary", "a", "--summary-file", "-"),
        ("remember", "a", "--metadata", "no pair"),
        ("recall", "a", "--min-results", "many"),
        ("get",),
        ("undo",),
        ("undo", ID, "--since", "2026-01-01"),
        ("retry",),
        ("export", "--json"),
        ("retry", "1", "--all"),
        ("consolidate", "--dry-run", "--list"),
        ("consolidate", "--dry-run", "--interactive"),
        ("consolidate", "--interactive", "--list"),
        ("consolidate", "--state", "merged"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: Sequence[str], tmp_path: Path) -> None:
    done = run(tmp_path, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


def test_forget_without_a_terminal_needs_a_yes(tmp_path: Path) -> None:
    done = run(tmp_path, "forget", ID)
    assert done.exit_code == 2
    assert "--yes" in done.stderr


def test_finish_stores_although_nothing_runs_and_says_what_was_not_queued(tmp_path: Path) -> None:
    done = run(tmp_path, "finish", "--repo", "shop", "--summary", "Done", "--tag", "a", "--tag", "b", "--run-id", "7")
    assert (done.exit_code, done.stdout) == (0, "stored as row 1\n")
    assert "not queued" in done.stderr
    with RunStore(tmp_path / "memory.db") as store:
        stored = store.get(1)
    assert stored
    assert (stored.repo, stored.summary, stored.run_id, stored.tags) == ("shop", "Done", "7", ("a", "b"))


def test_finish_gives_its_receipt_as_json_and_stores_a_run_once(tmp_path: Path) -> None:
    receipts = [
        json.loads(run(tmp_path, "finish", "--repo", "a", "--summary", "b", "--run-id", "7", "--json").stdout)
        for _ in range(2)
    ]
    assert receipts[0] == receipts[1]
    assert (receipts[0]["id"], receipts[0]["stored"], receipts[0]["queued"]) == (1, True, False)


def test_finish_reads_a_summary_that_is_no_utf8_from_stdin(tmp_path: Path) -> None:
    done = run(
        tmp_path, "finish", "--repo", "a", "--summary-file", "-", "--store", str(tmp_path / "s.db"), stdin=b"\xff!"
    )
    assert done.exit_code == 0
    with RunStore(tmp_path / "s.db") as store:
        assert [found.summary for found in store.unindexed()] == ["\ufffd!"]


def test_finish_ends_with_1_only_when_the_run_is_neither_stored_nor_queued(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "spool").touch()
    done = run(tmp_path, "finish", "--repo", "a", "--summary", "b", "--store", str(tmp_path / "file" / "memory.db"))
    assert done.exit_code == 1
    assert "the run is lost" in done.stderr
    assert "Traceback" not in done.stderr


def test_config_masks_secrets_and_names_their_origin(tmp_path: Path) -> None:
    runner = CliRunner(env={**UNSET, "AFTERRUN_HOME": str(tmp_path), "ANTHROPIC_API_KEY": "sk-secret"})
    for arguments in (["config"], ["config", "--json"]):
        shown = runner.invoke(main, arguments).stdout
        assert "sk-secret" not in shown
    rows = {row["variable"]: row for row in json.loads(shown)}
    assert rows["ANTHROPIC_API_KEY"]["value"] == "***"
    assert rows["AFTERRUN_HOME"]["origin"] == "environment"


def test_a_setting_that_cannot_be_used_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    runner = CliRunner(env={**UNSET, "AFTERRUN_HOME": str(tmp_path), "AFTERRUN_EMBED_BATCH": "many"})
    done = runner.invoke(main, ["status"])
    assert done.exit_code == 1
    assert "AFTERRUN_EMBED_BATCH" in done.stderr


def test_down_without_a_stack_says_so_and_is_no_error(tmp_path: Path) -> None:
    assert run(tmp_path, "down").stdout == f"no local stack runs on {tmp_path}\n"
    assert json.loads(run(tmp_path, "down", "--json").stdout)["stopped"] is False


def test_results_become_json_of_plain_values() -> None:
    value = {"one": Remembered(id=UUID(ID), created=True, chunks=2), "at": NOW, "path": Path("/a"), "pair": (1, None)}
    assert as_json(value) == {
        "one": {"id": ID, "created": True, "chunks": 2, "embedded": False},
        "at": "2026-05-01T12:00:00+00:00",
        "path": "/a",
        "pair": [1, None],
    }


def test_json_survives_what_is_no_utf8(tmp_path: Path) -> None:
    code = (
        "import sys; from afterrun.serve.cli.output import write_json\n"
        "sys.stdout.reconfigure(errors='backslashreplace'); write_json({'name': 'caf\\xe9 \\udcff'})"
    )
    for encoding in ("utf-8", "ascii"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONIOENCODING": encoding}, capture_output=True, check=True
        )
        assert json.loads(done.stdout)["name"] == "café \udcff"


def test_plain_columns_are_one_line_a_record_and_cut_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write_hits([hit(content="word " * 200), hit(content="Second\nline")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(ID in line for line in lines[1:])
    assert lines[1].endswith("word " * 199 + "word")


def test_the_parts_of_a_score_have_columns_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    write_hits([hit()], parts=True)
    header, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[5:13] == ["ID", "RELEVANCE", "VECTOR", "TEXT", "DECAY", "WEIGHT", "AFFINITY", "CONTENT"]
    assert row[6:8] == ["0.250", "0.700"]


def test_a_memory_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line("\x1b[2Jgone\r\nand\tback") == " [2Jgone and back"
    write_table(("text",), [("\x1b]0;title\x07",)])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("past", "text"),
    [(timedelta(seconds=3), "3 s ago"), (timedelta(minutes=61), "1 h ago"), (timedelta(days=40), "40 d ago")],
)
def test_ages_are_told_in_their_largest_unit(past: timedelta, text: str) -> None:
    assert ago(NOW - past, NOW) == text


def test_a_time_in_the_future_is_no_negative_age() -> None:
    assert ago(NOW + timedelta(days=1), NOW) == "0 s ago"
    assert ago(None, NOW) == ""


def test_ctrl_c_ends_with_130_and_no_traceback() -> None:
    @click.group(cls=Program)
    def program() -> None: ...

    @program.command()
    def interrupted(as_json: bool) -> None:
        raise KeyboardInterrupt

    done = CliRunner().invoke(program, ["interrupted"])
    assert done.exit_code == INTERRUPTED
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "afterrun.serve.cli", "config", "--json"]
    process = subprocess.Popen(
        command, env={"AFTERRUN_HOME": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (BROKEN_PIPE, b"")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("recall", "--help"), ("finish", "--repo", "a", "--summary", "b"), ("status",)]
)
def test_a_short_command_loads_no_driver_model_or_broker(arguments: Sequence[str], tmp_path: Path) -> None:
    code = (
        "import sys; from afterrun.serve.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'psycopg', 'torch', 'celery', 'kombu', 'numpy', 'sentence_transformers', 'anthropic', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={"AFTERRUN_HOME": str(tmp_path)}, capture_output=True, check=True
    )
    assert done.stderr.decode().splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["recall", "search", "remember"])
def test_defaults_are_the_librarys(name: str) -> None:
    library = inspect.signature(getattr(Memory, name)).parameters
    said = [option for option in main.commands[name].params if isinstance(option, click.Option) and option.show_default]
    assert said
    assert {option.name: option.default for option in said} == {
        option.name: library[str(option.name)].default for option in said
    }


def test_totals_of_counts_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"total": Indexed(added=1) + Indexed(known=2)})
    assert json.loads(capsys.readouterr().out)["total"] == {"added": 1, "known": 2, "empty": 0, "failed": 0}


def test_a_demo_asks_for_the_rarest_words_of_two_runs() -> None:
    common = "The payment service handles orders"
    runs = [
        Run(repo="shop", summary=f"{common} {words}")
        for words in (
            "with idempotent retries quickly",
            "after migrating invoices overnight",
            "behind haproxy gateways",
        )
    ]
    first, second = draw(runs)
    assert first.run is not second.run
    assert "idempotent" in first.text or "migrating" in first.text
    assert "orders" not in first.text + second.text


def test_one_run_is_enough_for_two_questions() -> None:
    only = Run(repo="shop", summary="Lay the foundation: errors, records, settings and package layout")
    first, second = draw([only])
    assert first.text != second.text
    assert draw([Run(repo="shop", summary="a b")]) == []


def test_questions_hold_neither_secrets_nor_hashes() -> None:
    words = draw([Run(repo="shop", summary="password=swordfish deadbeef1234 harbour https://example.org/lighthouse")])
    assert "swordfish" not in str([question.text for question in words])
    assert all("deadbeef" not in question.text and "lighthouse" not in question.text for question in words)
