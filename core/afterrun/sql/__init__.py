"""The named queries: every statement that `store` runs lies in a `.sql` file here, under a line `-- name: …`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """All named queries by name; names are unique across the files."""
    found: dict[str, str] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"two queries are named {name}")
            found[name] = body.strip()
    return found
