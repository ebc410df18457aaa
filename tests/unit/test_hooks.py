"""finish() without a broker: what it stores, what it says, and that nothing a caller passes makes it raise."""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from afterrun import finish
from afterrun.models import Receipt, Run
from afterrun.runs import RunStore, registered
from afterrun.spool import bring_in, keep

SWEPT = "not queued: REDIS_URL is not set and no local stack runs; the sweep will pick it up"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFTERRUN_HOME", str(tmp_path / "home"))
    for name in ("REDIS_URL", "AFTERRUN_RUN_STORE", "AFTERRUN_LEASE_SECONDS", "AFTERRUN_PUBLISH_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[RunStore]:
    with RunStore(home / "memory.db") as store:
        yield store


def kwargs(**given: object) -> dict[str, Any]:
    """Arguments that the type checker would rightly refuse."""
    return given


def spooled(home: Path) -> list[Path]:
    return sorted((home / "spool").glob("*.json"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def run_python(code: str, *args: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True).stdout


def only(store: RunStore) -> Run:
    (run,) = store.unindexed()
    return run


HEAVY = ("psycopg", "psycopg_pool", "torch", "anthropic", "celery", "kombu", "numpy", "redis", "sentence_transformers")
IMPORTS = "import sys; from afterrun import finish; print([name for name in sys.argv[1:] if name in sys.modules])"


def test_importing_finish_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_a_broker_a_run_is_stored_and_left_to_the_sweep(store: RunStore, home: Path) -> None:
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    receipt = finish("app", "did it", run_id="r1", created_at=when, tags=["a", "b"], mode="fix")
    assert receipt == Receipt(id=1, stored=True, queued=False, error=SWEPT)
    run = only(store)
    assert (run.repo, run.summary, run.run_id, run.created_at) == ("app", "did it", "r1", when)
    assert (run.tags, run.mode) == (("a", "b"), "fix")
    assert registered(home) == [home / "memory.db"]


def test_the_same_run_again_is_the_same_row(store: RunStore) -> None:
    assert [finish("app", text, run_id="r1").id for text in ("one", "two")] == [1, 1]
    assert only(store).summary == "one"


def test_everything_is_scrubbed_before_it_is_stored(store: RunStore) -> None:
    secret = "-".join(("sk", "ant", "api03", "Ab3dEf6hIj9kLm2nOp5q"))
    finish(f"a\0pp {secret}", f"done <private>x</private>{secret}", run_id=secret, tags=[secret], mode=secret)
    text = repr(only(store))
    assert secret not in text
    assert "<private>" not in text
    assert only(store).repo == "app [redacted:anthropic-key]"


@pytest.mark.parametrize("text", ["<private>all of it</private>", "", "  \n"])
def test_a_summary_that_is_empty_after_redaction_is_stored_and_not_announced(store: RunStore, text: str) -> None:
    assert finish("app", text) == Receipt(id=1, stored=True, queued=False, error=None)
    assert store.unindexed() == []


@pytest.mark.parametrize("text", ["nul \0", "\ud800", "🙂 日本語 مرحبا", "x" * 2_000_000, "<" * 100_000])
def test_any_text_is_stored(store: RunStore, text: str) -> None:
    assert finish("app", text, run_id=text[:20], tags=[text[:20]]).stored
    only(store).summary.encode("utf-8")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (datetime(2026, 1, 31, 12), datetime(2026, 1, 31, 12, tzinfo=UTC)),  # noqa: DTZ001 - naive on purpose
        (date(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC)),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_of_any_kind_is_kept_in_utc(store: RunStore, given: object, kept: datetime) -> None:
    finish("app", "x", **kwargs(created_at=given))
    assert only(store).created_at == kept


@pytest.mark.parametrize("given", ["soon", "2026-02-30", object(), float("nan"), 1e300])
def test_a_time_that_cannot_be_read_becomes_now_and_the_receipt_says_so(store: RunStore, given: object) -> None:
    receipt = finish("app", "x", **kwargs(created_at=given))
    assert "created_at" in (receipt.error or "")
    stored = only(store).created_at
    assert stored is not None
    assert abs(datetime.now(UTC) - stored) < timedelta(minutes=1)


class Undecided:
    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")


class Textless:
    def __str__(self) -> str:
        raise RuntimeError("no text here")


def endless() -> Iterator[str]:
    yield "first"
    raise RuntimeError("tags broke")


ODD: list[tuple[dict[str, object], str]] = [
    ({"repo": None}, "repo is empty"),
    ({"repo": "  "}, "repo is empty"),
    ({"repo": Path("/srv/app")}, ""),
    ({"summary": None}, "summary is None"),
    ({"summary": {"a": 1}}, "summary is dict"),
    ({"summary": b"bytes \xff"}, "summary is bytes"),
    ({"summary": Textless()}, "has no text"),
    ({"run_id": 17}, ""),
    ({"run_id": UUID(int=1)}, ""),
    ({"tags": "one"}, "tags is no list"),
    ({"tags": itertools.repeat("again")}, ""),
    ({"tags": None}, ""),
    ({"tags": 5}, "tags is no list"),
    ({"tags": [1, None, Textless()]}, "has no text"),
    ({"tags": endless()}, "tags broke"),
    ({"mode": None}, ""),
    ({"mode": 3}, ""),
    ({"mode": Undecided()}, ""),
]


@pytest.mark.parametrize(("given", "said"), ODD)
def test_values_of_a_wrong_type_lose_nothing_and_are_said(store: RunStore, given: dict[str, object], said: str) -> None:
    receipt = finish(**kwargs(**{"repo": "app", "summary": "text", **given}))
    assert receipt.stored
    assert said in (receipt.error or "")
    assert store.totals().runs == 1


def test_a_bad_setting_is_said_and_the_run_stored_all_the_same(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERRUN_LEASE_SECONDS", "soon")
    receipt = finish("app", "x")
    assert receipt.stored
    assert "AFTERRUN_LEASE_SECONDS" in (receipt.error or "")
    assert only(store).summary == "x"


def test_the_store_may_be_a_path_or_a_run_store(tmp_path: Path) -> None:
    with RunStore(tmp_path / "own.db") as own:
        assert finish("app", "one", store=own).id == 1
        assert finish("app", "two", store=tmp_path / "own.db").id == 2
        assert finish("app", "three", store=str(tmp_path / "own.db")).id == 3
        assert own.totals().runs == 3


@pytest.mark.parametrize("bad", [5, "/proc/nowhere/memory.db", Path("/dev/null/memory.db")])
def test_a_store_that_cannot_be_used_is_said_and_logged(
    bad: object, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receipt = finish("app", "the text", **kwargs(store=bad))
    assert (receipt.id, receipt.stored, receipt.queued) == (None, True, False)
    assert "not stored" in (receipt.error or "")
    assert "the sweep brings it into the run store" in (receipt.error or "")
    assert "not stored" in caplog.text
    assert "the text" not in caplog.text
    assert len(spooled(home)) == 1


def test_a_run_is_lost_only_where_the_spool_fails_too_and_that_is_logged(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("a file, not a folder")
    receipt = finish("app", "the text")
    assert (receipt.stored, receipt.queued) == (False, False)
    assert "not spooled" in (receipt.error or "")
    assert "a finished run was lost" in caplog.text
    assert "the text" not in caplog.text


def test_a_spooled_run_comes_into_its_store_once(store: RunStore, home: Path) -> None:
    with locked(store.path):
        receipt = finish("app", "the story", tags=["a"])
        assert (receipt.id, receipt.stored) == (None, True)
        assert bring_in(home) == 0, "the store is still locked"
    (path,) = spooled(home)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    text = path.read_text()
    assert bring_in(home) == 1
    path.write_text(text)  # as if the sweep had died between the two steps
    assert bring_in(home) == 1
    assert spooled(home) == []
    assert (only(store).summary, only(store).tags) == ("the story", ("a",))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"run": {"repo": ""}, "store_path": "/x"}', '{"run": {}, "store_path": "x"}']
)
def test_a_spooled_file_that_holds_no_run_is_set_aside(home: Path, text: str) -> None:
    path = keep(home, Run(repo="app", summary="x", run_id="r"), home / "memory.db")
    (home / "spool" / "0-odd.json").write_text(text)
    assert bring_in(home) == 1
    assert not path.exists()
    assert [found.name for found in (home / "spool" / "unreadable").iterdir()] == ["0-odd.json"]


def test_two_who_bring_in_at_once_double_nothing(home: Path) -> None:
    for n in range(50):
        keep(home, Run(repo="app", summary=f"s{n}"), home / "memory.db")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(bring_in, [home] * 4))
    with RunStore(home / "memory.db") as store:
        assert store.totals().runs == 50
    assert spooled(home) == []


NO_THREAD = """
import threading
def refuse(self): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
from afterrun import finish
receipt = finish("app", "x")
print(receipt.id, receipt.stored, receipt.queued, "can't start new thread" in receipt.error)
"""


def test_a_process_that_can_start_no_thread_stores_its_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    assert run_python(NO_THREAD).split() == ["1", "True", "False", "True"]


GONE = """
import os, sys, tempfile
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
from afterrun import finish
print(finish("app", "x", store=sys.argv[1]).id)
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AFTERRUN_HOME", "~nosuchuser/x"),
        ("AFTERRUN_HOME", "relative"),
        ("AFTERRUN_RUN_STORE", "relative.db"),
        ("AFTERRUN_RUN_STORES", "~nosuchuser/x"),
        ("XDG_DATA_HOME", "relative"),
        ("AFTERRUN_PUBLISH_TIMEOUT", "inf"),
        ("AFTERRUN_PUBLISH_TIMEOUT", "1e12"),
    ],
)
def test_a_path_that_cannot_be_found_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    if name == "XDG_DATA_HOME":
        monkeypatch.delenv("AFTERRUN_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(name, value)
    assert run_python(GONE, str(tmp_path / "own.db")).strip() == "1"


HOMELESS = """
import os
from afterrun import finish
os.setuid(54321)
print(finish("app", "x").id)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_a_user_without_a_home_gets_a_private_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        monkeypatch.setenv("TMPDIR", folder)
        for name in ("HOME", "AFTERRUN_HOME", "XDG_DATA_HOME"):
            monkeypatch.delenv(name, raising=False)
        assert run_python(HOMELESS).strip() == "1"
        assert (Path(folder) / "afterrun-54321").stat().st_mode & 0o777 == 0o700


def test_a_home_and_store_that_finish_makes_are_private(home: Path) -> None:
    umask = os.umask(0o022)
    try:
        assert finish("app", "x", store=home.parent / "own" / "memory.db").stored
    finally:
        os.umask(umask)
    assert home.stat().st_mode & 0o777 == 0o700
    files = list((home.parent / "own").iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert len(files) == 3


def test_a_run_store_without_a_home_is_registered_for_the_sweep(tmp_path: Path, home: Path) -> None:
    with RunStore(tmp_path / "own.db") as own:
        assert finish("app", "one", store=own).stored
        assert registered(home) == [own.path]


def test_what_can_never_become_a_memory_is_said(store: RunStore) -> None:
    assert "repo has 301 characters" in (finish("r" * 301, "x").error or "")
    assert "summary has 5000001 characters" in (finish("app", "x" * 5_000_001).error or "")
    assert "never" not in (finish("r" * 300, "x").error or "")


AT_EXIT = """
import atexit
from afterrun import finish
atexit.register(lambda: print(finish("app", "x").stored))
"""
AT_EXIT_LATE = """
import atexit
atexit.register(lambda: print(finish("app", "x").stored))
from afterrun import finish
"""


@pytest.mark.parametrize("code", [AT_EXIT, AT_EXIT_LATE])
def test_a_run_that_is_finished_at_exit_is_stored_without_a_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    assert "Traceback" not in done.stderr


def test_an_interrupt_passes(tmp_path: Path) -> None:
    class Interrupting(RunStore):
        def save(self, run: Run) -> Run:
            raise KeyboardInterrupt

    with Interrupting(tmp_path / "own.db") as store, pytest.raises(KeyboardInterrupt):
        finish("app", "x", store=store)
