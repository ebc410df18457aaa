"""The benchmark `consolidation` reads any file of labelled pairs and prints the figures that others rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAIRS: Final = (
    ("Backups run at 02:00 UTC.", "Backups run at 02:00 UTC every night.", "same"),
    ("The API listens on port 8080.", "The API listens on port 8081.", "conflict"),
    ("Feature branches start with feat/.", "The office plants are watered on Mondays.", "distinct"),
)


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "consolidation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_it_prints_what_is_merged_and_lost_by_the_judge_and_by_cosines(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    lines = [json.dumps({"a": a, "b": b, "label": label, "why": "test"}) for a, b, label in PAIRS]
    file.write_text("\n".join([*lines, ""]))
    done = benchmark(str(file), "--scan", "300", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    found = figures["files"]["pairs.jsonl"]
    assert {"judge", "cosine_0.85", "cosine_0.88", "cosine_0.95", "judge_alone"} <= set(found)
    assert found["judge"] == {"precision_same": 1.0, "recall_same": 1.0, "lost": 0.0}
    assert found["cosine_0.85"]["lost"] == 0.5
    assert found["guards"]["conflict"] == {"numbers": 1}
    assert found["guards"]["distinct"] == {"no candidate": 1}
    assert (figures["scan"]["looked_at"], figures["scan"]["second_looked_at"]) == (300, 0)


def test_a_line_that_is_no_pair_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"a": "One.", "b": "Two.", "label": "maybe"}\n')
    done = benchmark(str(file))
    assert done.returncode == 1
    assert "line 1 has the label 'maybe'" in done.stderr
