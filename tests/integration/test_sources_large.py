"""A large folder: indexed without growing memory, and passed over quickly when nothing has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = 20_000
GROWTH_MB = 60
# In a process of its own, whose memory is nothing but this.
PASSES = """
import json, sys, time
from pathlib import Path
import psutil
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.embed import model_spec
from afterrun.gather import gather_folder
from afterrun.settings import Settings
from afterrun.sources.listing import list_files
from afterrun.testing import HashEmbedder

sizes = []
chunker = Chunker(HashEmbedder(path=model_spec(Settings.model).path).spec)
with Database(sys.argv[1]) as database:
    for _ in range(2):
        started = time.perf_counter()
        done = gather_folder(
            database,
            chunker,
            list_files(Path(sys.argv[2])),
            source="codebase",
            project="large",
            on_progress=lambda done: sizes.append(psutil.Process().memory_info().rss / 1e6),
            now_ns=lambda: time.time_ns() + 10_000_000_000,
        )
        seconds = time.perf_counter() - started
        print(json.dumps([seconds, done.added, done.unchanged, done.memories.added]))
print(json.dumps(max(sizes) - sizes[len(sizes) // 10]))
"""


def module(number: int) -> str:
    functions = (
        f"def task_{number}_{place}(order, limit={place}):\n"
        f"    total = order.total * {number}\n    if total > limit:\n"
        f"        raise ValueError('order {number} is too large')\n"
        f"    return total\n\n\n"
        for place in range(3)
    )
    return f"import os\n\nLIMIT = {number}\n\n\n{''.join(functions)}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_thousand_files_need_no_growing_memory_and_a_second_pass_a_twentieth_of_the_time(
    tmp_path: Path, database_url: str
) -> None:
    for number in range(FILES):
        folder = tmp_path / f"package{number % 100:02}"
        folder.mkdir(exist_ok=True)
        (folder / f"module{number:05}.py").write_text(module(number))
    done = subprocess.run(
        [sys.executable, "-c", PASSES, database_url, str(tmp_path)], capture_output=True, text=True, check=True
    )
    (first_s, *first), (second_s, *second), growth = map(json.loads, done.stdout.splitlines())
    assert first == [FILES, 0, 4 * FILES]
    assert second == [0, FILES, 0]
    assert second_s <= 0.05 * first_s
    assert growth < GROWTH_MB
