"""Files and pages into memories: what changes is written, what is gone goes, and nothing else is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from afterrun import remember
from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.gather import gather_folder
from afterrun.mirror import Counts, Mirrored
from afterrun.models import NewMemory
from afterrun.sources.listing import list_files
from afterrun.store import Store
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

SHOP = '''"""Orders."""

import os


def load(path):
    """Read orders."""
    return os.read(path)


def save(path, order):
    """Write an order."""
    os.write(path, order)
'''
GUIDE = "# Guide\n\nHow it works.\n\n## Install\n\nRun make.\n\n## Use\n\nCall load.\n"


@pytest.fixture
def chunker(embedder: HashEmbedder) -> Chunker:
    return Chunker(embedder.spec)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "docs").mkdir(parents=True)
    (folder / "shop.py").write_text(SHOP)
    (folder / "docs" / "guide.md").write_text(GUIDE)
    return folder


@pytest.fixture
def index(database: Database, chunker: Chunker) -> Callable[..., Mirrored]:
    def run(
        folder: Path, source: str = "codebase", project: str = "shop", *, full: bool = False, clean: bool = False
    ) -> Mirrored:
        # The clock is an hour ahead: files written just now count as settled.
        listing = list_files(folder)
        return gather_folder(
            database,
            chunker,
            listing,
            source=source,
            project=project,
            now_ns=lambda: folder.stat().st_mtime_ns + 3_600_000_000_000,
            full=full,
            clean=clean,
        )

    return run


def rows(database: Database, what: str = "source_key, content") -> list[tuple[Any, ...]]:
    with database.transaction() as connection:
        return connection.execute(
            f"SELECT {what} FROM memories WHERE is_active ORDER BY source_key".encode()
        ).fetchall()


def ids(database: Database) -> dict[str, UUID]:
    return {row[0]: row[1] for row in rows(database, "source_key, id")}


def pending(database: Database) -> int:
    with database.transaction() as connection:
        return Store(connection).pending_chunks()[0]


def embed_all(database: Database, embedder: HashEmbedder) -> None:
    while embed_pending(database, embedder).more:
        pass


def test_code_is_indexed_by_symbol_with_path_lines_and_parameters(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    done = index(shop)
    assert (done.added, done.memories.added, dict(done.skipped)) == (1, 3, {"document": 1})
    found = {row[0]: row for row in rows(database, "source_key, content, metadata, collection, source_type, project")}
    key = "codebase:shop:shop.py#save~0"
    assert (
        found[key][1] == 'shop.py: save\ndef save(path, order):\n    """Write an order."""\n    os.write(path, order)'
    )
    assert found[key][2] == {
        "path": "shop.py",
        "symbol": "save",
        "kind": "function",
        "language": "python",
        "parameters": ["path", "order"],
        "start_line": 11,
        "end_line": 13,
    }
    assert found[key][3:] == ("codebase", "code_context", "shop")


def test_a_second_pass_changes_nothing_and_opens_no_file(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    index(shop)
    before = rows(database, "source_key, updated_at, xmin")
    (shop / "shop.py").chmod(0)
    done = index(shop)
    (shop / "shop.py").chmod(0o644)
    assert (done.added, done.changed, done.removed, done.unchanged) == (0, 0, 0, 1)
    assert rows(database, "source_key, updated_at, xmin") == before


def test_a_changed_file_embeds_only_its_changed_pieces_again(
    shop: Path, index: Callable[..., Mirrored], database: Database, embedder: HashEmbedder
) -> None:
    index(shop)
    embed_all(database, embedder)
    before = ids(database)
    text = SHOP.replace("import os\n", "import os\nimport sys\n").replace(
        "os.write(path, order)", "os.write(path, [order])"
    )
    (shop / "shop.py").write_text(text)
    done = index(shop)
    assert (done.changed, done.memories) == (1, Counts(changed=2, unchanged=1))
    assert ids(database) == before
    with database.transaction() as connection:
        waiting = connection.execute(
            "SELECT DISTINCT m.source_key FROM chunks c JOIN memories m ON m.id = c.memory_id WHERE c.embedding IS NULL"
        ).fetchall()
        moved = connection.execute(
            "SELECT metadata ->> 'start_line' FROM memories WHERE source_key = 'codebase:shop:shop.py#load~0'"
        ).fetchone()
    assert {row[0] for row in waiting} == {"codebase:shop:shop.py#~0", "codebase:shop:shop.py#save~0"}
    assert moved == ("7",)


def test_a_shorter_file_loses_its_tail_and_a_deleted_one_everything(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    index(shop)
    index(shop, "docs")
    (shop / "docs" / "guide.md").write_text(GUIDE.partition("## Use")[0])
    assert index(shop, "docs").memories == Counts(removed=1, unchanged=2)
    (shop / "shop.py").unlink()
    done = index(shop)
    assert (done.removed, done.memories) == (1, Counts(removed=3))
    assert {row[0] for row in rows(database)} == {
        "docs:shop:docs/guide.md#Guide~0",
        "docs:shop:docs/guide.md#Guide > Install~0",
    }
    (shop / "shop.py").write_text(SHOP)
    assert index(shop).memories == Counts(added=3)


def test_what_was_forgotten_stays_forgotten_when_its_file_changes_vanishes_and_comes_back(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    index(shop)
    key = "codebase:shop:shop.py#save~0"
    with database.transaction() as connection:
        Store(connection).archive([ids(database)[key]])
    for text in (SHOP + "\n# more\n", SHOP.replace("Write", "Keep"), None, SHOP):
        (shop / "shop.py").unlink() if text is None else (shop / "shop.py").write_text(text)
        index(shop)
        assert key not in ids(database)
    assert len(ids(database)) == 2


def test_pieces_that_only_move_keep_their_memory(
    shop: Path, index: Callable[..., Mirrored], database: Database, embedder: HashEmbedder
) -> None:
    notes = shop / "notes.md"
    notes.write_text("# A\n\nfirst\n\n# A\n\nsecond\n\n# A\n\nthird\n")
    index(shop, "docs")
    embed_all(database, embedder)
    before = {row[0]: row[1] for row in rows(database, "content, id") if "notes" in row[0]}
    notes.write_text("# A\n\nnew\n\n# A\n\nthird\n\n# A\n\nfirst\n\n# A\n\nsecond\n")
    done = index(shop, "docs")
    assert done.memories == Counts(added=1, unchanged=3)
    after = {row[0]: row[1] for row in rows(database, "content, id") if "notes" in row[0]}
    assert {text: after[text] for text in before} == before
    assert pending(database) == 1


def test_another_checkout_folder_is_the_same_source(
    shop: Path, tmp_path: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    index(shop)
    before = rows(database, "source_key, id, updated_at")
    shutil.copytree(shop, tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / "shop.py")
    done = index(tmp_path / "elsewhere")
    assert (done.unchanged, done.memories) == (1, Counts())
    assert rows(database, "source_key, id, updated_at") == before


def test_a_file_that_git_still_tracks_is_gone_when_it_is_deleted(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    subprocess.run(["git", "init", "-q", str(shop)], check=True)
    subprocess.run(["git", "-C", str(shop), "add", "-A"], check=True)
    index(shop)
    (shop / "shop.py").unlink()
    assert index(shop).removed == 1
    assert rows(database) == []


def test_a_file_that_becomes_unwanted_loses_its_memories(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    for content in (b"\0", b"x = 1;" * 1_000_000, b"# @generated\nx = 1\n"):
        (shop / "shop.py").write_text(SHOP)
        index(shop)
        (shop / "shop.py").write_bytes(content)
        done = index(shop)
        assert (done.removed, done.memories.removed) == (1, 3)
        assert rows(database) == []


def test_secrets_in_code_are_not_remembered(shop: Path, index: Callable[..., Mirrored], database: Database) -> None:
    key = "ghp_" + "a1B2" * 9
    (shop / "shop.py").write_text(f"def login():\n    return '{key}'\n")
    index(shop)
    assert all(key not in row[1] for row in rows(database))
    assert index(shop).unchanged == 1


def test_a_subfolder_of_a_repository_loses_nothing_of_the_rest(
    shop: Path, index: Callable[..., Mirrored], database: Database
) -> None:
    subprocess.run(["git", "init", "-q", str(shop)], check=True)
    (shop / "README.md").write_text("# Shop\n\nSells.\n")
    index(shop, "docs")
    before = rows(database)
    assert index(shop / "docs", "docs").removed == 0
    assert rows(database) == before


def test_clean_touches_only_its_project_and_source(
    shop: Path, index: Callable[..., Mirrored], database: Database, chunker: Chunker
) -> None:
    index(shop)
    index(shop, "docs")
    index(shop, "codebase", "other")
    remember.remember(database, [NewMemory(content="a note", project="shop", collection="codebase")], chunker)
    before = {row[0]: row[1] for row in rows(database, "source_key, id")}
    done = index(shop, clean=True)
    assert done.memories == Counts(added=3, removed=3)
    after = {row[0]: row[1] for row in rows(database, "source_key, id")}
    assert after.keys() == before.keys()
    assert {key for key in after if after[key] != before[key]} == {
        key for key in after if key and key[:13] == "codebase:shop"
    }


def test_two_passes_at_once_double_nothing(shop: Path, index: Callable[..., Mirrored], database: Database) -> None:
    for number in range(40):
        (shop / f"part{number}.py").write_text(f"def part{number}():\n    return {number}\n")
    with ThreadPoolExecutor(4) as threads:
        done = [one.result() for one in [threads.submit(index, shop) for _ in range(4)]]
    assert sum(one.memories.added for one in done) == 43
    assert len(rows(database)) == 43


def test_a_pass_that_broke_off_is_completed_by_the_next(
    shop: Path, database: Database, chunker: Chunker, index: Callable[..., Mirrored]
) -> None:
    for number in range(450):
        (shop / f"part{number:03}.py").write_text(f"def part{number}():\n    return {number}\n")

    def fail(done: Mirrored) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather_folder(database, chunker, list_files(shop), source="codebase", project="shop", on_progress=fail)
    assert 0 < len(rows(database)) < 453
    index(shop)
    assert len(rows(database)) == 453
