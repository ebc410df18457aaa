"""The last resort of a finished run that neither its run store nor the broker took: a small file until the sweep comes.

Each run lies in `spool/` of the data folder as one JSON file, with the path of the run store that it belongs to.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from afterrun.errors import AfterrunError, InputError, RunStoreError
from afterrun.models import Run
from afterrun.runfile import make_private
from afterrun.runs import RunStore

SPOOL: Final = "spool"
UNREADABLE: Final = "unreadable"
"""Folder below the spool for files that hold no run: nothing is thrown away."""
WAIT_SECONDS: Final = 1.0
"""How long `bring_in` waits for another writer of a run store."""
MOST_FAILURES: Final = 3
"""Failures of one run store after which `bring_in` leaves the rest of its runs to the next time."""

_log = logging.getLogger("afterrun")


def keep(home: Path, run: Run, store_path: Path) -> Path:
    """Write `run` to the spool of the data folder `home`, to be saved into the run store at `store_path`.

    The file is complete and on the disk, or it is not there. Raises OSError where it cannot be written.
    """
    run = replace(run, created_at=run.created_at or datetime.now(UTC))
    folder = home / SPOOL
    make_private(home)
    make_private(folder)
    path = folder / f"{time.time_ns()}-{uuid.uuid4()}.json"
    draft = path.with_suffix(".draft")
    try:
        _write(draft, json.dumps({"run": run.to_message(), "store_path": str(store_path)}))
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return path


def bring_in(home: Path) -> int:
    """Save the spooled runs of `home` into their run stores; returns how many were saved.

    Oldest first. What cannot be saved now stays for the next time; what holds no run is moved to `unreadable/`. It may
    be interrupted anywhere, and run twice at once: no run is saved twice.
    """
    brought = 0
    failures: Counter[Path] = Counter()
    with ExitStack() as opened:
        stores: dict[Path, RunStore] = {}
        for path in sorted((home / SPOOL).glob("*.json")):
            found = _read(path)
            if found is None or failures[found[1]] >= MOST_FAILURES:
                continue
            run, store_path = found
            try:
                if store_path not in stores:
                    store = RunStore(store_path, home=home, busy_timeout=WAIT_SECONDS)
                    stores[store_path] = opened.enter_context(store)
                stores[store_path].save_once(run)
                path.unlink(missing_ok=True)
            except (RunStoreError, OSError) as error:
                failures[store_path] += 1
                _log.warning("spooled run %s stays for the next time: %s", path.name, error)
            else:
                brought += 1
    return brought


def _read(path: Path) -> tuple[Run, Path] | None:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        store_path = Path(held["store_path"])
        if not store_path.is_absolute():
            raise InputError(f"the path of its run store is not absolute: {store_path}")
        return Run.from_message(held["run"]), store_path
    except FileNotFoundError:
        return None  # another one has brought it in
    except OSError as error:
        _log.warning("spooled run %s cannot be read now: %s", path, error)
    except (AfterrunError, ValueError, KeyError, TypeError, RecursionError) as error:
        _set_aside(path, error)
    return None


def _set_aside(path: Path, error: Exception) -> None:
    _log.error("%s holds no run, it is moved to %s: %s", path, UNREADABLE, error)
    folder = path.parent / UNREADABLE
    try:
        make_private(folder)
        path.rename(folder / path.name)
    except FileNotFoundError:
        pass  # another one has moved it
    except OSError as problem:
        _log.warning("%s could not be moved: %s", path, problem)


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
