"""The plain backend: sentence-transformers on torch, on the CPU, from local files only.

Load it in the process that uses it: torch's threads do not survive a fork. A child of a process that has computed would
wait for them without end, so a child computes in one thread, which is slow and works.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers.utils import logging as transformers_logging

from afterrun.errors import EmbeddingError, ModelMismatchError
from afterrun.models import ModelSpec

BATCH_SIZE: Final = 16
"""Texts a forward pass: small batches of like length beat large ones on a CPU, which pads less."""

os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))

_HIDE_BAR: Final[Callable[[], None]] = transformers_logging.disable_progress_bar
_SHOW_BAR: Final[Callable[[], None]] = transformers_logging.enable_progress_bar


def load_sentence_transformer(spec: ModelSpec) -> SentenceTransformer:
    """The model of `spec`, without a progress bar.

    Raises:
        EmbeddingError: its files cannot be loaded.
        ModelMismatchError: its vectors are not as long as `spec` says.
    """
    try:
        with quiet():
            model = SentenceTransformer(spec.path, device="cpu", local_files_only=True)
    except Exception as error:  # whatever a broken model file makes the loaders raise
        raise EmbeddingError(f"the model in {spec.path} cannot be loaded ({error}): fetch the model again") from error
    if (found := model.get_embedding_dimension()) != spec.dimension:
        raise ModelMismatchError(f"{spec.id} in {spec.path} gives {found} numbers a vector, not {spec.dimension}")
    return model.eval()


class TorchEmbedder:
    """An `Embedder` on torch. `threads` is torch's number for the whole process; None leaves it."""

    def __init__(self, spec: ModelSpec, *, threads: int | None = None) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        if threads is not None:
            torch.set_num_threads(threads)
        self._model = load_sentence_transformer(spec)
        self._model.max_seq_length = spec.max_tokens

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.encode`."""
        if not texts:
            return np.empty((0, self.spec.dimension), np.float32)
        try:
            with self._lock:
                vectors = self._model.encode(
                    list(texts), batch_size=BATCH_SIZE, show_progress_bar=False, normalize_embeddings=True
                )
        except (RuntimeError, ValueError, TypeError) as error:
            raise EmbeddingError(f"{self.spec.id} failed on {len(texts)} texts: {error}") from error
        return np.asarray(vectors, np.float32)

    def traceable(self) -> torch.nn.Module:
        """The whole model as a function of `input_ids` and `attention_mask`, (texts, tokens) each, to unit vectors."""
        return _Traceable(self._model)


class _Traceable(torch.nn.Module):
    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        features = self.model({"input_ids": input_ids, "attention_mask": attention_mask})
        return torch.nn.functional.normalize(features["sentence_embedding"], dim=1)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bar and its hints to model authors off the terminal."""
    bar, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    _HIDE_BAR()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            _SHOW_BAR()
