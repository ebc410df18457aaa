"""Small stand-ins for tests of programs that use Afterrun: deterministic, without a model or a network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterrun.errors import EmbeddingError
from afterrun.models import ModelSpec

_WORD: Final = re.compile(r"\w+")


class HashEmbedder:
    """An `Embedder` of words: each word has a fixed random direction, a text is the sum of its words' directions.

    Texts that share words are near each other, equal bags of words are equal, and the vectors are the same on every
    machine. `fail_on` tells the texts on which `encode` raises `EmbeddingError`, as a model does on a poisonous one.
    `path` is the folder of a model whose tokenizer a `Chunker` may use beside it.
    """

    def __init__(
        self, dimension: int = 384, *, path: str = "", fail_on: Callable[[str], bool] = lambda text: False
    ) -> None:
        self.spec = ModelSpec(id=f"words-{dimension}@hash", path=path, dimension=dimension, max_tokens=256)
        self._fail_on = fail_on

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One unit vector a text, shape `(len(texts), dimension)`.

        Raises:
            EmbeddingError: `fail_on` holds for one of the texts.
        """
        if any(map(self._fail_on, texts)):
            raise EmbeddingError(f"{self.spec.id} failed on one of {len(texts)} texts, as its test asks")
        vectors = np.zeros((len(texts), self.spec.dimension), np.float32)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()) or [text]:
                vectors[row] += self._direction(word)
            vectors[row] /= np.linalg.norm(vectors[row])
        return vectors

    def _direction(self, word: str) -> NDArray[np.float32]:
        seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8])
        return np.random.default_rng(seed).standard_normal(self.spec.dimension).astype(np.float32)
