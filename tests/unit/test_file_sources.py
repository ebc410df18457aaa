"""Which files are a source, what is read of them, and how documents come apart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pypdf import PdfWriter

from afterrun.chunking import Chunker
from afterrun.embed import model_spec
from afterrun.errors import InputError
from afterrun.models import LONGEST_KEY, NewMemory
from afterrun.pieces import pieces_of, plain_words
from afterrun.settings import Settings
from afterrun.sources.contents import LARGEST, decoded, unreadable_text, unwanted
from afterrun.sources.documents import PART_CHARACTERS, document_parts, pdf_parts
from afterrun.sources.listing import list_files, project_name
from afterrun.sources.parts import Origin, Part, as_memories
from afterrun.sources.readers import read


@pytest.fixture(scope="module")
def chunker() -> Chunker:
    return Chunker(model_spec(Settings.model))


@pytest.fixture(params=["git", "walk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Makes a folder of these files; once as a git checkout, once as none."""

    def make(files: dict[str, str]) -> Path:
        root = tmp_path / "root"
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        if request.param == "git":
            subprocess.run(["git", "init", "-q", str(root)], check=True)
        return root

    return make


def test_gitignore_files_of_all_levels_are_respected_with_and_without_git(
    folder: Callable[[dict[str, str]], Path],
) -> None:
    root = folder(
        {
            ".gitignore": "*.log\n/build/\n!keep.log\nsecret/*\n!secret/open.py\n",
            "a.py": "",
            "a.log": "",
            "keep.log": "",
            "build/made.py": "",
            "deep/build/kept.py": "",
            "deep/.gitignore": "!here.log\nkeep.log\n/own/\n",
            "deep/here.log": "",
            "deep/keep.log": "",
            "deep/own/x.py": "",
            "deep/down/own/y.py": "",
            "secret/key.py": "",
            "secret/open.py": "",
        }
    )
    expected = [".gitignore", "a.py", "deep/.gitignore", "deep/build/kept.py", "deep/down/own/y.py", "deep/here.log"]
    assert list(list_files(root).paths) == [*expected, "keep.log", "secret/open.py"]


def test_links_are_not_followed_and_special_files_not_opened(folder: Callable[[dict[str, str]], Path]) -> None:
    root = folder({"a.py": "x"})
    (root / "loop").symlink_to("..")
    (root / "out").symlink_to("/etc")
    (root / "b.py").symlink_to("a.py")
    (root / "broken").symlink_to("nothing")
    found = {entry.path: entry.skipped for entry in list_files(root).entries()}
    assert found == {"a.py": None, **dict.fromkeys(("loop", "out", "b.py", "broken"), "symbolic link")}


def test_a_name_that_is_no_text_is_skipped(folder: Callable[[dict[str, str]], Path]) -> None:
    root = folder({"a.py": "x"})
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff.py")).write_text("x")
    assert [entry.skipped for entry in list_files(root).entries()] == [None, "name is no UTF-8"]


def test_a_pipe_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert [entry.skipped for entry in list_files(tmp_path).entries()] == ["special file"]


def test_a_subfolder_of_a_checkout_has_the_paths_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("x")
    (tmp_path / "b.md").write_text("x")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    listing = list_files(tmp_path / "docs")
    assert (listing.root, listing.beginning, list(listing.paths)) == (tmp_path, "docs/", ["docs/a.md"])
    assert project_name(tmp_path / "docs") == tmp_path.name


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        list_files(tmp_path / "none")


@pytest.mark.parametrize(
    ("source", "path", "size", "reason"),
    [
        ("codebase", "a.py", 10, None),
        ("codebase", "Makefile", 10, None),
        ("codebase", "web/node_modules/x/index.js", 10, "vendored"),
        ("docs", "vendor/x/README.md", 10, "vendored"),
        ("codebase", "vendor", 10, None),
        ("codebase", "README.md", 10, "document"),
        ("docs", "a.py", 10, "no document"),
        ("standards", "style.rst", 10, None),
        ("codebase", "a.py", 0, "empty"),
        ("codebase", "a.py", LARGEST["codebase"] + 1, "huge"),
        ("codebase", "package-lock.json", 10, "generated"),
        ("codebase", "api_pb2.py", 10, "generated"),
        ("codebase", "rows.csv", 10, "data"),
        ("codebase", "jquery.min.js", 10, "minified"),
    ],
)
def test_names_and_sizes_tell_what_is_not_read(source: str, path: str, size: int, reason: str | None) -> None:
    assert unwanted(source, path, size) == reason


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("größer\r\nals\r".encode(), "größer\nals\n"),
        (b"\xef\xbb\xbfx", "x"),
        ("größer".encode("utf-16"), "größer"),
        ("größer".encode("latin-1"), "größer"),
        (b"MZ\0\0", None),
    ],
)
def test_encodings_are_told_apart(content: bytes, text: str | None) -> None:
    assert decoded(content) == text


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("a.go", "// Code generated by protoc-gen-go. DO NOT EDIT.\npackage a\n", "generated"),
        ("a.js", "/* @generated */\nx()\n", "generated"),
        ("a.py", "# how generated code is edited\nx = 1\n", None),
        ("a.js", "var a=1;" * 1000, "minified"),
        ("a.txt.in", "word " * 1000, None),
        ("a.py", " \n\n", "empty"),
    ],
)
def test_contents_tell_what_is_not_indexed(path: str, text: str, reason: str | None) -> None:
    assert unreadable_text("codebase", path, text) == reason


def places(path: str, text: str) -> list[tuple[str, str]]:
    return [(part.place, part.text) for part in document_parts(path, text) if part.text.strip()]


