"""A repository's commits as finished runs, oldest first.

Git runs as a child process and its output is read piece by piece, so that memory stays small whatever the length of the
history. Messages are written by others: bytes that are no UTF-8 become U+FFFD, and secrets are scrubbed here.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from afterrun.errors import ConfigurationError, InputError
from afterrun.models import Run
from afterrun.redact import scrub

MODE: Final = "commit"
"""The mode of runs that are commits."""

_FIELDS: Final = "%H%x00%ct%x00%P%x00%B"
_PIECE: Final = 1 << 16
_TIMELESS: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""For commits whose time no calendar can hold; git writes them so, too."""

# Inside a hook git sets these for the repository that the hook belongs to, and they would win over the path.
_ANOTHER_REPOSITORY: Final = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)
_SETTINGS: Final = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}

_CONVENTIONAL: Final = re.compile(
    r"(feat|fix|docs|style|refactor|perf|tests?|build|ci|chore|revert)(\([^)]*\))?!?:\s", re.IGNORECASE
)
_TRAILER: Final = re.compile(r"(?:[a-z]+(?:-[a-z]+)*-by|cc|change-id|git-svn-id|cherry-picked-from):\s", re.IGNORECASE)


def commits(
    path: Path, *, limit: int | None = None, environ: Mapping[str, str] = os.environ
) -> Generator[Run, None, None]:
    """The commits reachable from HEAD of the repository at `path`, oldest first; with `limit` only the newest so many.

    Merges without a text of their own and commits without a message are left out.

    Raises:
        InputError: `path` is in no repository, the repository has no commits, or git cannot read it.
        ConfigurationError: git is not installed.
    """
    repo = repo_name(path, environ=environ)
    _require_commits(path, environ)
    newest = [] if limit is None else [f"--max-count={limit}"]
    shape = ["--reverse", "-z", f"--format={_FIELDS}", "--encoding=UTF-8", "--no-color", "--no-show-signature"]
    with _reading(path, ["log", *shape, *newest, "HEAD", "--"], environ) as output:
        fields = _fields(output)
        for sha, seconds, parents, message in zip(fields, fields, fields, fields, strict=False):
            summary = scrub(clean(message))
            if summary.strip() and not (" " in parents and not _has_body(summary)):
                yield _run(repo, sha.strip(), seconds, summary)


def count(path: Path, *, environ: Mapping[str, str] = os.environ) -> int:
    """How many commits the repository at `path` has, those that `commits` leaves out included. Raises as `commits`."""
    _require_commits(path, environ)
    return int(_git(path, ["rev-list", "--count", "HEAD", "--"], environ))


