"""The latency benchmark, on a database that is small enough for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMED = ("hnsw", "sql", "sql_filtered", "recall", "embed_query", "naive")


@pytest.mark.slow
def test_the_latency_benchmark_reports_every_figure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    texts, scratch = tmp_path / "texts.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    lines = (f"The {noun} of service {number} was restarted." for number in range(40) for noun in ("queue", "cache"))
    texts.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "latency",
        "--rows",
        "1000",
        "--questions",
        "5",
        "--json",
        str(texts),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TMPDIR": str(scratch)}, capture_output=True, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures["rows"] == 1000
    for name in TIMED:
        assert 0 < figures[name]["p50_ms"] <= figures[name]["p95_ms"]
    assert figures["clients4_qps"] > 0
    assert figures["index_mb"] > 0
    assert figures["build_s"] > 0
    assert figures["filtered"]["sql_filtered"]["full"] == 1.0
    assert figures["filtered"]["sql_filtered"]["exact"] >= 0.97
    assert [path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor_")] == []
