"""A local HTTP server that speaks Anthropic's Messages API, for tests that run the real SDK.

    with MessagesApi(merge_all) as api:
        HaikuJudge(api_key="sk-test", base_url=api.url).judge(members)
    assert len(api.requests) == 1

It is given replies, or functions from a request to a reply, and hands them out in turn; the last one stays.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_LONGEST_HANG = 60.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """A received request: `headers` in lower case, `raw` as it came over the wire."""

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The request's JSON object."""
        body: dict[str, Any] = json.loads(self.raw)
        return body

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of the user's turn."""
        document: dict[str, Any] = json.loads(self.body["messages"][0]["content"])
        return document

    @property
    def memories(self) -> list[dict[str, Any]]:
        """The numbered memories of the user's turn."""
        memories: list[dict[str, Any]] = self.document["memories"]
        return memories


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP answer; `body` is sent as JSON unless it is bytes. `hangs` never answers, `trickles` never ends."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False
    trickles: bool = False


Step = Reply | Callable[[Request], Reply]


def message(
    content: object, *, stop_reason: str | None = "tool_use", input_tokens: int = 100, output_tokens: int = 20
) -> Reply:
    """A message of the model with this content."""
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return Reply(
        body={
            "id": "msg_test", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": content,
            "stop_reason": stop_reason, "stop_sequence": None, "usage": usage,
        }
    )  # fmt: skip


def verdict(answer: object, *, stop_reason: str = "tool_use") -> Reply:
    """A message that calls the verdict's tool with `answer`."""
    return call_of("record_verdict", answer, stop_reason=stop_reason)


def call_of(tool: str, fields: object, *, stop_reason: str = "tool_use") -> Reply:
    """A message that calls `tool` with `fields`."""
    call = {"type": "tool_use", "id": "toolu_test", "name": tool, "input": fields}
    return message([call], stop_reason=stop_reason)


def answer(
    *,
    same: object = (),
    wording: object = "",
    contradictions: object = (),
    related: object = (),
    reason: object = "as scripted",
) -> dict[str, object]:
    """The tool's input with these fields; the others are empty."""
    fields = {"same": same, "wording": wording, "contradictions": contradictions, "related": related, "reason": reason}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def merge_all(request: Request) -> Reply:
    """The verdict that all memories of the request, whichever they are, state the same; worded as all their texts."""
    memories = request.memories
    wording = " ".join(memory["text"] for memory in memories)
    return verdict(answer(same=[memory["n"] for memory in memories], wording=wording))


def relate_all(request: Request) -> Reply:
    """The verdict that the memories of the request are merely related."""
    return verdict(answer(related=[memory["n"] for memory in request.memories]))


def error(status: int, kind: str = "api_error", text: str = "scripted", **headers: str) -> Reply:
    """An error of the service, such as `error(429, "rate_limit_error", **{"retry-after": "7"})`."""
    return Reply(status=status, body={"type": "error", "error": {"type": kind, "message": text}}, headers=headers)


HANGS = Reply(hangs=True)
TRICKLES = Reply(trickles=True)


class MessagesApi:
    """The server; it runs while its context is open. `url` is the SDK's `base_url`, `requests` what has come in."""

    def __init__(self, *steps: Step) -> None:
        self.requests: list[Request] = []
        self._steps = list(steps or (merge_all,))
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> MessagesApi:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, request: Request) -> Reply:
        """Record `request` and return what is scripted for it."""
        with self._lock:
            self.requests.append(request)
            step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        return step if isinstance(step, Reply) else step(request)

    def hang(self) -> None:
        """Wait until the server closes."""
        self._closing.wait(_LONGEST_HANG)

    def is_closing(self, seconds: float) -> bool:
        """Whether the server closes within a time."""
        return self._closing.wait(seconds)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = api.take(Request(path=self.path, headers=headers, raw=raw))
                if reply.hangs:
                    api.hang()
                elif reply.trickles:
                    self._trickle()
                else:
                    self._send(reply)

            def _send(self, reply: Reply) -> None:
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _trickle(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "1000000")
                self.end_headers()
                with suppress(OSError):
                    while not api.is_closing(0.05):
                        self.wfile.write(b" ")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it)
                """Say nothing: the test reads `requests`."""

        return Handler
