"""Token-true chunks: a text in pieces that the embedding model reads to the end.

A model reads a fixed number of tokens and drops the rest without a word, so pieces are measured with the model's own
tokenizer. A piece ends at a paragraph if one ends in its second half, else at a line, a sentence or a word. The text is
tokenised once, window by window, so the time is linear in its length whatever it holds.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from typing import Final

from afterrun.errors import InputError
from afterrun.modelfiles import load_tokenizer
from afterrun.models import ModelSpec

SPECIAL_TOKENS: Final = 2
"""What the model puts around a text: [CLS] and [SEP], or their like."""
PIECE_CHARACTERS: Final = 2000
"""No piece is longer, however few tokens it has (a table padded with spaces, for example)."""
WORD_CHARACTERS: Final = 100
"""BERT's WordPiece reads a longer word as one [UNK] (`max_input_chars_per_word` of the tokenizer)."""

_WINDOW: Final = 16_000
_BREAKS: Final = tuple(map(re.compile, (r"\n\s*\n", r"\n", r"[.!?][\"')\]]*\s|[。！？]", r"\s")))  # noqa: RUF001
# A character inside what the tokenizer takes for one word: no space, no ASCII punctuation, no Chinese character.
_IN_WORD: Final = r"[^\s!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ffff]"
_LONG_WORD: Final = re.compile(f"{_IN_WORD}{{{WORD_CHARACTERS + 1},}}")
# WordPiece's time grows with the square of a word's length, so the parts of a long word are short.
_PART_CHARACTERS: Final = 32


class Chunker:
    """Splits texts for the model of `spec`, and counts tokens with the model's tokenizer.

    Loading takes about 0.1 s and imports no torch. One chunker may serve several threads.

    Raises:
        EmbeddingError: the model's tokenizer cannot be read.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._tokenizer = load_tokenizer(spec.path)
        self._room = spec.max_tokens - SPECIAL_TOKENS

    def count(self, text: str) -> int:
        """Tokens of `text`, the special ones not counted and nothing cut off.

        Raises:
            InputError: the text holds lone surrogates, which are no text.
        """
        return self._counts([_checked(text)])[0]

    def split(self, text: str) -> list[str]:
        """`text` in pieces of at most `spec.max_tokens - 2` tokens and `PIECE_CHARACTERS` characters, in order.

        A text that fits is one piece, unchanged; a blank one has none. The pieces hold every character that is no
        space. A word of more than `WORD_CHARACTERS` characters (base64, minified code) gets spaces, so that the model
        reads its parts.

        Raises:
            InputError: the text holds lone surrogates, which are no text.
        """
        if not text or text.isspace():
            return []
        text = _LONG_WORD.sub(_spaced, _checked(text))
        if len(text) <= PIECE_CHARACTERS and self.count(text) <= self._room:
            return [text]
        pieces = [piece for raw in self._pieces(text) if (piece := raw.strip())]
        counts = self._counts(pieces)
        return [part for piece, count in zip(pieces, counts, strict=True) for part in self._fit(piece, count)]

    def split_under(self, header: str, text: str) -> list[str]:
        """`text` in pieces that each begin with the line `header` and fit together with it. Raises as `split`."""
        smaller = copy(self)
        smaller._room = max(self._room - self.count(header) - 1, self._room // 4)
        return [f"{header}\n{piece}" for piece in smaller.split(text)]

    def _counts(self, texts: list[str]) -> list[int]:
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _fit(self, piece: str, count: int) -> list[str]:
        """The piece, halved while it has too many tokens: a cut inside a word can add some."""
        if count <= self._room:
            return [piece]
        middle = len(piece) // 2
        return self.split(piece[:middle]) + self.split(piece[middle:])

    def _pieces(self, text: str) -> Iterator[str]:
        """Pack window by window; the next window starts at the last piece, which the window's end may have cut."""
        start = 0
        while start + _WINDOW < len(text):
            *ends, _ = self._ends(text[start : start + _WINDOW])
            for begin, end in zip([0, *ends], ends, strict=False):
                yield text[start + begin : start + end]
            start += ends[-1]
        ends = self._ends(text[start:])
        for begin, end in zip([0, *ends], ends, strict=False):
            yield text[start + begin : start + end]

    def _ends(self, window: str) -> list[int]:
        """Where the pieces of `window` end; a window longer than `PIECE_CHARACTERS` has several."""
        starts = [start for start, _ in self._tokenizer.encode(window, add_special_tokens=False).offsets]
        starts.append(len(window))
        ends = [0]
        while ends[-1] < len(window):
            token = bisect_left(starts, ends[-1]) + self._room
            limit = min(starts[min(token, len(starts) - 1)], ends[-1] + PIECE_CHARACTERS)
            ends.append(limit if limit == len(window) else _best_break(window, ends[-1], max(limit, ends[-1] + 1)))
        return ends[1:]


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("the text holds lone surrogates: decode its source with errors='replace'") from error
    return text


def _spaced(word: re.Match[str]) -> str:
    text = word[0]
    return " ".join(text[i : i + _PART_CHARACTERS] for i in range(0, len(text), _PART_CHARACTERS))


def _best_break(window: str, start: int, limit: int) -> int:
    """The last break between `start` and `limit` of the best kind that the second half has, else `limit`."""
    middle = (start + limit) // 2
    for kind in _BREAKS:
        end = max((found.end() for found in kind.finditer(window, middle, limit)), default=0)
        if end:
            return end
    return limit
