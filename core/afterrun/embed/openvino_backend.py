"""The fast backend: the model's own modules, converted once, run by OpenVINO without torch.

Transformer, pooling and normalisation become one graph with fp32 weights. The first load converts, with torch, in some
seconds, and keeps the graph in a cache folder; later ones import neither torch nor transformers. Load it in the process
that uses it: OpenVINO's threads do not survive a fork.
"""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from afterrun.errors import EmbeddingError, ModelMismatchError
from afterrun.modelfiles import fingerprint, load_tokenizer, padding_id
from afterrun.models import ModelSpec

if TYPE_CHECKING:
    import openvino

logger = logging.getLogger(__name__)

MIN_COSINE: Final = 0.999
"""A converted model whose vectors are further from torch's is refused."""
BATCH_TOKENS: Final = 512
"""Tokens a forward pass, padding included."""

# OpenVINO prepares kernels for every new shape: lengths in steps of 8 keep the shapes few.
_LENGTH_STEP: Final = 8
_GRAPH: Final = "model.xml"
_PROBES: Final = (
    "ok",
    "The nightly build failed because the broker refused connections for ten minutes.",
    "A longer note that fills several sentences. " * 12,
)


class OpenVinoEmbedder:
    """An `Embedder` on OpenVINO with the converted `graph` (see `converted`); `threads` None means all cores.

    Raises:
        EmbeddingError: the graph or the tokenizer cannot be read.
        ModelMismatchError: the graph's vectors are not as long as `spec` says.
    """

    def __init__(self, spec: ModelSpec, graph: Path, *, threads: int | None = None) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._tokenizer = load_tokenizer(spec.path, max_tokens=spec.max_tokens)
        self._padding = padding_id(spec.path)
        self._request = _compile(spec, graph, threads).create_infer_request()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.encode`."""
        vectors = np.empty((len(texts), self.spec.dimension), np.float32)
        try:
            tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
            with self._lock:
                for rows in _batches([len(ids) for ids in tokens]):
                    vectors[rows] = self._forward([tokens[row] for row in rows])
        except (RuntimeError, ValueError, TypeError) as error:
            raise EmbeddingError(f"{self.spec.id} failed on {len(texts)} texts: {error}") from error
        return vectors

    def _forward(self, batch: list[list[int]]) -> NDArray[np.float32]:
        shape = len(batch), _rounded(len(batch[0]))
        ids, mask = np.full(shape, self._padding, np.int64), np.zeros(shape, np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        self._request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True)
        return self._request.get_output_tensor(0).data


def converted(spec: ModelSpec, cache: Path) -> Path:
    """The OpenVINO graph of `spec` in `cache`, converted if it is not there.

    It is kept by the model's fingerprint and OpenVINO's version. It appears complete or not at all, so processes that
    convert at the same time do not disturb each other: the first one's graph stays.

    Raises:
        EmbeddingError: the conversion failed or its vectors differ from torch's.
    """
    folder = cache / f"{fingerprint(Path(spec.path))}-openvino-{version('openvino')}"
    if not (folder / _GRAPH).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".converting-") as scratch:
            _convert(spec, Path(scratch) / _GRAPH)
            _publish(Path(scratch), folder)
    return folder / _GRAPH


def _publish(scratch: Path, folder: Path) -> None:
    complete = scratch / "complete"
    complete.mkdir()
    for file in (_GRAPH, Path(_GRAPH).with_suffix(".bin").name):
        shutil.move(scratch / file, complete / file)
    try:
        complete.rename(folder)
    except OSError:
        if not (folder / _GRAPH).is_file():
            raise


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Row numbers of texts of like length, longest first, about `BATCH_TOKENS` tokens a batch."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while order:
        size = max(1, BATCH_TOKENS // _rounded(lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def _rounded(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def _openvino() -> ModuleType:
    """OpenVINO without its telemetry, which would report every import to Google Analytics and write to the home folder.

    With a module in the place of `openvino_telemetry` that has nothing in it, OpenVINO takes its own silent stub.
    """
    sys.modules.setdefault("openvino_telemetry", ModuleType("openvino_telemetry"))
    return importlib.import_module("openvino")


def _compile(spec: ModelSpec, graph: Path, threads: int | None) -> openvino.CompiledModel:
    core: openvino.Core = _openvino().Core()
    # Pinned threads wait for their own core while a database or another worker has it.
    config: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": _precision(core),
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }
    if threads is not None:
        config["INFERENCE_NUM_THREADS"] = threads
    try:
        compiled = core.compile_model(graph, "CPU", config)
    except RuntimeError as error:
        raise EmbeddingError(f"{graph} cannot be loaded ({error}): delete {graph.parent}, it is made again") from error
    width = compiled.output(0).partial_shape[1]
    if not width.is_static or width.get_length() != spec.dimension:
        raise ModelMismatchError(f"{spec.id} in {spec.path} gives {width} numbers a vector, not {spec.dimension}")
    return compiled


def _precision(core: openvino.Core) -> str:
    """bf16 where the CPU multiplies it natively (AMX, AVX512-BF16): three times fp32 at cosine 0.9999; else fp32."""
    return "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def _convert(spec: ModelSpec, graph: Path) -> None:
    import torch

    from afterrun.embed.torch_backend import TorchEmbedder, quiet

    logger.info("converting %s for OpenVINO, once", spec.id)
    reference = TorchEmbedder(spec)
    example = {name: torch.ones(2, 9, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    try:
        # torch.jit.trace is deprecated, and OpenVINO's converter still calls it.
        with torch.no_grad(), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = _openvino().convert_model(reference.traceable(), example_input=example)
        _openvino().save_model(model, graph, compress_to_fp16=False)
    except Exception as error:  # a model that cannot be traced may raise anything
        raise EmbeddingError(f"OpenVINO cannot convert {spec.id} ({error}): {_remedy(spec)}") from error
    _check(spec, graph, reference.encode(_PROBES))


def _check(spec: ModelSpec, graph: Path, expected: NDArray[np.float32]) -> None:
    cosine = float((OpenVinoEmbedder(spec, graph).encode(_PROBES) * expected).sum(axis=1).min())
    if not cosine >= MIN_COSINE:
        raise EmbeddingError(f"OpenVINO's vectors of {spec.id} have cosine {cosine:.4f} to torch's: {_remedy(spec)}")


def _remedy(spec: ModelSpec) -> str:
    return f"set AFTERRUN_MODEL to the same name with @torch at its end (now {spec.path})"
