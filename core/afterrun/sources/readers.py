"""The content of a file into parts, by what its source and its name say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from afterrun.errors import InputError
from afterrun.sources.code import code_parts
from afterrun.sources.contents import decoded, unreadable_text
from afterrun.sources.documents import document_parts, pdf_parts
from afterrun.sources.parts import Part

READER: Final = 1
"""The version of all that makes parts of a content. With another one, files that did not change are read again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The parts of a file, or why it has none to index."""

    parts: tuple[Part, ...] = ()
    skipped: str | None = None


def read(source: str, path: str, content: bytes) -> Content:
    """Read a file of the source codebase, docs or standards; `path` tells its format."""
    if path.lower().endswith(".pdf"):
        try:
            return Content(parts=tuple(pdf_parts(content)))
        except InputError:
            return Content(skipped="unreadable")
    text = decoded(content)
    if text is None:
        return Content(skipped="binary")
    if reason := unreadable_text(source, path, text):
        return Content(skipped=reason)
    return Content(parts=tuple(code_parts(path, text) if source == "codebase" else document_parts(path, text)))
