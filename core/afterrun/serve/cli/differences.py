"""What a merge would keep, drop and add, word by word: colours on a terminal, wdiff's marks elsewhere.

Order and signs do not count: a sentence that moved is kept, and a word is dropped only where the merged text does not
have it at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from afterrun.serve.cli.output import printable

if TYPE_CHECKING:
    from rich.text import Text

_WORD: Final = re.compile(r"\S+\s*")
_EDGES: Final = ".,;:!?\"'`()[]{}«»„“”"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A run of words with the white space after them; `common` says that the other text has them as well."""

    text: str
    common: bool


def words(texts: Iterable[str]) -> frozenset[str]:
    """The words of texts, as they are compared."""
    return frozenset(_key(word) for text in texts for word in text.split())


def pieces(text: str, other: frozenset[str]) -> list[Piece]:
    """`text` in runs of words that `other` has or has not."""
    runs = groupby(_WORD.findall(printable(text)), key=lambda word: _key(word) in other)
    return [Piece(text="".join(run), common=common) for common, run in runs]


def plain(found: Sequence[Piece], marks: tuple[str, str]) -> str:
    """One line, with `marks` around what the other text has not."""
    opening, closing = marks
    shown = (" ".join(piece.text.split()) for piece in found)
    return " ".join(
        text if piece.common else f"{opening}{text}{closing}" for piece, text in zip(found, shown, strict=True)
    )


def styled(found: Sequence[Piece], style: str) -> Text:
    """For a terminal, with `style` on what the other text has not."""
    from rich.text import Text

    text = Text()
    for piece in found:
        text.append(piece.text, style=None if piece.common else style)
    return text


def _key(word: str) -> str:
    return word.strip().strip(_EDGES).casefold() or word.strip()
