"""One call of Claude that must answer by one tool: the only place that asks a language model.

Instructions stand in `system` and in the tool; what the model is to read travels as one JSON document in the user's
turn, so that a text can give no orders. What comes back is JSON from outside: the caller believes nothing of it
unchecked. The SDK does not retry; whoever asks keeps in a database when to ask again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from afterrun.errors import (
    LanguageModelError,
    LanguageModelRejectedError,
    LanguageModelUnavailableError,
    Spend,
)
from afterrun.redact import scrub
from afterrun.settings import Settings

if TYPE_CHECKING:
    import anthropic

API: Final = "https://api.anthropic.com"
"""Passed on even where it is the default, so that the SDK does not look into the environment for another one."""

_RETRYABLE: Final = frozenset({408, 409, 429})
"""With all of 5xx (529 says that the service is overloaded), the answers after which waiting helps."""
_LONGEST_KIND: Final = 60
_LATE: Final = "the language model's service did not answer in time"
_MOST_COUNTED: Final = 100_000_000
"""Tokens of a call that are believed: no model takes more, and the sums stay within a column."""
_TOO_MUCH: Final = frozenset({413, 422})
"""Refusals of what was sent, not of the client: other requests may pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """The form in which the model must answer: `schema` is the JSON schema of its fields."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the model filled in, unchecked, and what it cost."""

    fields: object
    spend: Spend


class Haiku:
    """Asks the Messages API. `name` is the model's, `timeout` in seconds, `base_url` another address of the API."""

    def __init__(
        self, *, api_key: str, base_url: str | None = None, model: str = "claude-haiku-4-5", timeout: float = 30.0
    ) -> None:
        self.name = model
        self._api_key = api_key
        self._base_url = base_url or API
        self._timeout = timeout

    def ask(self, tool: Tool, document: object, *, system: str, max_tokens: int) -> Answer:
        """What the model answers by `tool` on `document`, which is sent as JSON and must be scrubbed already.

        Raises:
            LanguageModelUnavailableError: the service is busy, fails, or does not answer in time.
            LanguageModelRejectedError: the service refuses the key, the model's name or the request.
            LanguageModelError: the answer is truncated, refused, empty, or not by the tool.
        """
        body = self._message(tool, document, system, max_tokens)
        spend = _spend(body)
        return Answer(fields=_tool_input(body, tool.name, spend), spend=spend)

    def most_tokens(self, tool: Tool, document: object, *, system: str, max_tokens: int) -> int:
        """The tokens, in and out, that `ask` with the same arguments takes at most: two bytes of text a token."""
        texts = (system, tool.description, json.dumps(dict(tool.schema)), json.dumps(document, ensure_ascii=False))
        return sum(len(text.encode("utf-8", "replace")) for text in texts) // 2 + max_tokens

    def _message(self, tool: Tool, document: object, system: str, max_tokens: int) -> Mapping[str, object]:
        schema = dict(tool.schema)
        with self._client() as client, _mapped_errors():
            create = partial(
                client.messages.with_raw_response.create,
                model=self.name,
                max_tokens=max_tokens,
                system=system,
                tools=[{"name": tool.name, "description": tool.description, "input_schema": schema, "strict": True}],
                tool_choice={"type": "tool", "name": tool.name, "disable_parallel_tool_use": True},
                messages=[{"role": "user", "content": json.dumps(document, ensure_ascii=False)}],
            )
            return _json_object(_within(self._timeout, lambda: create().http_response.content))

    def _client(self) -> anthropic.Anthropic:
        # Imported on use: the SDK costs a second that a process without a key, or without work for it, need not pay.
        import anthropic

        return anthropic.Anthropic(
            api_key=self._api_key,
            base_url=self._base_url,
            timeout=self._timeout,
            max_retries=0,
            open_telemetry=False,
            # Another address would get the texts, and the key with them.
            http_client=anthropic.DefaultHttpxClient(follow_redirects=False),
        )


