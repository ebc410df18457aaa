"""Documents by their headings: Markdown, reStructuredText, HTML, PDF, and plain text.

A part is what stands under one heading, without the sections below it. One that is longer than a few pages comes in
several, each under the same headings.
"""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from afterrun.errors import InputError
from afterrun.sources.headings import Heading, markdown_headings, rst_headings, sections
from afterrun.sources.pages import read_html
from afterrun.sources.parts import Part

PART_CHARACTERS: Final = 6_000
"""Characters of a part, about: two printed pages."""
DEEPEST: Final = 100
"""Levels of a PDF's outline that are followed."""

_BROKEN: Final = (
    *(PyPdfError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(AssertionError, NotImplementedError, RecursionError, struct.error, zlib.error),
)
"""What pypdf raises on files that are no good PDF."""
_HTML: Final = frozenset((".html", ".htm", ".xhtml"))
_MARKDOWN: Final = frozenset((".md", ".markdown", ".mdx"))

logging.getLogger("pypdf").setLevel(logging.CRITICAL)


def document_parts(path: str, text: str) -> Iterator[Part]:
    """The parts of a document in text form, by its suffix."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _HTML:
        plain, headings = read_html(text)
        return _parts(plain, headings, has_lines=False)
    if suffix in _MARKDOWN:
        return _parts(text, markdown_headings(text), has_lines=True)
    return _parts(text, rst_headings(text) if suffix == ".rst" else [], has_lines=True)


def pdf_parts(content: bytes) -> list[Part]:
    """The parts of a PDF: page by page, under the outline's headings.

    Raises:
        InputError: the file is broken or locked.
    """
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InputError("the PDF needs a password")
        headings = _outline(reader)
        found = []
        for number, page in enumerate(reader.pages, 1):
            titles = [title for first, title in headings if first < number][-1:] or [""]
            here = [title for first, title in headings if first == number]
            place = " > ".join(filter(None, [*(here or titles), f"page {number}"]))
            found.append(
                Part(text=page.extract_text().replace("\0", ""), place=place, kind="page", details={"page": number})
            )
    except InputError:
        raise
    except _BROKEN as error:
        raise InputError(f"the PDF cannot be read: {type(error).__name__}") from error
    return found


def _outline(reader: PdfReader) -> list[tuple[int, str]]:
    """Each heading of the outline with those above it, and the page that it stands on (from 1)."""
    found: list[tuple[int, str]] = []

    def follow(entries: object, above: tuple[str, ...]) -> None:
        last = above
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, list):
                if len(above) < DEEPEST:
                    follow(entry, last)
                continue
            last = (*above, " ".join(str(entry.title or "").split()))
            page = reader.get_destination_page_number(entry)
            if page is not None:
                found.append((page + 1, " > ".join(filter(None, last))))

    follow(reader.outline, ())
    return sorted(found)


def _parts(text: str, headings: Sequence[Heading], *, has_lines: bool) -> Iterator[Part]:
    lines = text.split("\n")
    for section in sections(headings, len(lines)):
        place = " > ".join(section.titles)
        for start, end in _pages(lines, section.start, section.end):
            while start < end and not lines[start].strip():
                start += 1
            while end > start and not lines[end - 1].strip():
                end -= 1
            first, last = (start + 1, end) if has_lines else (0, 0)
            text = "\n".join(lines[start:end])
            yield Part(text=text, place=place, kind="section", start_line=first, end_line=last)


def _pages(lines: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Rows `start` to `end` in pieces of about `PART_CHARACTERS`, parted at blank lines where there are any."""
    first, size, blank = start, 0, start
    for row in range(start, end):
        if size >= PART_CHARACTERS and (blank > first or size >= 2 * PART_CHARACTERS):
            cut = blank if blank > first else row
            yield first, cut
            first, blank = cut, cut
            size = sum(len(line) + 1 for line in lines[cut:row])
        if not lines[row].strip():
            blank = row
        size += len(lines[row]) + 1
    if first < end:
        yield first, end
