"""From `finish()` to a found memory, and a whole run store through the pipeline, against bare encoding.

    python -m benchmarks pipeline [--db FILE] [--json]

Runs the local stack as `afterrun up` does, in a folder of its own: real Postgres, broker, Celery workers and beat.
Without a file it writes a run store of its own. The baseline is the product's embedder on the same chunks in one call
in this process, before and after each of the pipeline's turns, while the stack idles; `encode_ratio` is the median of
the pipeline's rates to theirs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import psutil

from afterrun import hooks, schema
from afterrun.client import Memory
from afterrun.embed import Embedder, load_embedder, model_spec
from afterrun.local import Stack
from afterrun.models import Hit, Run
from afterrun.runs import RunStore
from afterrun.settings import Settings

FINISHES: Final = 300
FOUND: Final = 30
OWN_RUNS: Final = 1000
ROUNDS: Final = 5
PATIENCE_SECONDS: Final = 300.0

T = TypeVar("T")


def run(argv: Sequence[str]) -> dict[str, object]:
    """Measure; times in milliseconds or seconds as the keys say, memory in MB (10^6 bytes)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pipeline")
    parser.add_argument("--db", type=Path, help="a run store (SQLite); a copy of it is used")
    options = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="afterrun-bench-"))
    try:
        os.environ["AFTERRUN_HOME"] = str(home)
        settings = Settings(home=home, run_store=home / "memory.db")
        spec = model_spec(settings.model)
        embedder = load_embedder(spec, cache=home / "models")

        def migrate(url: str) -> None:
            schema.migrate(url, spec)

        with Stack(settings, migrate=migrate) as stack, Memory() as memory:
            figures = _latencies(memory) | _bulk(memory, embedder, options.db, home)
            return figures | {
                "model": spec.id,
                "embed_worker_peak_mb": _peak_mb("embed@"),
                "workers": sorted(stack.healthy()),
            }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _latencies(memory: Memory) -> dict[str, object]:
    """How soon a run is found on idle and warm workers, and how long `finish()` takes.

    `finish_ms` is call after call while the workers are held still: the time of `finish()` and the broker;
    `finish_busy_ms` the same while they work on those very runs and take the processors.
    """
    hooks.finish("bench/warm", "The first run warms the workers up.")
    _until(lambda: _settled(memory))
    words, vectors = zip(*(_found_after(memory, number) for number in range(FOUND)), strict=True)
    with _held_still("afterrun_workers.app"):
        alone = _finish_ms("bench/alone")
    _until(lambda: _settled(memory))
    busy = _finish_ms("bench/busy")
    _until(lambda: _settled(memory))
    return {
        "finish_ms": {"p50": _quantile(alone, 0.5), "p99": _quantile(alone, 0.99)},
        "finish_busy_ms": {"p50": _quantile(busy, 0.5), "p99": _quantile(busy, 0.99)},
        "words_p95_s": _quantile(words, 0.95),
        "vector_p95_s": _quantile(vectors, 0.95),
    }


def _finish_ms(repo: str) -> list[float]:
    took: list[float] = []
    for number in range(FINISHES):
        started = time.perf_counter()
        receipt = hooks.finish(repo, f"Run {number} changed file {number * 13}.")
        took.append((time.perf_counter() - started) * 1000)
        if not (receipt.stored and receipt.queued):
            raise SystemExit(f"finish() did not do its work: {receipt}")
    return took


@contextmanager
def _held_still(name: str) -> Iterator[None]:
    """Suspend the stack's processes whose command line has `name`."""
    processes = _processes(name)
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _processes(name: str) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if name in " ".join(child.cmdline())]


def _found_after(memory: Memory, number: int) -> tuple[float, float]:
    marker = f"marker{number:05d}"
    started = time.perf_counter()
    hooks.finish("bench/found", f"The {marker} release went out and everybody was content with it.")
    _until(lambda: _hit(memory, marker))
    by_words = time.perf_counter() - started
    _until(lambda: (hit := _hit(memory, marker)) and hit.vector is not None)
    by_vector = time.perf_counter() - started
    _until(lambda: _settled(memory))
    return by_words, by_vector


