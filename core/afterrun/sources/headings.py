"""Texts with headings: Markdown, reStructuredText and plain text, as lines and the headings they stand under."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markdown_it import MarkdownIt

_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_MARKUP: Final = re.compile(r"!\[([^\]]*)\]\([^)]*\)|\[([^\]]*)\]\([^)]*\)|[`*]+")
_ADORNMENT: Final = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """A heading: its level (1 is the highest), its words, and its first row and the row behind it (from 0)."""

    level: int
    title: str
    row: int
    behind: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Rows `start` to `end` (exclusive) under a chain of headings, the outermost first."""

    titles: tuple[str, ...]
    start: int
    end: int


def markdown_headings(text: str) -> list[Heading]:
    """The headings of a Markdown text, of both kinds; those in code are none."""
    # Front matter would read as a heading: its last line underlines the one before.
    text = _FRONT_MATTER.sub(lambda found: "\n" * found[0].count("\n"), text, count=1)
    tokens = MarkdownIt("commonmark").disable(["inline"]).parse(text)
    headings = []
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            title = _MARKUP.sub(r"\1\2", tokens[place + 1].content)
            row, behind = token.map
            headings.append(Heading(level=int(token.tag[1]), title=" ".join(title.split()), row=row, behind=behind))
    return headings


def rst_headings(text: str) -> list[Heading]:
    """The headings of a reStructuredText: lines with an underline at least as long, and maybe the same above.

    What an underline looks like tells its level, in the order in which they first appear.
    """
    lines = text.split("\n")
    levels: dict[tuple[str, bool], int] = {}
    headings: list[Heading] = []
    for row in range(1, len(lines)):
        title, under = lines[row - 1].rstrip(), lines[row].rstrip()
        if (
            not _ADORNMENT.fullmatch(under)
            or not title
            or _ADORNMENT.fullmatch(title)
            or len(under) < len(title.strip())
        ):
            continue
        over = row >= 2 and lines[row - 2].rstrip() == under
        if not over and (title[0].isspace() or (row >= 2 and lines[row - 2].strip())):
            continue
        level = levels.setdefault((under[0], over), len(levels) + 1)
        headings.append(Heading(level=level, title=title.strip(), row=row - 2 if over else row - 1, behind=row + 1))
    return headings


def sections(headings: Sequence[Heading], rows: int) -> Iterator[Section]:
    """What stands under each heading, and before the first, without the heading itself."""
    chain: list[Heading] = []
    start = 0
    for heading in headings:
        yield Section(titles=_titles(chain), start=start, end=heading.row)
        chain = [above for above in chain if above.level < heading.level] + [heading]
        start = heading.behind
    yield Section(titles=_titles(chain), start=start, end=rows)


def _titles(chain: Sequence[Heading]) -> tuple[str, ...]:
    return tuple(heading.title for heading in chain if heading.title)
