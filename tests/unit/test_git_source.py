"""Commits as runs, read from real repositories."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from afterrun.errors import ConfigurationError, InputError
from afterrun.sources import git, samples


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which only the test's own git settings exist."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "C",
        "GIT_COMMITTER_EMAIL": "c@example.org",
        "GIT_COMMITTER_DATE": "1700000000 +0100",
    }


@pytest.fixture
def repository(tmp_path: Path, environ: dict[str, str]) -> Path:
    folder = tmp_path / "shop"
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], env=environ, check=True)
    return folder


def call(folder: Path, environ: dict[str, str], *arguments: str, stdin: bytes = b"") -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, env=environ, input=stdin, check=True, capture_output=True)
    return done.stdout.decode("utf-8", "replace").strip()


def commit(folder: Path, environ: dict[str, str], message: bytes | str, *options: str) -> str:
    text = message.encode() if isinstance(message, str) else message
    call(folder, environ, "commit", "-q", "--allow-empty", "--allow-empty-message", *options, "-F", "-", stdin=text)
    return call(folder, environ, "rev-parse", "HEAD")


def summaries(folder: Path, environ: dict[str, str], limit: int | None = None) -> list[str]:
    return [run.summary for run in git.commits(folder, limit=limit, environ=environ)]


def test_commits_become_runs_oldest_first(repository: Path, environ: dict[str, str]) -> None:
    first = commit(repository, environ, "fix(cart): keep the cart\n\nIt was lost at login.")
    second = commit(repository, environ, "Second")
    old, new = git.commits(repository, environ=environ)
    assert (old.run_id, new.run_id) == (first, second)
    assert old.repo == "shop"
    assert old.summary == "fix(cart): keep the cart\n\nIt was lost at login."
    assert old.created_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (old.tags, new.tags) == (("fix",), ())
    assert old.mode == "commit"


def test_a_limit_takes_the_newest_and_keeps_their_order(repository: Path, environ: dict[str, str]) -> None:
    for text in ("One", "Two", "Three"):
        commit(repository, environ, text)
    assert summaries(repository, environ, limit=2) == ["Two", "Three"]
    assert git.count(repository, environ=environ) == 3


def test_a_merge_is_a_run_only_if_it_says_something(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "Base")
    for number, message in enumerate(("Merge branch 'a'", "Merge pull request #7\n\nSend mails once")):
        call(repository, environ, "checkout", "-q", "-b", f"side{number}")
        commit(repository, environ, f"Side {number}")
        call(repository, environ, "checkout", "-q", "main")
        call(repository, environ, "merge", "-q", "--no-ff", "-m", message, f"side{number}")
    found = summaries(repository, environ)
    assert "Merge pull request #7\n\nSend mails once" in found
    assert not [text for text in found if text.startswith("Merge branch")]


def test_commits_without_a_message_are_left_out(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "")
    commit(repository, environ, "Something")
    assert summaries(repository, environ) == ["Something"]


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("Title\n\nBody\n\nSigned-off-by: A <a@b>\nCo-authored-by: B <b@c>\n", "Title\n\nBody"),
        ("Title\n\nFixes: #12\nSigned-off-by: A <a@b>\n", "Title\n\nFixes: #12"),
        ("Title\n\nSigned-off-by: A <a@b>\nFixes: #12\n", "Title\n\nFixes: #12"),
        ("Title\n\nReviewed-by: A\n\nChange-Id: I0\n", "Title"),
        ("Cc: the board is informed", "Cc: the board is informed"),
        ("Title\n\nSigned-off-by: is a trailer\n\nThat was the body.", None),
    ],
)
def test_trailers_that_name_people_are_removed(message: str, left: str | None) -> None:
    assert git.clean(message) == (message if left is None else left)


def test_bytes_that_are_no_utf8_do_not_stop_the_reading(repository: Path, environ: dict[str, str]) -> None:
    tree = call(repository, environ, "write-tree")
    raw = f"tree {tree}\nauthor A <a> 1 +0000\ncommitter C <c> 1 +0000\n\n".encode() + b"Gr\xfc\xdfe \x1b[31m"
    sha = call(repository, environ, "hash-object", "-t", "commit", "-w", "--stdin", "--literally", stdin=raw)
    call(repository, environ, "update-ref", "HEAD", sha)
    commit(repository, environ, "After")
    first, second = summaries(repository, environ)
    assert first.startswith("Gr\ufffd")
    assert second == "After"


def test_a_message_larger_than_a_pipe_arrives_whole(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "Long\n\n" + "many words " * 100_000)
    commit(repository, environ, "Short")
    long, short = summaries(repository, environ)
    assert len(long) == len("Long\n\n" + "many words " * 100_000) - 1
    assert short == "Short"


def test_a_secret_in_a_message_does_not_leave_the_reader(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "Rotate\n\npassword = hunter2hunter2 <private>the board</private>")
    assert "hunter2hunter2" not in summaries(repository, environ)[0]
    assert "board" not in summaries(repository, environ)[0]


def test_leaving_early_ends_git(repository: Path, environ: dict[str, str]) -> None:
    for number in range(3):
        commit(repository, environ, f"Number {number} " + "x" * 200_000)
    runs = git.commits(repository, environ=environ)
    next(runs)
    runs.close()


@pytest.mark.parametrize(
    ("remote", "name"),
    [
        ("https://user:secret@github.com/owner/name.git", "owner/name"),
        ("git@github.com:owner/name.git", "owner/name"),
        ("ssh://git@example.org:2222/owner/name/", "owner/name"),
        ("user:secret@example.org:owner/name", "owner/name"),
        ("https://example.org/group/sub/name", "sub/name"),
        ("file:///srv/git/name.git", "name"),
        ("/srv/git/name.git", "name"),
        ("../name", "name"),
    ],
)
def test_a_project_is_called_as_its_origin_without_credentials(remote: str, name: str) -> None:
    assert git.name_of(remote) == name


def test_without_an_origin_every_work_tree_has_the_repositorys_name(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "One")
    call(repository, environ, "worktree", "add", "-q", str(repository.parent / "temporary"))
    assert git.repo_name(repository.parent / "temporary", environ=environ) == "shop"
    (repository / "deep").mkdir()
    assert git.repo_name(repository / "deep", environ=environ) == "shop"
    call(repository, environ, "remote", "add", "origin", "git@example.org:acme/shop.git")
    assert git.repo_name(repository, environ=environ) == "acme/shop"


def test_inside_another_repositorys_hook_the_path_decides(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "Mine")
    other = repository.parent / "other"
    subprocess.run(["git", "init", "-q", str(other)], env=environ, check=True)
    assert summaries(repository, environ | {"GIT_DIR": str(other / ".git")}) == ["Mine"]


def test_a_shallow_clone_is_known_as_such(repository: Path, environ: dict[str, str]) -> None:
    commit(repository, environ, "One")
    commit(repository, environ, "Two")
    clone = repository.parent / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", repository.as_uri(), str(clone)], env=environ, check=True)
    assert git.is_shallow(clone, environ=environ)
    assert not git.is_shallow(repository, environ=environ)
    assert summaries(clone, environ) == ["Two"]


def test_an_empty_repository_is_an_error_that_says_so(repository: Path, environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match="has no commits yet"):
        list(git.commits(repository, environ=environ))


def test_a_folder_outside_any_repository_is_an_error_that_says_so(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match="in no git repository"):
        git.count(tmp_path, environ=environ)


def test_a_damaged_repository_is_an_error_and_not_a_short_list(repository: Path, environ: dict[str, str]) -> None:
    first = commit(repository, environ, "One")
    commit(repository, environ, "Two")
    damaged = repository / ".git" / "objects" / first[:2] / first[2:]
    damaged.chmod(0o600)
    damaged.write_bytes(b"broken")
    with pytest.raises(InputError, match="git cannot read"):
        list(git.commits(repository, environ=environ))


def test_without_git_the_error_says_what_to_install(repository: Path, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="git is not installed"):
        git.count(repository, environ=environ | {"PATH": str(repository)})


def test_the_sample_is_a_small_project_that_ended_yesterday() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    runs = list(samples.runs(now))
    times = [run.created_at for run in runs if run.created_at]
    assert len(times) == len(runs) >= 12
    assert times == sorted(times)
    assert (now - times[-1]).days == 1
    assert len({run.run_id for run in runs}) == len(runs)