def choose_haiku(settings: Settings) -> Haiku | None:
    """Claude Haiku where a key is set, else None."""
    if not settings.anthropic_api_key:
        return None
    return Haiku(
        api_key=settings.anthropic_api_key,
        base_url=settings.anthropic_base_url,
        model=settings.judge_model,
        timeout=settings.judge_timeout,
    )


def _within(seconds: float, call: Callable[[], bytes]) -> bytes:
    """What `call` returns. The SDK's own timeout is one for each read: an answer may come a byte at a time for ever."""
    caller = ThreadPoolExecutor(max_workers=1)
    try:
        return caller.submit(call).result(seconds)
    except FutureTimeoutError:
        raise LanguageModelUnavailableError(_LATE) from None
    finally:
        # Whoever asked closes the connection, which ends a call that is still under way.
        caller.shutdown(wait=False)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    import anthropic

    # The SDK's errors hold the request with the key and the texts: they are not chained.
    try:
        yield
    except anthropic.APITimeoutError:
        raise LanguageModelUnavailableError(_LATE) from None
    except anthropic.APIConnectionError:
        raise LanguageModelUnavailableError(
            "the language model's service cannot be reached: check ANTHROPIC_BASE_URL"
        ) from None
    except anthropic.APIStatusError as error:
        raise _status_error(error) from None


def _status_error(error: anthropic.APIStatusError) -> LanguageModelError:
    status, kind = error.status_code, scrub(str(error.type or "no type given"))[:_LONGEST_KIND]
    if status in _RETRYABLE or status >= 500:
        return LanguageModelUnavailableError(
            f"the language model's service is busy or fails ({status}, {kind})",
            retry_after=_seconds(error.response.headers.get("retry-after")),
        )
    if status in _TOO_MUCH:
        return LanguageModelError(
            f"the language model's service refuses these texts ({status}, {kind})", spend=Spend(calls=1)
        )
    if 300 <= status < 400:
        return LanguageModelRejectedError(
            f"the language model's service sends the request elsewhere ({status}): set ANTHROPIC_BASE_URL to the right"
            " address",
            status=status,
        )
    advice = {
        400: "check the account's credit and AFTERRUN_JUDGE_MODEL",
        401: "check ANTHROPIC_API_KEY",
        403: "the key may not use this model: check ANTHROPIC_API_KEY and AFTERRUN_JUDGE_MODEL",
        404: "check AFTERRUN_JUDGE_MODEL and ANTHROPIC_BASE_URL",
    }.get(status, "the request is not accepted")
    return LanguageModelRejectedError(
        f"the language model's service refuses the request ({status}, {kind}): {advice}", status=status
    )


def _seconds(header: str | None) -> float | None:
    """The seconds that a `retry-after` header names; None for a date or nonsense, after which our own pace holds."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _json_object(content: bytes) -> Mapping[str, object]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise LanguageModelError(
            "the language model's service answered with something else than a message", spend=Spend(calls=1)
        )
    return body


def _spend(body: Mapping[str, object]) -> Spend:
    usage = body.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    cached = _count(counts, "cache_creation_input_tokens") + _count(counts, "cache_read_input_tokens")
    return Spend(
        calls=1, input_tokens=_count(counts, "input_tokens") + cached, output_tokens=_count(counts, "output_tokens")
    )


def _count(counts: Mapping[str, object], name: str) -> int:
    value = counts.get(name)
    return min(value, _MOST_COUNTED) if isinstance(value, int) and value > 0 else 0


def _tool_input(body: Mapping[str, object], tool: str, spend: Spend) -> object:
    stop, content = body.get("stop_reason"), body.get("content")
    if stop != "tool_use":
        why = {"max_tokens": "was cut off", "refusal": "is a refusal"}.get(str(stop), f"ends without a call of {tool}")
        raise LanguageModelError(f"the language model's answer {why}", spend=spend)
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if len(calls) != 1 or calls[0].get("name") != tool:
        raise LanguageModelError(f"the language model's answer holds no call of {tool}, or several", spend=spend)
    return calls[0].get("input")
