"""`python -m afterrun.local.guardian HOME`: stops a stack's parts when the stack dies without stopping them.

Its standard input is a pipe whose other end only the stack holds. However the stack ends, kill -9 included, the kernel
closes that end. A stack that stops in order ends its guardian last.
"""

from __future__ import annotations

import sys
from pathlib import Path

from afterrun.local.leftovers import stop_leftovers


def main() -> None:
    """Wait for the end of the stack, then stop what is left of it."""
    sys.stdin.buffer.read()
    stop_leftovers(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