def is_shallow(path: Path, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the repository at `path` is a clone that has only its newest commits. Raises as `commits`."""
    return _git(path, ["rev-parse", "--is-shallow-repository"], environ) == "true"


def repo_name(path: Path, *, environ: Mapping[str, str] = os.environ) -> str:
    """`owner/name` by the remote called origin, else the name of the repository's folder. Raises as `commits`."""
    folder = Path(_git(path, ["rev-parse", "--path-format=absolute", "--git-common-dir"], environ))
    # All work trees of a repository share this folder, so that a temporary one keeps the name.
    own = folder.parent.name if folder.name == ".git" else folder.name.removesuffix(".git")
    origin = _git(path, ["config", "--default", "", "--get", "remote.origin.url"], environ)
    return scrub(name_of(origin) or own or "repository")


def checkout(path: Path, *, environ: Mapping[str, str] = os.environ) -> tuple[Path, str] | None:
    """The root of the work tree that the folder `path` lies in, and its place there (empty, or ending with `/`).

    None where git tracks nothing there: outside of a work tree, in an ignored folder, or without git.
    """
    try:
        with _reading(path, ["check-ignore", "."], environ, check=False) as output:
            if output.read():
                return None
        top, _, prefix = _git(path, ["rev-parse", "--show-toplevel", "--show-prefix"], environ).partition("\n")
    except (InputError, ConfigurationError):
        return None
    return Path(top), prefix


def files(path: Path, *, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The files under the folder `path` that git tracks or would track, relative to it. Raises as `commits`."""
    command = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    with _reading(path, command, environ) as output:
        yield from filter(None, _fields(output, "surrogateescape"))


def foreign_free(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what names another repository than the one that git is asked about."""
    return {name: value for name, value in environ.items() if name not in _ANOTHER_REPOSITORY}


def name_of(remote: str) -> str:
    """`owner/name` of a remote's URL or scp-like address, without its credentials; the folder's name of a path."""
    address = remote.strip().rstrip("/").removesuffix(".git")
    scheme, separator, rest = address.partition("://")
    if separator:
        parts = rest.partition("/")[2].split("/")
        return "/".join(parts[-1:] if scheme == "file" else parts[-2:])
    host, separator, path = address.rpartition("@")[2].partition(":")
    if separator and "/" not in host:
        return "/".join(path.strip("/").split("/")[-2:])
    return address.rpartition("/")[2]


def clean(message: str) -> str:
    """A commit's message without the trailers that name people and tools, and without blank space around it."""
    lines = [line.rstrip() for line in message.strip().splitlines()]
    while len(lines) > 1 and (not lines[-1] or _TRAILER.match(lines[-1])):
        lines.pop()
    start = max((place for place, line in enumerate(lines) if not line), default=0)
    last = [line for line in lines[start + 1 :] if not _TRAILER.match(line)]
    return "\n".join([*lines[: start + 1], *last]).strip()


def _run(repo: str, sha: str, seconds: str, summary: str) -> Run:
    kind = _CONVENTIONAL.match(summary)
    tags = (kind[1].lower(),) if kind else ()
    return Run(repo=repo, run_id=sha, created_at=_time(seconds), summary=summary, tags=tags, mode=MODE)


def _time(seconds: str) -> datetime:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return _TIMELESS


def _has_body(summary: str) -> bool:
    return bool(summary.partition("\n")[2].strip())


def _fields(output: IO[bytes], errors: str = "replace") -> Iterator[str]:
    """The output's NUL-separated fields."""
    parts: list[bytes] = []
    while piece := output.read(_PIECE):
        first, *others = piece.split(b"\0")
        parts.append(first)
        for other in others:
            yield b"".join(parts).decode("utf-8", errors)
            parts = [other]


def _require_commits(path: Path, environ: Mapping[str, str]) -> None:
    _git(path, ["rev-parse", "--git-dir"], environ)
    with _reading(path, ["rev-parse", "--verify", "--quiet", "HEAD"], environ, check=False) as output:
        found = output.read().strip()
    if not found:
        raise InputError(f"the git repository at {path} has no commits yet")


def _git(path: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    with _reading(path, arguments, environ) as output:
        return output.read().decode("utf-8", "replace").strip()


@contextmanager
def _reading(
    path: Path, arguments: Sequence[str], environ: Mapping[str, str], *, check: bool = True
) -> Iterator[IO[bytes]]:
    """The output of git; the child is ended when the block is left early, and its failure is raised at its end."""
    kept = foreign_free(environ) | _SETTINGS
    with tempfile.TemporaryFile() as complaints:
        process = _start(["git", "-C", str(path), *arguments], kept, complaints)
        output = process.stdout
        if output is None:
            raise InputError(f"git gives no output for {path}")
        try:
            yield output
            code = process.wait()
        finally:
            output.close()
            process.kill()
            process.wait()
        if code and check:
            complaints.seek(0)
            raise _explained(path, complaints.read().decode("utf-8", "replace"))


def _start(command: Sequence[str], environ: Mapping[str, str], complaints: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
        )
    except FileNotFoundError as error:
        raise ConfigurationError("git is not installed, or not in PATH: install it to index commits") from error


def _explained(path: Path, complaint: str) -> InputError:
    if "dubious ownership" in complaint:
        trust = f"git config --global --add safe.directory {path.absolute()}"
        return InputError(f"git does not read {path}, which belongs to another user: if you trust it, run `{trust}`")
    if "not a git repository" in complaint:
        return InputError(f"{path} is in no git repository: pass the folder of one")
    first = (complaint.strip().splitlines() or ["no reason given"])[0].removeprefix("fatal: ")
    return InputError(f"git cannot read {path}: {first}")
