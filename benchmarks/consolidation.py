"""What is merged and what is lost: the deterministic judge against plain thresholds of the cosine, on labelled pairs.

    python -m benchmarks consolidation FILE… [--scan N] [--json]

A FILE has one pair a line, `{"a": …, "b": …, "label": "same" | "conflict" | "distinct"}`. `judge` is the product's own
path: both texts are remembered in a project of their own, embedded, compared with all that the store holds, and judged
if they become candidates; a pair is merged if one of the two is no longer active, or was never written. `judge_alone`
asks the judge without the rest. `lost` is the share of the conflict and distinct pairs that were merged.

With `--scan N` it also measures the search for near-duplicates in a store of N generated memories.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np

from afterrun.client import Memory
from afterrun.judge import DeterministicJudge
from afterrun.models import Member
from afterrun.vectors import embed_pending
from benchmarks._fresh import fresh_memory
from benchmarks._scan import scan

COSINES: Final = (0.85, 0.88, 0.95)
"""The thresholds of the design's origin: cluster, near, exact."""
LABELS: Final = ("same", "conflict", "distinct")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two texts and whether they may become one."""

    a: str
    b: str
    label: str


def run(argv: Sequence[str]) -> dict[str, object]:
    """Measure; shares are from 0 to 1, times in seconds or milliseconds as the keys say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks consolidation")
    parser.add_argument("files", nargs="+", type=Path, help="labelled pairs, one JSON object a line")
    parser.add_argument("--scan", type=int, metavar="N", help="also search a store of N memories for near-duplicates")
    options = parser.parse_args(argv)
    pairs = {path.name: read_pairs(path) for path in options.files}
    figures: dict[str, object] = {"files": {name: _measured(found) for name, found in pairs.items()}}
    if options.scan:
        texts = [text for found in pairs.values() for pair in found for text in (pair.a, pair.b)]
        with fresh_memory() as memory:
            figures["scan"] = scan(memory, options.scan, texts)
    return figures


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file. Ends the program where a line is none."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pair = Pair(a=row["a"], b=row["b"], label=row["label"])
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}, line {number} is no labelled pair: {error!r}") from error
        if pair.label not in LABELS:
            raise SystemExit(f"{path}, line {number} has the label {pair.label!r}: use one of {', '.join(LABELS)}")
        pairs.append(pair)
    return pairs


def _measured(pairs: Sequence[Pair]) -> dict[str, object]:
    with fresh_memory() as memory:
        written = [_remembered(memory, number, pair) for number, pair in enumerate(pairs)]
        while embed_pending(memory.database, memory.embedder).more:
            pass
        for members in memory.find_clusters():
            memory.consolidate(*members)
        merged = [_is_merged(memory, ids) for ids in written]
        guards = _guards(memory, pairs, written)
        cosines = _cosines(memory, pairs)
        candidates = float(np.mean(cosines >= memory.thresholds.cluster))
    figures: dict[str, object] = {"judge": _figures(pairs, merged)}
    for at_least in COSINES:
        figures[f"cosine_{at_least}"] = _figures(pairs, [bool(cosine >= at_least) for cosine in cosines])
    figures["judge_alone"] = _figures(pairs, [_is_same(pair) for pair in pairs])
    return figures | {"guards": guards, "candidates": candidates, "pairs": dict(Counter(pair.label for pair in pairs))}


def _remembered(memory: Memory, number: int, pair: Pair) -> tuple[UUID, UUID]:
    now = datetime.now(UTC)
    project = f"pair-{number}"
    older = memory.remember(pair.a, project=project, created_at=now - timedelta(days=1))
    return older.id, memory.remember(pair.b, project=project, created_at=now).id


def _is_merged(memory: Memory, ids: tuple[UUID, UUID]) -> bool:
    return len({record.id for record in memory.get(*ids) if record.is_active}) < 2


def _guards(memory: Memory, pairs: Sequence[Pair], written: Sequence[tuple[UUID, UUID]]) -> dict[str, dict[str, int]]:
    """How often each guard kept a pair of a label apart; `no candidate` counts pairs that never came to the judge."""
    fired = {label: Counter[str]() for label in LABELS}
    for pair, ids in zip(pairs, written, strict=True):
        found = memory.history(ids[0]).consolidations
        guard = (found[0].guard if found[0].state != "merged" else None) if found else "no candidate"
        if guard:
            fired[pair.label][guard] += 1
    return {label: dict(counts.most_common()) for label, counts in fired.items()}


def _cosines(memory: Memory, pairs: Sequence[Pair]) -> np.ndarray:
    a, b = (memory.embedder.encode(texts) for texts in ([pair.a for pair in pairs], [pair.b for pair in pairs]))
    cosines: np.ndarray = (a * b).sum(axis=1)
    return cosines


def _is_same(pair: Pair) -> bool:
    now = datetime.now(UTC)
    members = [
        Member(id=UUID(int=number), content=text, source_type="fact", created_at=now + timedelta(seconds=number))
        for number, text in enumerate((pair.a, pair.b))
    ]
    return len(DeterministicJudge().judge(members).same) == len(members)


def _figures(pairs: Sequence[Pair], merged: Sequence[bool]) -> Mapping[str, float | None]:
    """Precision, recall and loss of a way to merge; None where the file has no pair to measure it on."""
    counts = Counter((pair.label == "same", taken) for pair, taken in zip(pairs, merged, strict=True))
    right, wrong = counts[True, True], counts[False, True]
    return {
        "precision_same": _share(right, right + wrong),
        "recall_same": _share(right, right + counts[True, False]),
        "lost": _share(wrong, wrong + counts[False, False]),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
