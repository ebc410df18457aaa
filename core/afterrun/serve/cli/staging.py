"""What frames a demo: stages that are timed and told, a temporary home, an orderly end by signals."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A finished stage: what it did, and how many seconds it took."""

    name: str
    seconds: float
    result: str


@dataclass(kw_only=True)
class Show:
    """What the demo tells while it runs: a line for each stage, on stderr if stdout is for JSON."""

    as_json: bool
    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        """Time a stage and tell how it ended; what it gives takes the stage's result in words."""
        results = [""]
        started = time.monotonic()
        try:
            yield results.append
        except BaseException:
            self.line(click.style("✗ ", fg="red") + f"{name}: failed after {time.monotonic() - started:.1f} s")
            raise
        done = Stage(name=name, seconds=time.monotonic() - started, result=results[-1])
        self.stages.append(done)
        self.line(
            click.style("✓ ", fg="green")
            + f"{name:<42}"
            + click.style(f"{done.seconds:6.1f} s", bold=True)
            + f"  {done.result}"
        )

    def line(self, text: str = "") -> None:
        """A line for people."""
        click.echo(text, err=self.as_json)


@contextmanager
def temporary_home(keep: bool, show: Show) -> Iterator[Path]:
    """A data folder that is removed at the end, unless it is to be kept."""
    home = Path(tempfile.mkdtemp(prefix="afterrun-demo-")).resolve()
    try:
        yield home
    finally:
        if keep:
            show.line(f"Kept: {home}")
        else:
            # Under root, Postgres may lie elsewhere behind a link.
            shutil.rmtree((home / "postgres").resolve(), ignore_errors=True)
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End as with Ctrl-C, so that everything is stopped and removed."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
