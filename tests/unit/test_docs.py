"""The documentation names what there is: every setting, every task, every queue, every decision."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click

from afterrun import queue
from afterrun.serve.cli import main
from afterrun.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def documented_settings() -> dict[str, str]:
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]*) \|", (DOCS / "configuration.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {name: default.strip() for name, default in rows}


def test_every_setting_stands_in_the_configuration_page_with_its_default() -> None:
    expected = {
        field.metadata["env"]: "—" if field.default in (None, ()) else str(field.default)
        for field in fields(Settings)
        if field.metadata["env"]
    }
    assert documented_settings() == expected


def test_every_task_and_queue_stands_in_the_architecture_page() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    from_workers = re.findall(r"@app\.task\(name=(\w+)", (ROOT / "workers/afterrun_workers/tasks.py").read_text())
    tasks = [getattr(queue, constant) for constant in from_workers]
    assert len(tasks) >= 5
    for name in (*tasks, *queue.QUEUES):
        assert re.search(rf"`{name}[`(]", page), f"docs/architecture.md does not name {name}"


def test_every_decision_stands_in_the_list_of_decisions() -> None:
    listed = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    pages = [path.name for path in (DOCS / "decisions").glob("[0-9]*.md")]
    assert pages
    for page in pages:
        assert page in listed


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """Each `afterrun …` line of a shell example, with the page it stands on."""
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.partition(" | ")[0], comments=True)
                if words[:1] == ["afterrun"] and "…" not in line:
                    yield page.name, words[1:]


def fault_of(command: click.Command, name: str | None, words: list[str], parent: click.Context | None) -> str | None:
    """What is wrong with a command's words; files and folders may be missing, they are the reader's own."""
    try:
        with command.make_context(name, words, parent=parent) as context:
            if not isinstance(command, click.Group):
                return None
            below, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            return "no such command" if found is None else fault_of(found, below, rest, context)
    except click.UsageError as error:
        message = error.format_message()
        return None if re.search("does not exist|No such file", message) else message


def test_every_command_that_an_example_shows_can_be_parsed() -> None:
    examples = list(shown_commands())
    assert len(examples) > 10
    for page, words in examples:
        fault = fault_of(main, "afterrun", list(words), None)
        assert fault is None, f"{page}: afterrun {shlex.join(words)}: {fault}"
