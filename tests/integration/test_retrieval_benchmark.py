"""The retrieval benchmark, on files of both formats that are small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOUNS = ("lighthouse", "harbour", "orchard", "violin", "glacier", "saddle", "compass", "lantern", "meadow", "anvil")


@pytest.mark.slow
def test_the_retrieval_benchmark_takes_both_formats_and_reports_every_figure(tmp_path: Path) -> None:
    conversation = {
        "conversation": "one",
        "turns": [
            {"id": f"D1:{number}", "session": 1, "at": "1:56 pm on 8 May, 2023", "text": f"Ann: I saw the {noun}."}
            for number, noun in enumerate(NOUNS)
        ],
        "questions": [
            {"question": f"Who saw the {noun}?", "evidence": [f"D1:{number}"]} for number, noun in enumerate(NOUNS)
        ]
        + [{"question": "Nobody knows?", "evidence": ["D9:9"]}],
    }
    (tmp_path / "talk.json").write_text(json.dumps([conversation]))
    documents: list[dict[str, str]] = [
        {
            "id": noun,
            "project": "p",
            "created_at": "2024-01-02T03:04:05+01:00",
            "text": f"The {noun} broke.",
            "query": noun,
        }
        for noun in NOUNS
    ]
    (tmp_path / "commits.jsonl").write_text("\n".join(json.dumps(document) for document in documents))
    command = [sys.executable, "-m", "benchmarks", "retrieval", "--json"]
    done = subprocess.run(
        [*command, str(tmp_path / "talk.json"), str(tmp_path / "commits.jsonl")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files: dict[str, dict[str, Any]] = json.loads(done.stdout)["files"]
    assert set(files) == {"talk.json", "talk.json#aged", "commits.jsonl", "commits.jsonl#aged"}
    for name in ("talk.json", "commits.jsonl"):
        assert set(files[name]) == {"afterrun", "vector", "text", "bm25", "rrf"}
        assert set(files[name]["afterrun"]) == {"recall@5", "recall@10", "recall@20", "mrr@10", "r@1", "n"}
        assert files[name]["afterrun"]["n"] == len(NOUNS)
        assert files[name]["afterrun"]["r@1"] == 1
        assert files[f"{name}#aged"]["afterrun"]["recall@10"] == 1
