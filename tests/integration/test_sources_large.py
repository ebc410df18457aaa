"""A large folder: indexed without growing memory, and passed over quickly when nothing has changed."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.gather import gather_folder
from afterrun.mirror import Mirrored
from afterrun.sources.listing import list_files
from afterrun.testing import HashEmbedder

FILES = 20_000
GROWTH_MB = 60


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
    tmp_path: Path, database: Database, embedder: HashEmbedder
) -> None:
    for number in range(FILES):
        folder = tmp_path / f"package{number % 100:02}"
        folder.mkdir(exist_ok=True)
        (folder / f"module{number:05}.py").write_text(module(number))
    chunker = Chunker(embedder.spec)
    sizes: list[float] = []

    def measure(done: Mirrored) -> None:
        sizes.append(psutil.Process().memory_info().rss / 1e6)

    def index() -> tuple[Mirrored, float]:
        started = time.perf_counter()
        done = gather_folder(
            database,
            chunker,
            list_files(tmp_path),
            source="codebase",
            project="large",
            on_progress=measure,
            now_ns=lambda: time.time_ns() + 10_000_000_000,
        )
        return done, time.perf_counter() - started

    first, first_s = index()
    second, second_s = index()
    growth = max(sizes) - sizes[len(sizes) // 10]
    print(f"first {first_s:.1f} s, second {second_s:.2f} s, grew by {growth:.0f} MB")
    assert (first.added, first.memories.added) == (FILES, 4 * FILES)
    assert (second.unchanged, second.memories.added) == (FILES, 0)
    assert second_s <= 0.05 * first_s
    assert growth < GROWTH_MB