def _bulk(memory: Memory, embedder: Embedder, source: Path | None, home: Path) -> dict[str, object]:
    """All of one run store, from the first row read to the last vector written, several times."""
    with RunStore(_copied(source, home / "first.db")) as store:
        runs = store.unindexed(1_000_000)
    chunks = [piece for run in runs for piece in memory.chunker.split(run.summary)]
    embedder.encode(chunks)
    encode_s = [_seconds(lambda: embedder.encode(chunks))]
    pipeline_s: list[float] = []
    for number in range(ROUNDS):
        with RunStore(_copied(source, home / f"round-{number}.db")) as store:
            pipeline_s.append(_seconds(lambda: _through_the_pipeline(memory, store, expected=len(runs))))
        _empty(memory)
        encode_s.append(_seconds(lambda: embedder.encode(chunks)))
    baselines = [statistics.mean(pair) for pair in itertools.pairwise(encode_s)]
    return {
        "rows": len(runs),
        "chunks": len(chunks),
        "rows_per_s": len(runs) / statistics.median(pipeline_s),
        "encode_rows_per_s": len(runs) / statistics.median(encode_s),
        "encode_ratio": statistics.median(base / took for base, took in zip(baselines, pipeline_s, strict=True)),
        "pipeline_s": pipeline_s,
        "encode_s": encode_s,
    }


def _through_the_pipeline(memory: Memory, store: RunStore, *, expected: int) -> None:
    indexed = memory.index_runs(store)
    if indexed.added != expected:
        raise SystemExit(f"{expected} runs were to be indexed, but: {indexed}")
    _until(lambda: _all_embedded(memory), pause=0.1)


def _empty(memory: Memory) -> None:
    # Else the next round's memories are near-duplicates of these, and merging them would be measured too.
    with memory.database.transaction() as connection:
        connection.execute("TRUNCATE memories, consolidations CASCADE")


def _copied(path: Path | None, copy: Path) -> Path:
    if path is not None:
        shutil.copyfile(path, copy)
        return copy
    words = random.Random(1)
    vocabulary = [
        f"{first}{second}"
        for first in ("re", "un", "over", "co")
        for second in ("fix", "build", "test", "load", "sort")
    ]
    with RunStore(copy) as store:
        store.save_many(
            [
                Run(repo="bench/own", run_id=str(number), summary=" ".join(words.choices(vocabulary, k=60)))
                for number in range(OWN_RUNS)
            ]
        )
    return copy


def _hit(memory: Memory, marker: str) -> Hit | None:
    hits = memory.search(f"the {marker} release", limit=5, min_results=0)
    return next((hit for hit in hits if marker in hit.content), None)


def _settled(memory: Memory) -> bool:
    status = memory.status()
    return not status.pending_chunks and not any(store.totals and store.totals.unindexed for store in status.run_stores)


def _all_embedded(memory: Memory) -> bool:
    # Cheaper than a count: the question must not take time from what it measures.
    with memory.database.transaction() as connection:
        waiting = "SELECT EXISTS (SELECT FROM chunks WHERE embedding IS NULL AND is_active AND NOT failed)"
        return connection.execute(waiting).fetchone() == (False,)


def _until(condition: Callable[[], T], *, pause: float = 0.01) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS:.0f} s in vain: the pipeline does not move")
        time.sleep(pause)
    return value


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _peak_mb(name: str) -> float:
    """The highest resident size of the worker whose command line has `name`, its pool process included."""
    status = (Path(f"/proc/{worker.pid}/status").read_text() for worker in _processes(name))
    peaks = (re.search(r"VmHWM:\s+(\d+) kB", text) for text in status)
    return max(int(peak[1]) * 1024 / 1e6 for peak in peaks if peak)
