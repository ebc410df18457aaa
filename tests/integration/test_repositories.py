"""Repositories from anywhere: into the memory, and nothing left behind, whatever they are."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from afterrun import RepoIndexer
from afterrun.client import Memory
from afterrun.settings import Settings
from afterrun.testing import HashEmbedder


@pytest.fixture
def memory(database_url: str, embedder: HashEmbedder, tmp_path: Path) -> Iterator[Memory]:
    settings = Settings(home=tmp_path / "home", run_store=tmp_path / "memory.db", database_url=database_url)
    with Memory(settings=settings, embedder=embedder) as memory:
        yield memory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders go; it must be empty again at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "docs").mkdir(parents=True)
    (folder / "shop.py").write_text("def load(path):\n    return path\n")
    (folder / "docs" / "guide.md").write_text("# Guide\n\nCall load.\n")
    git(folder, "init", "-q")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")


def keys(memory: Memory) -> set[str]:
    with memory.database.transaction() as connection:
        return {row[0] for row in connection.execute("SELECT source_key FROM memories WHERE is_active").fetchall()}


EXPECTED = {"codebase:shop:shop.py#load~0", "docs:shop:docs/guide.md#Guide~0"}


@pytest.mark.parametrize("form", ["path", "file", "bare"])
def test_a_local_repository_is_indexed_as_code_and_documents(
    memory: Memory, repository: Path, temporary: Path, form: str
) -> None:
    bare = repository.parent / "bare" / "shop.git"
    git(repository, "clone", "-q", "--bare", str(repository), str(bare))
    addresses = {"path": str(repository), "file": repository.as_uri(), "bare": str(bare)}
    done = RepoIndexer(memory).index(addresses[form])
    assert (done.error, done.project) == (None, "shop")
    assert [one.source for one in done.passes] == ["codebase", "docs"]
    assert keys(memory) == EXPECTED
    assert list(temporary.iterdir()) == []


def test_a_second_time_only_what_changed_is_written(memory: Memory, repository: Path, temporary: Path) -> None:
    indexer = RepoIndexer(memory)
    indexer.index(str(repository))
    (repository / "docs" / "guide.md").unlink()
    (repository / "more.py").write_text("def more():\n    return 1\n")
    commit(repository)
    code, docs = indexer.index(str(repository)).passes
    assert (code.added, code.unchanged, docs.removed) == (1, 1, 1)


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_an_archive_is_unpacked_without_the_folder_around_it(
    memory: Memory, repository: Path, temporary: Path, kind: str
) -> None:
    archive = repository.parent / f"shop.{kind}"
    git(repository, "archive", f"--format={kind}", "--prefix=shop-abc123/", "-o", str(archive), "HEAD")
    handler = partial(SimpleHTTPRequestHandler, directory=str(archive.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/shop.{kind}"
        done = RepoIndexer(memory).index(url, project="shop")
        server.shutdown()
    assert done.error is None
    assert keys(memory) == EXPECTED
    assert list(temporary.iterdir()) == []


def test_an_archive_cannot_write_outside_of_its_folder(memory: Memory, tmp_path: Path, temporary: Path) -> None:
    bad = tmp_path / "bad.tar"
    with tarfile.open(bad, "w") as tar:
        member = tarfile.TarInfo("../../escaped.py")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("../../escaped.py", "def escaped():\n    return 1\n")
    assert "OutsideDestinationError" in (RepoIndexer(memory).index(str(bad)).error or "")
    assert RepoIndexer(memory).index(str(tmp_path / "bad.zip")).error is None
    assert not list(tmp_path.parent.rglob("escaped.py"))


@pytest.mark.parametrize(
    "address",
    [
        "/nowhere/at/all",
        "https://user:s3cret-word@127.0.0.1:1/shop.git",
        "http://127.0.0.1:1/shop.zip",
        "ext::sh -c touch% /tmp/owned",
        "--upload-pack=touch /tmp/owned",
        "/nowhere/shop.tar.gz",
    ],
)
def test_what_cannot_be_had_is_told_and_not_raised(memory: Memory, temporary: Path, address: str) -> None:
    done = RepoIndexer(memory, seconds=20).index(address)
    assert done.error
    assert "s3cret-word" not in repr(done)
    assert (done.passes, keys(memory), list(temporary.iterdir())) == ((), set(), [])
    assert not Path("/tmp/owned").exists()


def test_hooks_and_submodules_of_a_repository_do_nothing(
    memory: Memory, repository: Path, tmp_path: Path, temporary: Path
) -> None:
    owned = tmp_path / "owned"
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {owned}\n")
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    (repository / ".gitmodules").write_text(f'[submodule "x"]\n\tpath = x\n\turl = {tmp_path}/none\n')
    commit(repository)
    assert RepoIndexer(memory).index(str(repository)).error is None
    assert not owned.exists()


def test_a_clone_that_hangs_is_ended_in_time_with_all_that_it_started(
    memory: Memory, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = "86399"
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nsleep {marker}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    started = time.monotonic()
    done = RepoIndexer(memory, seconds=2).index("ssh://git@host.invalid/shop.git")
    assert "longer than 2 s" in (done.error or "")
    assert time.monotonic() - started < 10
    assert not [process for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or [])]
    assert list(temporary.iterdir()) == []


def test_a_database_that_is_down_is_told_and_not_raised(
    repository: Path, tmp_path: Path, embedder: HashEmbedder
) -> None:
    settings = Settings(
        home=tmp_path / "home", run_store=tmp_path / "memory.db", database_url="postgresql://postgres@127.0.0.1:1/none"
    )
    with Memory(settings=settings, embedder=embedder) as memory:
        done = RepoIndexer(memory).index(str(repository))
    assert "cannot reach Postgres" in (done.error or "")


def test_what_was_not_reached_in_time_is_told(memory: Memory, repository: Path) -> None:
    ticks = iter(range(0, 100_000, 400))
    done = RepoIndexer(memory, seconds=600, clock=lambda: next(ticks)).index(str(repository))
    assert "not done after 600 s" in (done.error or "")
