"""Rows and questions for benchmarks of size: real sentences recombined, with vectors near those of a real model.

A FILE is LoCoMo's JSON (`turns` with a `text`), JSON lines with a `text`, or plain text. Sentences are what lies
between full stops or line ends. A text of some sentences has them on lines of their own, so that the embedder here can
tell them apart again.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterrun.embed import Embedder
from afterrun.models import NewMemory
from benchmarks.embed import short_notes

PROJECTS: Final = tuple(f"project-{number:02}" for number in range(20))
SENTENCES: Final = 6000
"""Most sentences taken from the files: each is really embedded before the first row is written."""
FEWEST_SENTENCES: Final = 50
ROWS_A_SESSION: Final = 10
AGE_DAYS: Final = 730
NOISE: Final = 0.4
"""Length of what is added to the mean of the sentences' vectors: it puts the sum about as far from the mean as the
model puts a whole text (cosine 0.9)."""

_COLLECTION_OF: Final = {
    "decision": "memory",
    "architecture": "memory",
    "preference": "memory",
    "fact": "memory",
    "convention": "standards",
    "bug_fix": "memory",
    "debugging": "memory",
    "session_summary": "memory",
    "document_chunk": "docs",
    "code_context": "codebase",
}
SOURCE_TYPES: Final = tuple(_COLLECTION_OF)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")
_SENTENCE_CHARACTERS: Final = (25, 250)


def sentences(files: Sequence[Path], rng: random.Random, *, most: int = SENTENCES) -> list[str]:
    """Up to `most` different sentences of the files in random order; of word tables where there is no file."""
    texts = [text for file in files for text in _texts(file)] or short_notes(3 * SENTENCES)
    shortest, longest = _SENTENCE_CHARACTERS
    parts = (part.strip() for text in texts for part in _SENTENCE_END.split(text))
    found = list(dict.fromkeys(part for part in parts if shortest <= len(part) <= longest))
    if len(found) < FEWEST_SENTENCES:
        raise SystemExit(f"the files have {len(found)} sentences of use, at least {FEWEST_SENTENCES} are needed")
    rng.shuffle(found)
    return found[:most]


def rows(count: int, pool: Sequence[str], now: datetime, rng: random.Random) -> Iterator[NewMemory]:
    """`count` memories of one to three sentences, in sessions of one project, of the ten types, 0 to 2 years old."""
    for number in range(count):
        place = number % ROWS_A_SESSION
        if place == 0:
            project, age = PROJECTS[number // ROWS_A_SESSION % len(PROJECTS)], timedelta(days=rng.uniform(0, AGE_DAYS))
        source_type = rng.choice(SOURCE_TYPES)
        yield NewMemory(
            content="\n".join(rng.sample(pool, rng.choice((1, 2, 2, 3)))),
            collection=_COLLECTION_OF[source_type],
            project=project,
            source_type=source_type,
            session=f"session-{number // ROWS_A_SESSION}",
            session_ordinal=place,
            # Recombined texts repeat; with a key of its own each is a row of its own.
            source_key=f"benchmark:{number}",
            created_at=now - age + timedelta(minutes=place),
        )


def questions(count: int, pool: Sequence[str], rng: random.Random) -> list[str]:
    """Sentences cut to the length of a question, some words dropped; all different."""
    asked: dict[str, None] = {}
    while len(asked) < count:
        words = rng.choice(pool).split()
        start = rng.randrange(max(1, len(words) - 11))
        kept = [word for word in words[start : start + 12] if rng.random() > 0.25]
        if len(kept) > 2:
            asked[" ".join(kept)] = None
    return list(asked)


class RecombinedEmbedder:
    """An `Embedder` for rows of this module: the first `real` texts are embedded by `model`, the others made of
    the real vectors of their sentences, perturbed and normalised. The same text always gets the same vector."""

    def __init__(self, model: Embedder, pool: Sequence[str], *, real: int) -> None:
        self.spec = model.spec
        self._model = model
        self._places = {sentence: place for place, sentence in enumerate(pool)}
        self._vectors = model.encode(pool)
        self._real = real

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.encode`."""
        if self._real > 0:
            self._real -= len(texts)
            return self._model.encode(texts)
        return np.stack([_normalised(self._recombined(text)) for text in texts])

    def _recombined(self, text: str) -> NDArray[np.float32]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        rng = np.random.default_rng(seed)
        # A piece that a chunker cut inside a sentence has no vector of its own: any will do.
        places = [self._places[line] for line in text.split("\n") if line in self._places] or [seed % len(self._places)]
        noise = rng.standard_normal(self.spec.dimension, np.float32)
        return _normalised(self._vectors[places].mean(axis=0)) + NOISE * _normalised(noise)


def _normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _texts(file: Path) -> Iterator[str]:
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        yield from (turn["text"] for conversation in json.loads(content) for turn in conversation["turns"])
    elif file.suffix == ".jsonl":
        yield from (json.loads(line)["text"] for line in content.splitlines() if line.strip())
    else:
        yield content
