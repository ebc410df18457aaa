"""The benchmark of code search: what it asks, what it takes out, and that it runs on a small tree."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MODULE = '''"""Orders."""


class Order:
    """An order."""

    def total(self):
        """Add up the prices.

        All of them.
        """
        return sum(self.prices)

    @property
    def paid(self): """Whether it was paid."""; return True


def load(path):
    """Read orders from a file."""


def save(path):
    return path
'''


def test_docstrings_of_functions_become_questions_and_leave_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    code = import_module("benchmarks.code")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "a.py").write_text(MODULE)
    (tmp_path / "shop" / "broken.py").write_text("def (")
    questions = list(code.bared(tmp_path / "shop", tmp_path / "bare"))
    bare = (tmp_path / "bare" / "shop" / "a.py").read_text()
    assert [(one.text, one.path) for one in questions] == [
        ("Add up the prices.", "shop/a.py"),
        ("Whether it was paid.", "shop/a.py"),
        ("Read orders from a file.", "shop/a.py"),
    ]
    lines = bare.split("\n")
    assert [lines[one.line - 1].split("(")[0].split()[-1] for one in questions] == ["total", "paid", "load"]
    assert "prices." not in bare
    assert "An order." in bare
    assert ast.dump(ast.parse(bare).body[-1]) == ast.dump(ast.parse(MODULE).body[-1])


@pytest.mark.slow
def test_it_finds_functions_by_what_their_docstrings_said(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "a.py").write_text(MODULE.replace("paid(self)", "was_paid(self)"))
    command = [sys.executable, "-m", "benchmarks", "code", "--path", str(tmp_path / "shop"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["documents"] == 3
    assert {figures[name]["n"] for name in ("afterrun", "vector", "text", "afterrun_all")} == {3}
    assert figures["afterrun"]["mrr@10"] > 0.5
