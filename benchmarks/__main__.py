"""`python -m benchmarks NAME [FILE…] [--json]`: a readable table, or with `--json` one object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

import benchmarks


def main(argv: list[str]) -> int:
    """Run the benchmark that `argv` names; 2 where it names none."""
    names = sorted(module.name for module in iter_modules(benchmarks.__path__) if not module.name.startswith("_"))
    if not argv or argv[0] not in names:
        print(f"usage: python -m benchmarks {{{','.join(names)}}} [FILE …] [--json]", file=sys.stderr)
        return 2
    name, *rest = argv
    figures = import_module(f"benchmarks.{name}").run([word for word in rest if word != "--json"])
    if "--json" in rest:
        print(json.dumps(figures))
    else:
        for label, value in _rows(figures):
            print(f"{label:<40} {value}")
    return 0


def _rows(figures: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in figures.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", f"{value:,.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
