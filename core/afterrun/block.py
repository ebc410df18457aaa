"""The text block that recall gives to a prompt: written, and read back where somebody remembers a piece of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC
from typing import Final

from afterrun.models import Hit

CUT: Final = " …"
"""Ends a content of which only the beginning fitted into the budget."""

_HEAD: Final = re.compile(r"^[^\S\n]*\[\d{1,4}\] \(.+?, [^,()\n]+, \d{4}-\d{2}-\d{2}\)(?: |$)", re.MULTILINE)


def prompt_block(hits: Iterable[Hit]) -> str:
    """The hits as text for a prompt: one numbered entry each, with its project, type and day."""
    return "\n".join(
        f"[{number}] ({hit.project}, {hit.source_type}, {hit.created_at.astimezone(UTC):%Y-%m-%d}) {hit.content}"
        for number, hit in enumerate(hits, 1)
    )


def entries(text: str) -> list[str] | None:
    """The contents of the entries of a block, in their order; None where `text` does not begin as a block does."""
    heads = list(_HEAD.finditer(text))
    if not heads or text[: heads[0].start()].strip():
        return None
    ends = [head.start() for head in heads[1:]] + [len(text)]
    contents = (text[head.end() : end].strip() for head, end in zip(heads, ends, strict=True))
    return [content for content in contents if content]


def beginning(text: str) -> str | None:
    """What a cut content says, without the mark of the cut; None where `text` is not cut."""
    return text.removesuffix(CUT.strip()).rstrip() if text.endswith(CUT) else None
