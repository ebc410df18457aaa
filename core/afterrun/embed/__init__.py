"""Embedders: texts in, unit vectors out.

`model_spec` says which model and backend, `load_embedder` loads it, `query_embedder` prefers the local stack's model
over a load of its own. Nothing here imports torch until a model on torch is loaded, or converted for OpenVINO.

Load a model in the process that uses it: threads do not survive a fork, so a child with its parent's model is slow on
torch. A prefork worker loads lazily, in its child.
"""

from __future__ import annotations

import json
import logging
import os
import socket as sockets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from afterrun.errors import EmbeddingError, ModelMismatchError
from afterrun.modelfiles import backend_of, model_spec
from afterrun.models import ModelSpec

__all__ = [
    "CachedEmbedder",
    "Embedder",
    "LazyEmbedder",
    "SocketEmbedder",
    "load_embedder",
    "model_spec",
    "query_embedder",
]

logger = logging.getLogger(__name__)

SOCKET_TIMEOUT: Final = 15.0
"""Seconds for the stack's answer: its first one loads the model."""


class Embedder(Protocol):
    """What turns texts into vectors. One embedder may serve several threads."""

    @property
    def spec(self) -> ModelSpec:
        """The model; stored vectors carry `spec.id`."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One L2-normalised row a text, in order: shape `(len(texts), spec.dimension)`.

        What a text has beyond `spec.max_tokens` is not read; `Chunker.split` makes pieces that fit.

        Raises:
            EmbeddingError: the model failed on one of the texts, or cannot be loaded or reached.
        """
        ...


def load_embedder(spec: ModelSpec, *, cache: Path, threads: int | None = None) -> Embedder:
    """Load the model of `spec` on the backend that its id names.

    OpenVINO converts a model once, in some seconds and with torch, and keeps the result in the folder `cache`.
    `threads` is the number of cores to use; None means all.

    Raises:
        EmbeddingError: the model's files are broken or the backend cannot run it; the message says what to do.
        ModelMismatchError: the model's vectors are not as long as `spec` says.
    """
    if backend_of(spec) == "openvino":
        from afterrun.embed.openvino_backend import OpenVinoEmbedder, converted

        return OpenVinoEmbedder(spec, converted(spec, cache), threads=threads)
    from afterrun.embed.torch_backend import TorchEmbedder

    return TorchEmbedder(spec, threads=threads)


def query_embedder(spec: ModelSpec, *, socket: Path | None, cache: Path) -> Embedder:
    """The embedder of questions: asks the service at `socket` while it answers, else loads the model on first use."""
    local = LazyEmbedder(spec, cache=cache)
    return _StackFirst(SocketEmbedder(spec, socket), local) if socket else local


class LazyEmbedder:
    """Loads its model at the first `encode`, once, in the process that calls it."""

    def __init__(self, spec: ModelSpec, *, cache: Path, threads: int | None = None) -> None:
        self.spec = spec
        self._cache = cache
        self._threads = threads
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.encode`."""
        if not texts:
            return np.empty((0, self.spec.dimension), np.float32)
        with self._lock:
            if self._loaded is None:
                self._loaded = load_embedder(self.spec, cache=self._cache, threads=self._threads)
        return self._loaded.encode(texts)


class SocketEmbedder:
    """Asks the local stack's embedding service at a Unix socket, one request a connection.

    The request is a line of JSON `{"model": id, "texts": [...]}`, the answer a line `{"vectors": [[...], ...]}` or
    `{"error": "..."}`. `timeout` is in seconds and bounds each wait.
    """

    def __init__(self, spec: ModelSpec, socket_path: Path, *, timeout: float = SOCKET_TIMEOUT) -> None:
        self.spec = spec
        self._path = socket_path
        self._timeout = timeout

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.encode`."""
        if not texts:
            return np.empty((0, self.spec.dimension), np.float32)
        request = json.dumps({"model": self.spec.id, "texts": list(texts)}).encode()
        try:
            answer = json.loads(self._ask(request + b"\n"))
        except (OSError, ValueError) as error:
            raise EmbeddingError(f"no answer from the embedding service at {self._path}: {error}") from error
        return self._vectors(answer, len(texts))

    def _ask(self, request: bytes) -> bytes:
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout)
            connection.connect(str(self._path))
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.readline()

    def _vectors(self, answer: Any, count: int) -> NDArray[np.float32]:
        if not isinstance(answer, dict) or "vectors" not in answer:
            reason = answer.get("error") if isinstance(answer, dict) else "its answer is no object"
            raise EmbeddingError(f"the embedding service at {self._path} failed: {reason}")
        try:
            vectors = np.asarray(answer["vectors"], np.float32)
        except (TypeError, ValueError) as error:
            raise EmbeddingError(f"the embedding service at {self._path} gave no vectors: {error}") from error
        if vectors.shape != (count, self.spec.dimension):
            expected = f"({count}, {self.spec.dimension})"
            raise ModelMismatchError(
                f"the embedding service at {self._path} gave vectors of shape {vectors.shape}, not {expected}: "
                "run `afterrun down` and `afterrun up`"
            )
        return vectors


class _StackFirst:
    """The stack's service, and from its first failure on a model in this process."""

    def __init__(self, stack: Embedder, local: Embedder) -> None:
        self.spec = local.spec
        self._current = stack
        self._local = local

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        try:
            return self._current.encode(texts)
        except EmbeddingError as error:
            if self._current is self._local:
                raise
            logger.info("loading the model here: %s", error)
            self._current = self._local
        return self._local.encode(texts)


_caches: WeakSet[CachedEmbedder] = WeakSet()


class CachedEmbedder:
    """Keeps the vectors of the last `size` different texts of `inner`; a failure is not kept.

    Usable from threads, which may compute a new text twice but never wait for each other's model; a forked child goes
    on with what its parent had.
    """

    def __init__(self, inner: Embedder, *, size: int = 512) -> None:
        self.spec = inner.spec
        self._inner = inner
        self._size = size
        self._lock = threading.Lock()
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        _caches.add(self)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.encode`."""
        found = self._known(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        if missing:
            computed = dict(zip(missing, self._inner.encode(missing), strict=True))
            self._keep(computed)
            found |= computed
        vectors = [found[text] for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.spec.dimension), np.float32)

    def _known(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        with self._lock:
            found = {text: self._vectors[text] for text in texts if text in self._vectors}
            for text in found:
                self._vectors.move_to_end(text)
            return found

    def _keep(self, computed: dict[str, NDArray[np.float32]]) -> None:
        with self._lock:
            self._vectors.update(computed)
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)

    def _after_fork(self) -> None:
        # Another thread of the parent may have held it; that thread does not exist here.
        self._lock = threading.Lock()


def _reset_after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
