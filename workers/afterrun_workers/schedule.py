"""What Celery beat sends, and when. Each task is idempotent and expires before its next turn."""

from __future__ import annotations

from afterrun.queue import FIND_CLUSTERS, ROLL_UP, SWEEP
from afterrun.settings import Settings


def beat_schedule(settings: Settings) -> dict[str, dict[str, object]]:
    """The periodic tasks with their intervals in seconds."""
    intervals = {
        SWEEP: settings.sweep_seconds,
        FIND_CLUSTERS: settings.find_clusters_seconds,
        ROLL_UP: settings.roll_up_seconds,
    }
    return {
        task: {"task": task, "schedule": float(seconds), "options": {"expires": float(seconds)}}
        for task, seconds in intervals.items()
    }
