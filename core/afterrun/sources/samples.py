"""A small invented project's finished runs, for a demo where there is no git history. samples.json has their texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from afterrun.models import Run

REPO: Final = "example/bookshop"

_FILE: Final = Path(__file__).with_name("samples.json")


def runs(now: datetime | None = None) -> Iterator[Run]:
    """The sample's runs, oldest first, as if the last one had finished a day before `now`."""
    now = now or datetime.now(UTC)
    for number, entry in enumerate(json.loads(_FILE.read_text(encoding="utf-8")), 1):
        yield Run(
            repo=REPO,
            run_id=f"sample-{number:02}",
            created_at=now - timedelta(days=entry["days"]),
            summary=entry["summary"],
            tags=tuple(entry["tags"]),
            mode=entry["mode"],
        )