def test_markdown_comes_apart_by_its_headings() -> None:
    text = (
        "---\ntitle: x\n---\nintro\n\n# The `guide`\n\nHello\n\n```sh\n# no heading\n```\n\n"
        "## [Install](x.md)\ntext\n\nLinux\n=====\nsudo\n"
    )
    assert places("a.md", text) == [
        ("", "---\ntitle: x\n---\nintro"),
        ("The guide", "Hello\n\n```sh\n# no heading\n```"),
        ("The guide > Install", "text"),
        ("Linux", "sudo"),
    ]


def test_restructured_text_comes_apart_by_its_headings() -> None:
    text = (
        "=====\nTitle\n=====\n\nIntro\n\nSub\n---\n\ntext\n\n.. code::\n\n   abc\n   ---\n\nDeep\n"
        "~~~~\n\ndeep\n\nOther\n-----\n\nyes\n"
    )
    assert places("a.rst", text) == [
        ("Title", "Intro"),
        ("Title > Sub", "text\n\n.. code::\n\n   abc\n   ---"),
        ("Title > Sub > Deep", "deep"),
        ("Title > Other", "yes"),
    ]


def test_html_is_what_a_reader_sees() -> None:
    text = (
        "<head><title>T</title><script>var x</script></head><body><nav>menu</nav><h1>A <b>b</b></h1>"
        "<p>One &amp;\ntwo</p>"
        "<pre>x\n  y</pre><h2>C</h2><ul><li>d</li><li>e</li></ul><style>z</style></body>"
    )
    assert places("a.html", text) == [("A b", "One & two\n\nx\n  y"), ("A b > C", "d\ne")]
    assert places("a.html", "<title>T</title><p>x<h2>y</h2>z") == [("T", "x"), ("T > y", "z")]


def test_a_long_section_comes_in_parts_that_end_at_paragraphs() -> None:
    text = "# A\n\n" + "\n\n".join("word " * 100 for _ in range(60))
    parts = [part for part in document_parts("a.md", text) if part.text]
    assert {part.place for part in parts} == {"A"}
    assert all(len(part.text) < 1.2 * PART_CHARACTERS for part in parts)
    assert sum(part.text.count("word") for part in parts) == 6000


def test_a_broken_or_locked_pdf_is_told(tmp_path: Path) -> None:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(tmp_path / "a.pdf")
    for content in ((tmp_path / "a.pdf").read_bytes(), b"%PDF-1.7 broken", b""):
        with pytest.raises(InputError):
            pdf_parts(content)
        assert read("docs", "a.pdf", content).skipped == "unreadable"


def test_a_pdf_comes_page_by_page_under_its_outline(tmp_path: Path) -> None:
    parts = pdf_parts(two_pages(tmp_path))
    assert [(part.place, part.text.strip()) for part in parts] == [
        ("Start > page 1", "Hello one"),
        ("Start > Install > page 2", "Hello two"),
    ]


def two_pages(folder: Path) -> bytes:
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for word in ("one", "two"):
        page = writer.add_blank_page(200, 200)
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 10 100 Td (Hello {word}) Tj ET".encode())
        page[NameObject("/Contents")] = stream
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
    top = writer.add_outline_item(title="Start", page_number=0)
    writer.add_outline_item(title="Install", page_number=1, parent=top)
    writer.write(folder / "two.pdf")
    return (folder / "two.pdf").read_bytes()


def test_keys_of_pieces_with_one_name_are_numbered_and_long_ones_bounded() -> None:
    origin = Origin(project="p", source="docs", path="a.md")
    parts = [Part(text="x", place="A"), Part(text="y", place="A"), Part(text="z", place="B" * 2000)]
    keys = [memory.source_key or "" for memory in as_memories(origin, parts)]
    assert keys[:2] == ["docs:p:a.md#A~0", "docs:p:a.md#A~1"]
    assert len(keys[2]) <= LONGEST_KEY


def memory(content: str, collection: str = "codebase", **metadata: object) -> NewMemory:
    return NewMemory(content=content, collection=collection, metadata=metadata, source_key="x")


def test_code_is_embedded_under_its_name_in_words_and_once_by_its_name_alone(chunker: Chunker) -> None:
    path, symbol = "shop/order_book.py", "OrderBook.loadAll"
    held = memory(
        f"{path}: {symbol}\ndef loadAll(self, maxAge):\n    pass", path=path, symbol=symbol, parameters=["maxAge"]
    )
    assert pieces_of(held, chunker) == [
        "load all. order book load all (max age)\ndef loadAll(self, maxAge):\n    pass",
        "load all (max age) of order book in shop order book",
    ]


def test_every_piece_of_a_long_section_begins_with_its_headings(chunker: Chunker) -> None:
    pieces = pieces_of(
        memory("a.md: Guide\n" + "Some words here. " * 200, "docs", path="a.md", heading="Guide"), chunker
    )
    assert len(pieces) > 2
    assert all(piece.startswith("a.md: Guide\nSome") for piece in pieces)
    assert all(chunker.count(piece) <= chunker.spec.max_tokens - 2 for piece in pieces)


def test_a_note_is_embedded_as_it_is(chunker: Chunker) -> None:
    note = NewMemory(content="first line\nsecond", collection="docs")
    assert pieces_of(note, chunker) == ["first line\nsecond"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("getUserById", "get user by id"), ("HTTPServer2", "http server2"), ("__init__", "init"), ("größe_X", "größe x")],
)
def test_identifiers_become_plain_words(name: str, words: str) -> None:
    assert plain_words(name) == words
