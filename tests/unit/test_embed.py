"""Model specs and embedders, with the packaged model on both backends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from afterrun.embed import CachedEmbedder, Embedder, SocketEmbedder, load_embedder, model_spec, query_embedder
from afterrun.errors import EmbeddingError, ModelMismatchError
from afterrun.models import ModelSpec
from afterrun.testing import HashEmbedder

NAME = "all-MiniLM-L6-v2"
TEXTS = ["ok", "", "The broker was down.", "Der Index ist veraltet.", "long " * 600, "我们决定使用数据库"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def fast(cache: Path) -> Embedder:
    return load_embedder(model_spec(NAME), cache=cache)


@pytest.fixture(scope="session")
def plain(cache: Path) -> Embedder:
    return load_embedder(model_spec(NAME, backend="torch"), cache=cache)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model that a test may change."""
    copy = tmp_path / "my-model"
    shutil.copytree(model_spec(NAME).path, copy)
    return copy


class Counting:
    """An embedder that notes what it was asked."""

    def __init__(self) -> None:
        self._inner = HashEmbedder(8)
        self.spec = self._inner.spec
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return self._inner.encode(texts)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_the_packaged_model_says_dimension_and_length() -> None:
    spec = model_spec(NAME)
    assert (spec.id, spec.dimension, spec.max_tokens) == (f"{NAME}@openvino", 384, 256)


def test_the_backend_is_part_of_the_id_and_can_be_named() -> None:
    assert model_spec(NAME, backend="torch").id == model_spec(f"{NAME}@torch").id == f"{NAME}@torch"
    with pytest.raises(EmbeddingError, match="use openvino or torch"):
        model_spec(NAME, backend="abacus")


def test_two_folders_with_one_name_and_other_weights_have_two_ids(folder: Path, tmp_path: Path) -> None:
    first = model_spec(str(folder)).id
    assert first.startswith("my-model-")
    assert first == model_spec(str(shutil.copytree(folder, tmp_path / "copy" / "my-model"))).id
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-400, 2)
        weights.write(b"\0" * 400)
    assert model_spec(str(folder)).id != first


def test_a_model_that_openvino_cannot_run_goes_to_torch_by_a_decision_in_its_id(folder: Path) -> None:
    edit(folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True)
    assert model_spec(str(folder)).id.endswith("@torch")
    with pytest.raises(EmbeddingError, match="pools by max"):
        model_spec(f"{folder}@openvino")


@pytest.mark.parametrize("name", ["/no/such/folder", "no-such-owner/no-such-model", "???"])
def test_an_unknown_model_is_an_error_that_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EmbeddingError, match="AFTERRUN_MODEL"):
        model_spec(name)


def test_a_folder_without_weights_is_no_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(EmbeddingError, match="no embedding model"):
        model_spec(str(folder))


def test_both_backends_give_unit_vectors_that_agree(fast: Embedder, plain: Embedder) -> None:
    ours, theirs = fast.encode(TEXTS), plain.encode(TEXTS)
    assert ours.shape == theirs.shape == (len(TEXTS), 384)
    assert ours.dtype == theirs.dtype == np.float32
    assert np.linalg.norm(ours, axis=1) == pytest.approx(1, abs=1e-5)
    assert (ours * theirs).sum(axis=1).min() > 0.9999


def test_a_text_has_the_same_vector_alone_and_in_a_batch(fast: Embedder) -> None:
    together = fast.encode(TEXTS)
    assert all((fast.encode([text])[0] @ together[row]) > 0.9999 for row, text in enumerate(TEXTS))


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_no_texts_give_no_rows(backend: str, request: pytest.FixtureRequest) -> None:
    embedder: Embedder = request.getfixturevalue(backend)
    assert embedder.encode([]).shape == (0, 384)


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_what_is_no_text_is_an_embedding_error(backend: str, request: pytest.FixtureRequest) -> None:
    embedder: Embedder = request.getfixturevalue(backend)
    with pytest.raises(EmbeddingError, match="failed on 2 texts"):
        embedder.encode(["fine", "a\ud800b"])


