"""The only reader of the environment and of the local stack's state file.

`load()` gives one frozen `Settings`; everything below an adapter gets it, or the values it needs, as an argument. Each
field names its environment variable and what it is for; `afterrun config` and docs/configuration.md show the same list.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from afterrun.errors import ConfigurationError, NotRunningError
from afterrun.masking import MASK, masked_url

STATE_FILE: Final = "stack.json"
LOCK_FILE: Final = "stack.lock"
MOST_SECONDS: Final = 86_400
"""A day: longer is a mistake, and threads cannot wait for just any number of seconds."""
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
Origin = Literal["environment", "local stack", "default"]


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's data folder for Afterrun: `$XDG_DATA_HOME/afterrun`, or the platform's usual place.

    For a user without a home it is a private folder of theirs below the folder of temporary files.

    Raises:
        ConfigurationError: no such folder can be had.
    """
    try:
        if base := environ.get("XDG_DATA_HOME"):
            return Path(base).absolute() / "afterrun"
        user = Path(environ.get("HOME") or Path.home()).absolute()
    except (RuntimeError, OSError):
        return _temporary_home()
    return user / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "afterrun"


def _temporary_home() -> Path:
    try:
        home = Path(tempfile.gettempdir()) / f"afterrun-{os.getuid()}"
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
    except OSError as error:
        raise ConfigurationError(f"there is no folder for Afterrun's data, set AFTERRUN_HOME: {error}") from error
    if not home.is_dir() or home.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(f"{home} is not a private folder of this user: set AFTERRUN_HOME")
    return home


def _setting(
    env: str,
    default: Any,
    doc: str,
    *,
    secret: bool = False,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    metadata = {"env": env, "doc": doc, "secret": secret, "parse": parse or type(default)}
    return field(default=default, metadata=metadata, repr=not secret)


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part)


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _model(text: str) -> str:
    return str(Path(text).absolute()) if text != Settings.model and Path(text).is_dir() else text


