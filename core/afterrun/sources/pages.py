"""HTML as plain lines with headings: what a reader of the page sees, without scripts, navigation and forms."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

from afterrun.sources.headings import Heading

_HIDDEN: Final = frozenset(("script", "style", "template", "noscript", "svg", "nav", "form", "iframe", "head"))
_BLOCKS: Final = frozenset(
    (
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "header",
        "hr",
        "li",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    )
)
_LEVEL: Final = re.compile("h[1-6]")


def read_html(text: str) -> tuple[str, list[Heading]]:
    """The visible text of a page and its headings; the page's title stands above all where no heading says it."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader.end_line()
    headings = reader.headings
    title = " ".join("".join(reader.title).split())
    if title and not (headings and headings[0].level == 1):
        headings = [Heading(level=0, title=title, row=0, behind=0), *headings]
    return "\n".join(reader.lines), headings


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.headings: list[Heading] = []
        self.title: list[str] = []
        self._line: list[str] = []
        self._hidden: list[str] = []
        self._preformatted = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = not self.title
        if tag == "body":
            # A head that was never closed hides nothing beyond itself.
            self._hidden.clear()
        if tag in _HIDDEN:
            self._hidden.append(tag)
        if tag in _BLOCKS or _LEVEL.fullmatch(tag):
            self.end_line()
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        if _LEVEL.fullmatch(tag) and (title := " ".join("".join(self._line).split())):
            row = len(self.lines)
            self.headings.append(Heading(level=int(tag[1]), title=title, row=row, behind=row + 1))
        if tag in _BLOCKS or _LEVEL.fullmatch(tag):
            self.end_line()
        if tag == "p" or _LEVEL.fullmatch(tag):
            self.lines.append("")
        self._preformatted -= tag == "pre" and self._preformatted > 0

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self._line.append(data)

    def end_line(self) -> None:
        """Put what was read since the last block into lines of its own."""
        text = "".join(self._line)
        self._line.clear()
        if self._preformatted:
            self.lines.extend(text.strip("\n").split("\n"))
        elif text := " ".join(text.split()):
            self.lines.append(text)
