"""Which files of a folder are a source: those that .gitignore lets through, regular files inside the root.

In a git checkout git itself lists them, and the root is the checkout's, so that a subfolder's files have the same paths
as when all is indexed. Elsewhere the folder is walked, with the .gitignore files of all levels. Symbolic links are not
followed: what they point at inside the root has a path of its own, and what lies outside does not belong to the source.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from pathspec import GitIgnoreSpec

from afterrun.errors import InputError
from afterrun.sources import git

LONGEST_PATH: Final = 1_000
"""Bytes of a path: it stands in an index of Postgres, whose rows hold 2,700."""
VENDORED: Final = frozenset(
    (
        "node_modules",
        "bower_components",
        "jspm_packages",
        "vendor",
        "third_party",
        "dist",
        "site-packages",
        "venv",
        ".venv",
        "__pycache__",
        ".tox",
        ".nox",
        ".eggs",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        "Pods",
        ".gradle",
        ".terraform",
    )
)
"""Folders of what others wrote, or programs made."""
UNREADABLE: Final = "unreadable"
_REPOSITORY: Final = frozenset((".git", ".hg", ".svn"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A file as its folder lists it: `path` is relative to the root, `skipped` says why it is none to read."""

    path: str
    size: int = 0
    modified_ns: int = 0
    skipped: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The files under `root` whose paths begin with `beginning` (empty: all), sorted by path."""

    root: Path
    beginning: str
    paths: Sequence[str]

    def entries(self) -> Iterator[Entry]:
        """Each file as it is now; those that vanished meanwhile are left out."""
        for path in self.paths:
            if (entry := _entry(self.root, path)) is not None:
                yield entry


def list_files(path: Path, *, environ: Mapping[str, str] = os.environ) -> Listing:
    """The files under the folder `path`. Raises InputError where it is no folder that can be read."""
    if not path.is_dir():
        raise InputError(f"{path} is no folder: pass the one to index")
    path = path.resolve()
    checkout = git.checkout(path, environ=environ)
    if checkout is not None:
        root, beginning = checkout
        listed = git.files(path, environ=environ)
        return Listing(root=root, beginning=beginning, paths=sorted({beginning + name for name in listed}))
    if not os.access(path, os.R_OK | os.X_OK):
        raise InputError(f"{path} cannot be read: this user has no right to")
    return Listing(root=path, beginning="", paths=sorted(_walked(path)))


def project_name(path: Path, *, environ: Mapping[str, str] = os.environ) -> str:
    """The project that a folder is by default: its repository's name, else its own."""
    if git.checkout(path, environ=environ) is not None:
        return git.repo_name(path, environ=environ)
    return path.resolve().name or "root"


def is_vendored(path: str) -> bool:
    """Whether one of the path's folders holds what others wrote, or programs made."""
    return not VENDORED.isdisjoint(path.split("/")[:-1])


def _entry(root: Path, path: str) -> Entry | None:
    try:
        found = (root / path).lstat()
        path.encode()
    except UnicodeEncodeError:
        return Entry(path=path.encode("utf-8", "replace").decode(), skipped="name is no UTF-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Entry(path=path, skipped=UNREADABLE)
    skipped = _unusable(root / path, path, found.st_mode)
    return Entry(path=path, size=found.st_size, modified_ns=found.st_mtime_ns, skipped=skipped)


def _unusable(file: Path, path: str, mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "symbolic link"
    if stat.S_ISDIR(mode):
        return "nested repository" if os.access(file, os.R_OK) else UNREADABLE
    if not stat.S_ISREG(mode):
        return "special file"
    return "path too long" if len(path.encode()) > LONGEST_PATH else None


def _walked(root: Path) -> Iterator[str]:
    """Every path that no .gitignore excludes; the deepest file that has a word on a path decides."""
    specs: dict[str, GitIgnoreSpec] = {}
    for folder, folders, names in os.walk(root):
        here = "" if folder == str(root) else PurePosixPath(os.path.relpath(folder, root)).as_posix() + "/"
        if ".gitignore" in names:
            lines = (root / here / ".gitignore").read_text("utf-8", "replace").splitlines()
            specs[here] = GitIgnoreSpec.from_lines(lines)
        folders[:] = [
            name for name in sorted(folders) if name not in _REPOSITORY and not _ignored(specs, f"{here}{name}/")
        ]
        yield from (here + name for name in names if not _ignored(specs, here + name))
        yield from (here + name for name in folders if _is_closed(root / here / name))


def _is_closed(folder: Path) -> bool:
    return folder.is_symlink() or not os.access(folder, os.R_OK | os.X_OK)


def _ignored(specs: Mapping[str, GitIgnoreSpec], path: str) -> bool:
    folder = path.rstrip("/")
    while folder:
        folder = folder.rpartition("/")[0]
        spec = specs.get(folder + "/" if folder else "")
        verdict = spec.check_file(path[len(folder) + 1 if folder else 0 :]).include if spec else None
        if verdict is not None:
            return verdict
    return False
