"""Embedding speed: Afterrun's embedder against bare `SentenceTransformer.encode`, on the same texts in one run.

`python -m benchmarks embed [FILE…] [--texts N] [--rounds N] [--threads N] [--json]`. A FILE has one text a line;
without one the texts are short run notes, made from word tables with a fixed seed. The two take turns, both warm and
with the same number of threads; the figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterrun.embed import load_embedder, model_spec
from afterrun.modelfiles import PACKAGED_MODEL, backend_of

Encode = Callable[[list[str]], NDArray[np.float32]]

_SEED: Final = 20250101
_PARTS: Final = (
    ("Fixed", "Added", "Removed", "Reworked", "Measured", "Documented", "Reverted", "Renamed"),
    ("the retry loop", "a cache", "the login form", "an index", "the rate limit", "the CSV export", "the nightly job"),
    ("of the billing service", "in orders-api", "behind the gateway", "for the mobile client", "of the search page"),
    ("because timeouts piled up", "so that tests pass again", "after the schema change", "as the review asked"),
    ("", "It now waits 30 seconds at most.", "Postgres 17 is required.", "Two tests were flaky and are fixed.",
     "The old path stays for one release; `parse_config()` warns when it is used.", "Latency fell from 120 to 45 ms."),
)  # fmt: skip


def short_notes(count: int, seed: int = _SEED) -> list[str]:
    """Notes of one to three sentences, as pipelines leave them: about 15 to 60 tokens."""
    rng = random.Random(seed)
    return [" ".join(_sentence(rng) for _ in range(rng.choice((1, 1, 2, 3)))) for _ in range(count)]


def run(argv: list[str]) -> dict[str, object]:
    """Run the benchmark; the keys are those of the design's table, the rates are texts per second."""
    args = _arguments(argv)
    texts = [line for file in args.files for line in _lines(file)] or short_notes(args.texts)
    with tempfile.TemporaryDirectory(prefix="afterrun-embed-") as scratch:
        spec = model_spec(args.model)
        ours = load_embedder(spec, cache=args.cache or Path(scratch), threads=args.threads)
        bare = _bare_torch(spec.path, args.threads)
        rates, cosine = _throughput(ours.encode, bare, texts, args.rounds)
        query, torch_query = _query_ms(ours.encode, bare, texts[: args.queries])
    return {
        "backend": backend_of(spec),
        "model": spec.id,
        "texts": len(texts),
        "threads": args.threads,
        "afterrun_per_s": round(rates[0], 1),
        "torch_per_s": round(rates[1], 1),
        "ratio": round(rates[0] / rates[1], 2),
        "min_cosine": round(cosine, 6),
        "query_ms": round(query, 2),
        "torch_query_ms": round(torch_query, 2),
    }


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks embed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="texts, one a line")
    parser.add_argument("--model", default=PACKAGED_MODEL)
    parser.add_argument("--texts", type=int, default=500, help="how many notes to make where no file is given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="cores for either side")
    parser.add_argument("--cache", type=Path, help="folder of converted models; a scratch folder if not given")
    return parser.parse_args(argv)


def _sentence(rng: random.Random) -> str:
    *start, more = (rng.choice(part) for part in _PARTS)
    return f"{' '.join(start)}. {more}".strip()


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _bare_torch(path: str, threads: int) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    from afterrun.embed.torch_backend import quiet

    torch.set_num_threads(threads)
    with quiet():
        model = SentenceTransformer(path, device="cpu", local_files_only=True)
    return lambda texts: np.asarray(model.encode(texts, normalize_embeddings=True, show_progress_bar=False))


def _throughput(ours: Encode, bare: Encode, texts: list[str], rounds: int) -> tuple[tuple[float, float], float]:
    cosine = float((ours(texts) * bare(texts)).sum(axis=1).min())
    seconds = [(_seconds(ours, texts), _seconds(bare, texts)) for _ in range(rounds)]
    first, second = (len(texts) / statistics.median(column) for column in zip(*seconds, strict=True))
    return (first, second), cosine


def _query_ms(ours: Encode, bare: Encode, queries: list[str]) -> tuple[float, float]:
    times = [(_seconds(ours, [query]), _seconds(bare, [query])) for query in queries]
    first, second = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    return first, second


def _seconds(encode: Encode, texts: list[str]) -> float:
    start = time.perf_counter()
    encode(texts)
    return time.perf_counter() - start
