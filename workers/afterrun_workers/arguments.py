"""What arrives as the arguments of a task: shown without memory text, cut where it is nested too deep, read leniently.

Any program that reaches the broker may send a task by its name, so that nothing is known of what it passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from afterrun.redact import MAX_DEPTH, TOO_DEEP, scrub

_LONGEST: Final = 60
_MOST: Final = 20
_NAMES: Final = ("repo", "run_id", "id")


def cut(arguments: object, levels: int = MAX_DEPTH) -> bool:
    """Replace what is nested deeper than `levels` by `TOO_DEEP`, in place; whether there was any.

    Nothing here recurses: pickle and `repr` do, and fail at some hundred levels.
    """
    found = False
    level = [arguments]
    for depth in range(levels):
        last = depth == levels - 1
        deeper: list[object] = []
        for holder in level:
            for place, value in _containers(holder):
                if last and isinstance(holder, dict | list):
                    holder[place] = TOO_DEEP
                    found = True
                else:
                    deeper.append(value)
        level = deeper
    return found


def run_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> Mapping[str, object]:
    """The run that `index_run` was sent: as `run=…`, as its only argument, or flat as keywords of its own.

    What is none of these comes back as it is, for the dead letters.
    """
    if not arguments and "run" not in keywords:
        return keywords
    run = keywords.get("run", arguments[0] if arguments else None)
    return run if isinstance(run, Mapping) else {"args": list(arguments), **keywords}


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


def _containers(holder: object) -> list[tuple[Any, object]]:
    pairs: Any = ()
    if isinstance(holder, dict):
        pairs = holder.items()
    elif isinstance(holder, list | tuple):
        pairs = enumerate(holder)
    return [(place, value) for place, value in pairs if isinstance(value, dict | list | tuple)]