def test_threads_share_one_embedder(fast: Embedder) -> None:
    expected = fast.encode(TEXTS)
    results: list[NDArray[np.float32]] = []
    threads = [threading.Thread(target=lambda: results.append(fast.encode(TEXTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.allclose(result, expected, atol=1e-5) for result in results)


@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_another_dimension_is_a_mismatch(backend: str, cache: Path, fast: Embedder) -> None:
    with pytest.raises(ModelMismatchError, match="384"):
        load_embedder(replace(model_spec(NAME, backend=backend), dimension=512), cache=cache)


def test_broken_weights_are_an_error_that_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EmbeddingError, match="fetch the model again"):
        load_embedder(model_spec(str(folder)), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_broken_converted_file_is_an_error_that_says_what_to_delete(
    cache: Path, fast: Embedder, tmp_path: Path
) -> None:
    copy = shutil.copytree(cache, tmp_path / "cache")
    for graph in copy.rglob("model.xml"):
        graph.write_text("nothing")
    with pytest.raises(EmbeddingError, match=r"delete .* made again"):
        load_embedder(fast.spec, cache=copy)


def test_a_converted_model_loads_without_torch_and_sends_no_telemetry(
    cache: Path, fast: Embedder, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from afterrun.embed import load_embedder, model_spec; "
        f"load_embedder(model_spec({NAME!r}), cache=Path({str(cache)!r})).encode(['a']); "
        "print(sorted({'torch', 'transformers', 'openvino_telemetry.main'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_repeated_texts_are_encoded_once_and_old_ones_are_forgotten() -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, size=2)
    assert np.array_equal(cached.encode(["a", "b", "a"]), inner._inner.encode(["a", "b", "a"]))
    cached.encode(["a"])
    cached.encode(["c"])
    cached.encode(["b"])
    assert inner.asked == ["a", "b", "c", "b"]
    assert cached.encode([]).shape == (0, 8)


def test_a_cached_vector_cannot_be_changed_by_its_reader() -> None:
    cached = CachedEmbedder(HashEmbedder(8))
    cached.encode(["a"])[:] = 0
    assert np.linalg.norm(cached.encode(["a"])) == pytest.approx(1)


@contextmanager
def service(path: Path, answer: Callable[[dict[str, object]], bytes]) -> Iterator[None]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(answer(json.loads(self.rfile.readline())))

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_a_socket_embedder_asks_the_stack(tmp_path: Path) -> None:
    inner = HashEmbedder(8)
    requests: list[dict[str, object]] = []

    def answer(request: dict[str, object]) -> bytes:
        requests.append(request)
        return json.dumps({"vectors": inner.encode(["one", "zwei ü"]).tolist()}).encode() + b"\n"

    with service(tmp_path / "s", answer):
        vectors = SocketEmbedder(inner.spec, tmp_path / "s").encode(["one", "zwei ü"])
    assert requests == [{"model": inner.spec.id, "texts": ["one", "zwei ü"]}]
    assert np.array_equal(vectors, inner.encode(["one", "zwei ü"]))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'{"error": "no such model"}\n', "no such model"),
        (b'{"vectors": [[1, 2]]}\n', r"shape \(1, 2\), not \(1, 8\)"),
        (b'{"vectors": [["x"]]}\n', "gave no vectors"),
        (b"[]\n", "no object"),
        (b"", "no answer"),
    ],
)
def test_a_bad_answer_of_the_service_is_an_error(answer: bytes, error: str, tmp_path: Path) -> None:
    with service(tmp_path / "s", lambda _: answer), pytest.raises(EmbeddingError, match=error):
        SocketEmbedder(HashEmbedder(8).spec, tmp_path / "s").encode(["a"])


def test_a_silent_service_does_not_hold_the_caller(tmp_path: Path) -> None:
    asked, released = threading.Event(), threading.Event()

    def answer(_: dict[str, object]) -> bytes:
        asked.set()
        released.wait(30)
        return b""

    with service(tmp_path / "s", answer):
        with pytest.raises(EmbeddingError, match="timed out"):
            SocketEmbedder(HashEmbedder(8).spec, tmp_path / "s", timeout=0.1).encode(["a"])
        released.set()
    assert asked.is_set()


def test_a_failure_is_not_cached() -> None:
    broken = True
    cached = CachedEmbedder(HashEmbedder(8, fail_on=lambda text: broken))
    with pytest.raises(EmbeddingError):
        cached.encode(["a"])
    broken = False
    assert cached.encode(["a"]).shape == (1, 8)


def test_a_cache_that_a_thread_was_using_at_a_fork_works_in_the_child() -> None:
    cached = CachedEmbedder(HashEmbedder(8))
    cached.encode(["a"])
    with cached._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(0 if cached.encode(["a", "b"]).shape == (2, 8) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cached.encode(["a", "b"]).shape == (2, 8)


def test_questions_are_embedded_here_when_the_stack_is_gone(cache: Path, fast: Embedder, tmp_path: Path) -> None:
    embedder = query_embedder(fast.spec, socket=tmp_path / "gone", cache=cache)
    assert np.allclose(embedder.encode(["a question"]), fast.encode(["a question"]), atol=1e-5)


def test_questions_go_to_the_stack_while_it_answers(tmp_path: Path) -> None:
    inner = HashEmbedder(8)
    unloadable = ModelSpec(id="x@torch", path="/no/such", dimension=8, max_tokens=256)
    line = json.dumps({"vectors": inner.encode(["a"]).tolist()}).encode() + b"\n"
    with service(tmp_path / "s", lambda _: line):
        vectors = query_embedder(unloadable, socket=tmp_path / "s", cache=tmp_path).encode(["a"])
    assert np.array_equal(vectors, inner.encode(["a"]))


def test_the_hash_embedder_is_deterministic_near_for_shared_words_and_fails_on_demand() -> None:
    embedder = HashEmbedder(64, fail_on=lambda text: "poison" in text)
    near, same, far = embedder.encode(["red green blue", "Red, green: blue!", "one two three"])
    assert near @ same == pytest.approx(1)
    assert near @ far < 0.6
    with pytest.raises(EmbeddingError):
        embedder.encode(["fine", "poison"])
