"""Facts about the tree that no tool checks."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = sorted(
    path for folder in ("core", "workers") for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
)
LARGEST_FILE: Final = 200_000
"""Bytes. Data sets, models and pictures do not belong into the history of a library."""

LONGEST_MODULE: Final = 330
"""Lines: about 300, with a little room for docstrings."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prints(path: Path) -> list[int]:
    """The lines of a module that call `print`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def checked_in_files() -> list[Path]:
    """What git tracks; skips the test in an unpacked archive."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize(
    "name",
    [
        "core/afterrun/__init__.py",
        "workers/afterrun_workers/__init__.py",
        "migrations",
        "tests/unit",
        "tests/integration",
        "tests/acceptance",
        "tests/migration",
        "benchmarks",
        "docs/decisions",
        "docker-compose.yml",
        "pyproject.toml",
        "Makefile",
        ".ci/run",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
    ],
)
def test_the_layout_is_the_one_that_others_rely_on(name: str) -> None:
    assert (ROOT / name).exists()


def test_no_large_file_is_checked_in() -> None:
    large = {relative(path): path.stat().st_size for path in checked_in_files() if path.stat().st_size > LARGEST_FILE}
    assert large == {}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_fits_in_a_readers_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("path", [path for path in SOURCES if "serve" not in path.parts], ids=relative)
def test_only_the_adapters_print(path: Path) -> None:
    assert prints(path) == []


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    reasons = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")
    declared = [
        *project["dependencies"],
        *(entry for extra in project["optional-dependencies"].values() for entry in extra),
    ]
    missing = [entry for entry in declared if not entry.startswith("afterrun[") and f"`{entry}`" not in reasons]
    assert missing == []


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert all(f"make {target}" in script for target in ("dev", "lint", "types", "test", "test-slow"))
