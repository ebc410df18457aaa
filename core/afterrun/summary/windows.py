"""A long transcript in windows that overlap, each cut where a turn or a paragraph ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

WINDOW_TOKENS: Final = 4_000
"""Long enough to hold a whole exchange, short enough that its facts fit into one answer and that is given in time."""
OVERLAP_TOKENS: Final = 400
"""What is said around a cut is read on both sides of it."""
PIECE_CHARACTERS: Final = 1_500
"""A turn that is longer is cut at a line, a sentence or a word."""
SPEAKER: Final = (
    r"[ \t]*(?:#+[ \t]*)?[*_\[<]{0,3}(?:user|human|assistant|system|developer|tool|agent|ai|claude|model|customer)"
    r"(?:[ \t]*[(\[][^\n)\]]{0,40}[)\]])?[*_\]>]{0,3}[ \t]*:[*_]{0,2}[ \t]*"
)
"""How a turn of a transcript begins, such as `User:` or `**Assistant** (12:30):`."""

_BORDER: Final = re.compile(rf"\n[ \t]*\n\s*|\n(?={SPEAKER})", re.IGNORECASE)
_BREAKS: Final = tuple(map(re.compile, (r"\n", r"[.!?\u3002\uff01\uff1f][\"')\]]*\s*", r"\s")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A part of a text: `text` without space around it, from the character `start` to before `end`."""

    start: int
    end: int
    text: str


def windows(
    text: str, count: Callable[[str], int], *, most: int = WINDOW_TOKENS, overlap: int = OVERLAP_TOKENS
) -> list[Window]:
    """All of `text` in windows of at most about `most` tokens by `count`, in order; none for a blank text.

    A window begins up to `overlap` tokens before the end of the one before it. A text that grows keeps its windows but
    the last ones. The time is linear in the length of the text.
    """
    pieces = [(start, end, count(text[start:end])) for start, end in _pieces(text)]
    spans = list(_packed(pieces, most, overlap))
    found = (Window(start=start, end=end, text=text[start:end].strip()) for start, end in spans)
    return [window for window in found if window.text]


def _packed(pieces: Sequence[tuple[int, int, int]], most: int, overlap: int) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(pieces):
        last, tokens = first, pieces[first][2]
        while last + 1 < len(pieces) and tokens + pieces[last + 1][2] <= most:
            last += 1
            tokens += pieces[last][2]
        yield pieces[first][0], pieces[last][1]
        if last + 1 == len(pieces):
            return
        first = _step_back(pieces, first, last, overlap)


def _step_back(pieces: Sequence[tuple[int, int, int]], first: int, last: int, overlap: int) -> int:
    """Where the next window begins: as many pieces before its first new one as the overlap holds."""
    begin, tokens = last + 1, 0
    while begin - 1 > first and tokens + pieces[begin - 1][2] <= overlap:
        begin -= 1
        tokens += pieces[begin][2]
    return begin


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for border in _BORDER.finditer(text):
        yield from _cut(text, start, border.end())
        start = border.end()
    yield from _cut(text, start, len(text))


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > PIECE_CHARACTERS:
        at = _break(text, start, start + PIECE_CHARACTERS)
        yield start, at
        start = at
    if start < end:
        yield start, end


def _break(text: str, start: int, limit: int) -> int:
    """The last break of the best kind in the second half before `limit`, else `limit`."""
    middle = (start + limit) // 2
    for kind in _BREAKS:
        if end := max((found.end() for found in kind.finditer(text, middle, limit)), default=0):
            return end
    return limit
