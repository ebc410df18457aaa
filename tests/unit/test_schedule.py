"""What beat sends: each periodic task once an interval of its own setting, to the queue of upkeep."""

from __future__ import annotations

from pathlib import Path

from afterrun.queue import MAINTENANCE_QUEUE, ROUTES
from afterrun.settings import Settings
from afterrun_workers.schedule import beat_schedule


def test_each_periodic_task_has_its_interval_and_expires_before_its_next_turn() -> None:
    settings = Settings(home=Path("/h"), run_store=Path("/h/memory.db"), sweep_seconds=7, roll_up_seconds=11)
    schedule = beat_schedule(settings)
    assert (schedule["sweep"]["schedule"], schedule["roll_up"]["schedule"]) == (7.0, 11.0)
    for name, entry in schedule.items():
        assert entry["task"] == name
        assert entry["options"] == {"expires": entry["schedule"]}
        assert ROUTES[name] == MAINTENANCE_QUEUE
