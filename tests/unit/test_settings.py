"""What the environment may say, what is refused, and that no password is ever shown."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

import pytest

from afterrun.errors import ConfigurationError, ConflictError
from afterrun.local.lock import StackLock
from afterrun.masking import masked_text, masked_url
from afterrun.settings import Settings, load, lock_path


def loaded(tmp_path: Path, **environ: str) -> Settings:
    return load({"AFTERRUN_HOME": str(tmp_path), **environ})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AFTERRUN_HOME", "~nosuchuser/x"),
        ("AFTERRUN_RUN_STORE", "~nosuchuser/x"),
        ("AFTERRUN_RUN_STORES", "/a:~nosuchuser/x"),
        ("AFTERRUN_PUBLISH_TIMEOUT", "inf"),
        ("AFTERRUN_PUBLISH_TIMEOUT", "nan"),
        ("AFTERRUN_PUBLISH_TIMEOUT", "1e12"),
        ("AFTERRUN_PUBLISH_TIMEOUT", "0"),
        ("AFTERRUN_SWEEP_SECONDS", "86401"),
        ("AFTERRUN_LOG_LEVEL", "LOUD"),
        ("AFTERRUN_SPEND_CALLS_PER_DAY", "-1"),
        ("AFTERRUN_SPEND_TOKENS_PER_RUN", "many"),
        ("AFTERRUN_CLUSTER_SIMILARITY", "nan"),
        ("AFTERRUN_CLUSTER_SIMILARITY", "inf"),
        ("AFTERRUN_CLUSTER_SIMILARITY", "0"),
        ("AFTERRUN_CLUSTER_SIMILARITY", "1.01"),
        ("AFTERRUN_JUDGE_TIMEOUT", "300"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        loaded(tmp_path, **{name: value})


def test_values_at_the_bounds_are_taken(tmp_path: Path) -> None:
    assert loaded(tmp_path, AFTERRUN_CLUSTER_SIMILARITY="1").cluster_similarity == 1
    assert loaded(tmp_path, AFTERRUN_SWEEP_SECONDS="86400").sweep_seconds == 86_400
    assert loaded(tmp_path, AFTERRUN_SPEND_CALLS_PER_DAY="0").spend_calls_per_day == 0
    assert loaded(tmp_path, AFTERRUN_LOG_LEVEL="debug").log_level == "DEBUG"


def test_a_folder_of_a_model_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / Settings.model).mkdir()
    assert loaded(tmp_path, AFTERRUN_MODEL="models").model == str(tmp_path / "models")
    assert loaded(tmp_path, AFTERRUN_MODEL="org/name").model == "org/name"
    assert loaded(tmp_path, AFTERRUN_MODEL=Settings.model).model == Settings.model


WORD = "hunter2"
URLS = [
    f"postgresql://user:{WORD}@host:5432/db",
    f"postgresql://host/db?user=me&password={WORD}&sslmode=require",
    f"postgresql://user@host/db?sslpassword={WORD}",
    f"host=h password={WORD} dbname=d",
    f"host=h password = '{WORD}' dbname=d",
    f"redis://:{WORD}@host:6379/0",
    f"redis://host:6379/0?password={WORD}",
    f"redis://:{WORD}/with#odd@host:6379/0",
    f"redis://u:{WORD}@[::1/0",
    f"sentinel://:{WORD}@one:1/0;sentinel://:{WORD}@two:1/0",
    f"https://{WORD}@api.example.com/v1",
    f"https://user:{WORD}@api.example.com/v1",
]


@pytest.mark.parametrize("url", URLS)
def test_no_password_of_an_url_is_shown(url: str) -> None:
    assert WORD not in masked_url(url)
    assert "***" in masked_url(url)
    said = f'connection failed: missing "=" after "{url}", or {WORD} is wrong'
    assert WORD not in masked_text(said, url)
    assert "connection failed" in masked_text(said, url)


@pytest.mark.parametrize(
    "url", ["postgresql://user@host:5432/db?sslmode=require", "redis://host:6379/0", "host=h dbname=d"]
)
def test_an_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert masked_url(url) == url
    assert masked_text(f"failed: {url}", url) == f"failed: {url}"


def test_a_quoted_password_is_masked_in_either_form() -> None:
    assert masked_text("p@ss and p%40ss", "redis://:p%40ss@host/0") == "*** and ***"
    assert masked_text(r"it's and it\'s", r"host=h password='it\'s'") == "*** and ***"


def test_settings_show_no_secret(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        DATABASE_URL=f"postgresql://host/db?password={WORD}",
        REDIS_URL=f"redis://:{WORD}@host/0",
        ANTHROPIC_BASE_URL=f"https://{WORD}@api.example.com",
    )
    assert WORD not in repr(settings)
    assert WORD not in repr(settings.shown())


def test_who_only_looks_does_not_keep_a_stack_from_starting(tmp_path: Path) -> None:
    lock = StackLock(tmp_path)
    with lock_path(tmp_path).open("w") as glance:
        fcntl.flock(glance, fcntl.LOCK_SH)
        threading.Timer(0.2, lambda: fcntl.flock(glance, fcntl.LOCK_UN)).start()
        lock.acquire()
    lock.release()


def test_a_second_stack_is_refused_in_time(tmp_path: Path) -> None:
    lock = StackLock(tmp_path)
    lock.acquire()
    started = time.monotonic()
    with pytest.raises(ConflictError, match="already runs"):
        StackLock(tmp_path).acquire()
    assert time.monotonic() - started < 3
    lock.release()
