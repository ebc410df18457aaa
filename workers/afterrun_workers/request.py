"""What a worker tells of a task that it received: to its log, to Flower, to whoever inspects it.

Celery shows the arguments as the sender described them, and a sender that gives no `kwargsrepr` describes them with
their whole text. So the description is made here, from what arrived, and holds no memory text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from celery.worker.request import Request

from afterrun.redact import scrub

_LONGEST: Final = 60
_MOST: Final = 20
_NAMES: Final = ("repo", "run_id", "id")


class TextFreeRequest(Request):
    """A request whose arguments are shown without memory text."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._argsrepr = described(self.args)
        self._kwargsrepr = described(self.kwargs)
        # The pool process logs from here.
        self.request_dict.update(argsrepr=self._argsrepr, kwargsrepr=self._kwargsrepr)

    def info(self, safe: bool = False) -> Any:
        """What `inspect active` and Flower's page of a worker show; `safe` or not, the text stays here."""
        return super().info(safe=True)


def described(arguments: Any) -> str:
    """Positional or keyword arguments for people: numbers and ids as they are, a run by its names, else only sizes."""
    if not isinstance(arguments, Mapping):
        return _value(arguments)
    shown = (f"{str(name)[:_LONGEST]!r}: {_value(value)}" for name, value in arguments.items())
    return "{" + ", ".join(shown) + "}"


def _value(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return _run(value)
    if isinstance(value, list | tuple):
        return _listed(value)
    text = str(value)
    return repr(text) if _is_id(text) else f"<{len(text)} chars>"


def _listed(values: list[object] | tuple[object, ...]) -> str:
    shown = [_value(value) for value in values[:_MOST]]
    return "[" + ", ".join([*shown, "…"] if len(values) > _MOST else shown) + "]"


def _run(run: Mapping[str, object]) -> str:
    names = [f"{name}={_name(run[name])}" for name in _NAMES if run.get(name) is not None]
    size = len(str(run.get("summary") or ""))
    return f"<{' '.join([*names, f'{size} chars'])}>"


def _name(value: object) -> str:
    return repr(value) if isinstance(value, int) else repr(scrub(str(value))[:_LONGEST])


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
