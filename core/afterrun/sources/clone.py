"""Somebody's repository in a temporary folder: cloned by git, or unpacked from an archive; it is always removed.

A repository is content, not a program: no hooks, no submodules, no filters that fetch more, no protocol but those of
the list, no question to a terminal. What it takes is bounded in time and, for an archive, in bytes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from afterrun.errors import ConfigurationError, InputError
from afterrun.masking import masked_text
from afterrun.sources.git import foreign_free
from afterrun.sources.web import Fetcher, FetchError

PROTOCOLS: Final = "file:git:http:https:ssh"
"""What git may clone over. `ext` runs programs, and is not among them."""
ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
LARGEST_ARCHIVE: Final = 500_000_000
"""Bytes of an archive that is downloaded."""
LARGEST_CONTENT: Final = 4_000_000_000
"""Bytes of what it holds: an archive may claim anything."""

_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_ALLOW_PROTOCOL": PROTOCOLS,
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=15",
}
_OPTIONS: Final = ("--depth=1", "--single-branch", "--no-tags", "--no-recurse-submodules", "--template=", "--quiet")
_CONFIGURED: Final = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "advice.detachedHead=false")


@contextmanager
def fetched(address: str, *, seconds: float, environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """The newest state of a repository in a folder: by its git URL, its local path, or that of an archive.

    Raises:
        InputError: it cannot be had, or not within `seconds`.
        ConfigurationError: git is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="afterrun-repository-", ignore_cleanup_errors=True) as folder:
        target = Path(folder) / "tree"
        if address.lower().endswith(ARCHIVES):
            _unpack(_archive(address, Path(folder), seconds), target, until=time.monotonic() + seconds)
            target = _only_folder(target)
        else:
            _clone(address, target, seconds, environ)
        yield target


def _clone(address: str, target: Path, seconds: float, environ: Mapping[str, str]) -> None:
    if address.startswith("-"):
        raise InputError("an address does not begin with a dash: write ./ before a path that does")
    # Only an address is cloned shallow: of a path git copies all there is.
    source = Path(address).resolve().as_uri() if Path(address).exists() else address
    configured = [word for value in _CONFIGURED for word in ("-c", value)]
    command = ["git", *configured, "clone", *_OPTIONS, "--", source, str(target)]
    with tempfile.TemporaryFile() as complaints:
        code = _run(command, {**foreign_free(environ), **_ENVIRONMENT}, complaints.fileno(), seconds)
        if code is None:
            raise InputError(f"cloning takes longer than {seconds:g} s")
        complaints.seek(0)
        words = complaints.read(10_000).decode("utf-8", "replace").strip().splitlines()
    if code:
        reason = next(
            (line for line in words if line.startswith("fatal:")), words[-1] if words else f"exit code {code}"
        )
        raise InputError(f"git cannot clone it: {masked_text(reason.removeprefix('fatal: '), address)}")


def _run(command: Sequence[str], environ: Mapping[str, str], complaints: int, seconds: float) -> int | None:
    """The exit code of a program; None where it took too long and was ended with all that it started."""
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ConfigurationError("git is not installed, or not in PATH: install it to index repositories") from error
    try:
        return process.wait(timeout=max(seconds, 0.01))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _archive(address: str, folder: Path, seconds: float) -> Path:
    if urlsplit(address).scheme not in ("http", "https"):
        if not Path(address).is_file():
            raise InputError(f"there is no archive at {address}")
        return Path(address)
    copy = folder / f"archive{next(suffix for suffix in ARCHIVES if address.lower().endswith(suffix))}"
    try:
        with copy.open("wb") as file:
            Fetcher(seconds=seconds, largest=LARGEST_ARCHIVE).download(address, file)
    except FetchError as error:
        raise InputError(f"the archive cannot be downloaded: {error}") from error
    return copy


def _unpack(archive: Path, target: Path, *, until: float, clock: Callable[[], float] = time.monotonic) -> None:
    target.mkdir()
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, target, until, clock)
        else:
            _untar(archive, target, until, clock)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the archive cannot be unpacked: {type(error).__name__}") from error


def _only_folder(target: Path) -> Path:
    """The folder that archives of a repository have around it: it is named after a commit, and no part of the paths."""
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def _untar(archive: Path, target: Path, until: float, clock: Callable[[], float]) -> None:
    total = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            total += member.size
            _check(total, until, clock)
            # The filter keeps what would lie outside, and devices; only files and folders are wanted anyway.
            if member.isfile() or member.isdir():
                tar.extract(member, target, filter="data")


def _unzip(archive: Path, target: Path, until: float, clock: Callable[[], float]) -> None:
    total = 0
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            total += member.file_size
            _check(total, until, clock)
            packed.extract(member, target)


def _check(total: int, until: float, clock: Callable[[], float]) -> None:
    if total > LARGEST_CONTENT:
        raise InputError(f"the archive holds more than {LARGEST_CONTENT:,} bytes")
    if clock() > until:
        raise InputError("unpacking the archive takes too long")
