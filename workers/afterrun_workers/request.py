"""What a worker tells of a task that it received: to its log, to Flower, to whoever inspects it.

Celery shows the arguments as the sender described them, and a sender that gives no `kwargsrepr` describes them with
their whole text. So the description is made here, from what arrived, and holds no memory text.

A worker pickles a request for its pool, and an argument nested some hundred levels deep would end its main process,
again after each restart, as the message is never acknowledged. So what is nested deeper than Afterrun keeps metadata
is cut here: the run is indexed without it. A message of another shape than a task's would end it too, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from celery.worker.strategy import default
from kombu.utils.json import dumps

from afterrun_workers.arguments import cut, described


class TextFreeRequest(Request):
    """A request whose arguments are shown without memory text and nested to a bounded depth."""

    def __init__(self, message: Any, **options: Any) -> None:
        # An old-style message comes decoded and goes to the pool like that; a newer one goes there as the text it is.
        decoded = options.get("decoded", False)
        payload = options["body"] if decoded else message.payload
        if cut(payload) and not decoded:
            options["body"] = dumps(payload)
        super().__init__(message, **options)
        cut(self.request_dict)
        self._argsrepr = described(self.args)
        self._kwargsrepr = described(self.kwargs)
        # The pool process logs from here.
        self.request_dict.update(argsrepr=self._argsrepr, kwargsrepr=self._kwargsrepr)

    def info(self, safe: bool = False) -> Any:
        """What `inspect active` and Flower's page of a worker show; `safe` or not, the text stays here."""
        return super().info(safe=True)


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., None]:
    """Celery's default way to receive the messages of a task, behind a look at their shape and their options."""
    receive = default(task, app, consumer, **options)

    def checked(message: Any, *rest: Any) -> None:
        payload, headers = message.payload, message.headers or {}
        if not (_is_new_style(payload, headers) or _is_old_style(payload, headers)):
            raise InvalidTaskError(
                "the message has not the shape of a task: an id, args as a list, kwargs as an object"
            )
        _drop_unusable(headers)
        _drop_unusable(payload)
        receive(message, *rest)

    return checked


def _is_new_style(payload: object, headers: Mapping[str, object]) -> bool:
    if not isinstance(payload, list) or len(payload) != 3 or not isinstance(headers.get("id"), str):
        return False
    args, kwargs, embed = payload
    return isinstance(args, list) and isinstance(kwargs, dict) and isinstance(embed, dict | None)


def _is_old_style(payload: object, headers: Mapping[str, object]) -> bool:
    # Beside new-style headers it must name its args: otherwise Celery takes it for a new-style body.
    if not isinstance(payload, dict) or ("task" in headers and "args" not in payload):
        return False
    args, kwargs = payload.get("args", []), payload.get("kwargs", {})
    return isinstance(headers.get("id", payload.get("id")), str) and isinstance(args, list) and isinstance(kwargs, dict)


def _drop_unusable(options: object) -> None:
    # Celery trusts these; no task of ours needs them, and a run is worth more than its time limit.
    if isinstance(options, dict):
        for name, is_usable in _OPTIONS.items():
            if name in options and not is_usable(options[name]):
                del options[name]


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, str | datetime) and bool(value))


def _is_pair_of_seconds(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, int | float | None) for one in value)


_OPTIONS: Final[Mapping[str, Callable[[object], bool]]] = {
    "eta": _is_time,
    "expires": _is_time,
    "timelimit": _is_pair_of_seconds,
    "stamps": lambda value: isinstance(value, dict | None),
    "stamped_headers": lambda value: isinstance(value, list | None),
}
