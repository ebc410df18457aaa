"""A scratch Postgres for benchmarks: the local stack without its workers, in a folder that is removed afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from afterrun import schema
from afterrun.client import Memory
from afterrun.embed import load_embedder, model_spec
from afterrun.local import Stack
from afterrun.settings import Settings


@contextmanager
def fresh_memory() -> Iterator[Memory]:
    """A memory on an empty database of its own, with the packaged model; nothing runs in the background."""
    home = Path(tempfile.mkdtemp(prefix="afterrun-bench-"))
    try:
        settings = Settings(home=home, run_store=home / "memory.db")
        spec = model_spec(settings.model)

        def migrate(url: str) -> None:
            schema.migrate(url, spec)

        with Stack(settings, migrate=migrate, commands=()) as stack:
            embedder = load_embedder(spec, cache=home / "models")
            with Memory(settings=replace(settings, database_url=stack.database_url), embedder=embedder) as memory:
                yield memory
    finally:
        shutil.rmtree(home, ignore_errors=True)