def _log_level(text: str) -> str:
    if text.upper() not in LOG_LEVELS:
        raise ValueError(f"it is one of {', '.join(LOG_LEVELS)}")
    return text.upper()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, parsed and checked. Secrets do not appear in `repr`."""

    home: Path = _setting("AFTERRUN_HOME", None, "Folder of the run store and of the local stack's data", parse=_path)
    database_url: str | None = _setting(
        "DATABASE_URL",
        None,
        "Postgres with pgvector; unset: the embedded server of `afterrun up`",
        secret=True,
        parse=str,
    )
    redis_url: str | None = _setting(
        "REDIS_URL", None, "The Celery broker; unset: the embedded server of `afterrun up`", secret=True, parse=str
    )
    run_store: Path = _setting(
        "AFTERRUN_RUN_STORE", None, "SQLite file of finished runs; unset: memory.db in the home", parse=_path
    )
    run_stores: tuple[Path, ...] = _setting(
        "AFTERRUN_RUN_STORES", (), "More run stores that the sweep reads, separated as in PATH", parse=_paths
    )
    publish_timeout: float = _setting(
        "AFTERRUN_PUBLISH_TIMEOUT", 0.2, "Seconds that finish() waits for the broker at most"
    )
    model: str = _setting(
        "AFTERRUN_MODEL",
        "all-MiniLM-L6-v2",
        "Embedding model: the packaged one, a folder, or a Hugging Face name",
        parse=_model,
    )
    embed_batch: int = _setting("AFTERRUN_EMBED_BATCH", 512, "Chunks that one embed task claims")
    lease_seconds: int = _setting(
        "AFTERRUN_LEASE_SECONDS", 300, "Seconds after which a dead worker's claim is free again"
    )
    max_attempts: int = _setting(
        "AFTERRUN_MAX_ATTEMPTS", 3, "Failures of its own after which an item goes to the dead letters"
    )
    sweep_seconds: int = _setting("AFTERRUN_SWEEP_SECONDS", 60, "Interval of the sweep that picks up whatever was lost")
    find_clusters_seconds: int = _setting(
        "AFTERRUN_FIND_CLUSTERS_SECONDS", 600, "Interval of the search for near-duplicates in the whole store"
    )
    roll_up_seconds: int = _setting(
        "AFTERRUN_ROLL_UP_SECONDS", 3_600, "Interval in which ten runs of a repo become a month, three months a quarter"
    )
    cluster_similarity: float | None = _setting(
        "AFTERRUN_CLUSTER_SIMILARITY",
        None,
        "Cosine from which memories become candidates; unset: the model's own",
        parse=float,
    )
    near_similarity: float | None = _setting(
        "AFTERRUN_NEAR_SIMILARITY",
        None,
        "Cosine from which they are judged at once; unset: the model's own",
        parse=float,
    )
    exact_similarity: float | None = _setting(
        "AFTERRUN_EXACT_SIMILARITY",
        None,
        "Cosine from which the rules are asked before a language model; unset: the model's own",
        parse=float,
    )
    anthropic_api_key: str | None = _setting(
        "ANTHROPIC_API_KEY",
        None,
        "Key for Claude Haiku; unset: the deterministic judge and merger",
        secret=True,
        parse=str,
    )
    anthropic_base_url: str | None = _setting(
        "ANTHROPIC_BASE_URL", None, "Another address of the Messages API", secret=True, parse=str
    )
    judge_model: str = _setting("AFTERRUN_JUDGE_MODEL", "claude-haiku-4-5", "Model that judges and words merges")
    judge_timeout: float = _setting("AFTERRUN_JUDGE_TIMEOUT", 30.0, "Seconds for one answer of the language model")
    spend_calls_per_day: int = _setting(
        "AFTERRUN_SPEND_CALLS_PER_DAY", 1_000, "Most calls of the language model a day (UTC); 0: no cap"
    )
    spend_tokens_per_day: int = _setting(
        "AFTERRUN_SPEND_TOKENS_PER_DAY", 2_000_000, "Most tokens of the language model a day, in and out; 0: no cap"
    )
    spend_calls_per_project_day: int = _setting(
        "AFTERRUN_SPEND_CALLS_PER_PROJECT_DAY", 500, "Most of these calls for one project a day; 0: no cap"
    )
    spend_tokens_per_project_day: int = _setting(
        "AFTERRUN_SPEND_TOKENS_PER_PROJECT_DAY", 1_000_000, "Most of these tokens for one project a day; 0: no cap"
    )
    spend_calls_per_run: int = _setting(
        "AFTERRUN_SPEND_CALLS_PER_RUN", 200, "Most calls of one run, such as one `afterrun consolidate`; 0: no cap"
    )
    spend_tokens_per_run: int = _setting("AFTERRUN_SPEND_TOKENS_PER_RUN", 400_000, "Most tokens of one run; 0: no cap")
    database_timeout: float = _setting("AFTERRUN_DATABASE_TIMEOUT", 5.0, "Seconds to get a database connection")
    pool_size: int = _setting("AFTERRUN_POOL_SIZE", 4, "Most database connections that one process opens")
    visibility_timeout: int = _setting(
        "AFTERRUN_VISIBILITY_TIMEOUT", 900, "Seconds after which the broker hands out an unacknowledged task again"
    )
    log_level: str = _setting("AFTERRUN_LOG_LEVEL", "INFO", "Level of the workers' logs", parse=_log_level)
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, metadata={"env": None})
    embed_socket: Path | None = field(default=None, repr=False, metadata={"env": None})
    """Socket at which the local stack embeds queries, while it runs."""

    def require_database(self) -> str:
        """The database's URL, or `NotRunningError` with what to do."""
        return self.database_url or _not_running("DATABASE_URL")

    def require_broker(self) -> str:
        """The broker's URL, or `NotRunningError` with what to do."""
        return self.redis_url or _not_running("REDIS_URL")

    def environment(self) -> dict[str, str]:
        """The variables from which `load()` makes these settings again in a child process, in any working folder."""
        values = {f.metadata["env"]: getattr(self, f.name) for f in fields(self) if f.metadata["env"]}
        return {env: _as_text(value) for env, value in values.items() if value not in (None, ())}

    def shown(self) -> list[tuple[str, str, Origin, str]]:
        """Rows of variable, value with secrets masked, origin and meaning."""
        return [
            (
                f.metadata["env"],
                _masked(getattr(self, f.name), f.metadata["secret"]),
                self.origins.get(f.name, "default"),
                f.metadata["doc"],
            )
            for f in fields(self)
            if f.metadata["env"]
        ]


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment, then the state file of a running local stack for what the environment leaves open.

    Raises:
        ConfigurationError: a variable has a value that cannot be used; the message names it.
    """
    settings = _from_environment(tuple(environ.get(name, "") for name in _variables()))
    found = {name: value for name, value in _running_stack(settings.home).items() if getattr(settings, name) is None}
    if not found:
        return settings
    return replace(settings, **found, origins={**settings.origins, **dict.fromkeys(found, "local stack")})


@cache
def _variables() -> tuple[str, ...]:
    return (*(f.metadata["env"] for f in fields(Settings) if f.metadata["env"]), "HOME", "XDG_DATA_HOME")


@lru_cache(maxsize=8)
def _from_environment(texts: tuple[str, ...]) -> Settings:
    # Kept, since `finish()` reads the settings for every run and the environment hardly ever changes.
    environ = {name: text.strip() for name, text in zip(_variables(), texts, strict=True) if text.strip()}
    chosen = {f.name: f.metadata for f in fields(Settings) if f.metadata["env"] in environ}
    values = {name: _parsed(of["env"], environ[of["env"]], of["parse"]) for name, of in chosen.items()}
    home: Path = values.setdefault("home", default_home(environ))
    values.setdefault("run_store", home / "memory.db")
    settings = Settings(**values, origins=dict.fromkeys(chosen, "environment"))
    _check(settings)
    return settings


def state_path(home: Path) -> Path:
    """Where a running local stack says how it is reached."""
    return home / STATE_FILE


def lock_path(home: Path) -> Path:
    """The file that a running local stack holds locked."""
    return home / LOCK_FILE


def stack_runs(home: Path) -> bool:
    """Whether a local stack runs: it locks its lock file, and the kernel frees the lock however it dies."""
    try:
        with lock_path(home).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _running_stack(home: Path) -> dict[str, Any]:
    if not stack_runs(home):
        return {}
    try:
        state = json.loads(state_path(home).read_text(encoding="utf-8"))
        return {
            "database_url": state["database_url"],
            "redis_url": state["redis_url"],
            "embed_socket": Path(state["embed_socket"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _parsed(env: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, RuntimeError, OSError) as error:
        # The last two: no home of the user whom `~` names, and no working folder for a relative path.
        raise ConfigurationError(f"{env}={text[:40]!r} cannot be used: {error}") from error


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return os.pathsep.join(_as_text(part) for part in value)
    return str(value.absolute() if isinstance(value, Path) else value)


def _check(settings: Settings) -> None:
    for f in fields(settings):
        value = getattr(settings, f.name)
        if not isinstance(value, int | float):
            continue
        if f.name.startswith("spend_") and value == 0:
            continue
        if not (value > 0 and math.isfinite(value)):
            raise ConfigurationError(f"{f.metadata['env']}={value} cannot be used: it must be greater than 0")
        if f.name.endswith(("_seconds", "_timeout")) and value > MOST_SECONDS:
            raise ConfigurationError(f"{f.metadata['env']}={value} cannot be used: {MOST_SECONDS} seconds are the most")
        if f.name.endswith("_similarity") and value > 1:
            raise ConfigurationError(f"{f.metadata['env']} is a cosine: it cannot be greater than 1")
    if settings.lease_seconds <= settings.judge_timeout:
        raise ConfigurationError("AFTERRUN_LEASE_SECONDS must be greater than AFTERRUN_JUDGE_TIMEOUT")
    if settings.visibility_timeout <= settings.lease_seconds:
        raise ConfigurationError("AFTERRUN_VISIBILITY_TIMEOUT must be greater than AFTERRUN_LEASE_SECONDS")


def _masked(value: object, secret: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return os.pathsep.join(str(part) for part in value)
    if not secret:
        return str(value)
    return masked_url(str(value)) if "://" in str(value) else MASK


def _not_running(env: str) -> str:
    raise NotRunningError(f"{env} is not set and no local stack runs: run `afterrun up`, or set {env}")
