"""Which programs the local stack runs besides its servers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from afterrun.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program of the stack besides its servers; `beat` is stopped before the others."""

    name: str
    arguments: Sequence[str]
    stop_seconds: float = 15.0


def default_commands(settings: Settings) -> tuple[Command, ...]:
    """The Celery workers and beat.

    Embedding and upkeep have workers of their own, so that neither the model nor an answer of the language model holds
    up a run on its way into the memory.
    """
    celery = (sys.executable, "-m", "celery", "-A", "afterrun_workers.app")
    level = ("-l", settings.log_level)
    quiet = ("--without-mingle", "--without-gossip", "-c", "1", *level)
    schedule = str(settings.home / "celerybeat-schedule")

    def worker(name: str, queues: str) -> Command:
        arguments = (*celery, "worker", "-n", f"{name}@%h", "-Q", queues, *quiet)
        return Command(name=name, arguments=arguments)

    return (
        worker("worker", "index,celery"),
        worker("upkeep", "consolidate,maintenance"),
        worker("embed", "embed"),
        Command(name="beat", arguments=(*celery, "beat", "-s", schedule, "--pidfile=", *level)),
    )
