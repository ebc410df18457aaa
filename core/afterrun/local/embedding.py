"""The query-embedding service: short-lived commands ask the running stack instead of loading the model.

Wire format, one request a connection: a line of JSON `{"model": id, "texts": [...]}`, answered by a line
`{"vectors": [[...], ...]}` with as many vectors as texts, or `{"error": "..."}`. Numbers carry the nine digits that
give back the same float32.
"""

from __future__ import annotations

import json
import logging
import socketserver
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from afterrun.errors import AfterrunError

logger = logging.getLogger(__name__)

REQUEST_BYTES: Final = 1024 * 1024
CONNECTION_SECONDS: Final = 10.0
"""How long a client may take to send its request, and to read its answer."""

Vectors = Sequence[Sequence[float]]
Embed = Callable[[str, list[str]], Vectors]
"""Model id and texts to one vector a text."""
LoadModel = Callable[[str], Callable[[list[str]], Vectors]]
"""Model id to what embeds texts with it."""


class LazyModel:
    """An `Embed` that loads a model on first use, keeps the last one, and serves one request at a time."""

    def __init__(self, load: LoadModel) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._model = ""
        self._encode: Callable[[list[str]], Vectors] | None = None

    def __call__(self, model: str, texts: list[str]) -> Vectors:
        with self._lock:
            if self._encode is None or self._model != model:
                self._encode, self._model = self._load(model), model
            return self._encode(texts)


class EmbedService:
    """Serves `embed` at a Unix socket that only its owner can open."""

    def __init__(self, socket_path: Path, embed: Embed) -> None:
        self._path = socket_path
        self._embed = embed
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen; a socket file of an earlier process is replaced."""
        self._path.unlink(missing_ok=True)
        self._server = _Server(str(self._path), self._answer)
        self._path.chmod(0o600)
        threading.Thread(target=self._server.serve_forever, name="embed-service", daemon=True).start()

    def stop(self) -> None:
        """Stop listening and remove the socket file; a request that is being computed is abandoned."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            model, texts = _parse(line)
        except ValueError as error:
            return {"error": f"bad request: {error}"}
        try:
            return {"vectors": [[float(f"{x:.9g}") for x in vector] for vector in self._embed(model, texts)]}
        except AfterrunError as error:
            return {"error": str(error)}


def _parse(line: bytes) -> tuple[str, list[str]]:
    if not line.endswith(b"\n"):
        raise ValueError(f"a request is one line of at most {REQUEST_BYTES} bytes")
    request = json.loads(line)
    match request:
        case {"model": str(model), "texts": list(texts)} if all(isinstance(text, str) for text in texts):
            return model, texts
    raise ValueError('expected {"model": "…", "texts": ["…"]}')


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: str, answer: Callable[[bytes], dict[str, Any]]) -> None:
        super().__init__(address, _Connection)
        self.answer = answer

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.warning("a request to the embedding service failed", exc_info=True)


class _Connection(socketserver.StreamRequestHandler):
    timeout = CONNECTION_SECONDS
    server: _Server

    def handle(self) -> None:
        line = self.rfile.readline(REQUEST_BYTES)
        if line:
            self.wfile.write(json.dumps(self.server.answer(line)).encode() + b"\n")
