"""Token-true chunks: a text in pieces that the embedding model reads to the end.

A model reads a fixed number of tokens and drops the rest without a word, so pieces are measured with the model's own
tokenizer. Where a piece ends is the choice of `semantic-text-splitter`: at a paragraph, else a sentence, else a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from semantic_text_splitter import TextSplitter

from afterrun.errors import InputError
from afterrun.modelfiles import load_tokenizer
from afterrun.models import ModelSpec

SPECIAL_TOKENS: Final = 2
"""What the model puts around a text: [CLS] and [SEP], or their like."""
PIECE_CHARACTERS: Final = 2000
"""No piece is longer, however few tokens it has (a table padded with spaces, for example)."""
WORD_CHARACTERS: Final = 100
"""BERT's WordPiece reads a longer word as one [UNK] (`max_input_chars_per_word` of the tokenizer)."""

# The splitter's time grows faster than the length of its text: 2 MB at once took 14 s, in windows it is linear.
_WINDOW: Final = 4000
# A character inside what the tokenizer takes for one word: no space, no ASCII punctuation, no Chinese character.
_IN_WORD: Final = r"[^\s!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ffff]"
_LONG_WORD: Final = re.compile(f"{_IN_WORD}{{{WORD_CHARACTERS + 1},}}")
# WordPiece's time grows with the square of a word's length.
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
        self._splitter = TextSplitter.from_huggingface_tokenizer(self._tokenizer, self._room)

    def count(self, text: str) -> int:
        """Tokens of `text`, the special ones not counted and nothing cut off.

        Raises:
            InputError: the text holds lone surrogates, which are no text.
        """
        return len(self._tokenizer.encode_batch_fast([_checked(text)], add_special_tokens=False)[0].ids)

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
        return [short for piece in self._pieces(text) for short in _cut(piece)]

    def _pieces(self, text: str) -> Iterator[str]:
        """Split window by window; the next one starts at the last piece, which the window's end may have cut."""
        start = 0
        while start + _WINDOW < len(text):
            pieces = self._splitter.chunk_indices(text[start : start + _WINDOW])
            if len(pieces) > 1:
                offset, _ = pieces.pop()
            else:
                offset = _last_break(text[start : start + _WINDOW])
                pieces = [(0, text[start : start + offset])]
            yield from (piece for _, piece in pieces)
            start += offset
        yield from self._splitter.chunks(text[start:])


def _spaced(word: re.Match[str]) -> str:
    text = word[0]
    return " ".join(text[i : i + _PART_CHARACTERS] for i in range(0, len(text), _PART_CHARACTERS))


def _checked(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("the text holds lone surrogates: decode its source with errors='replace'") from error
    return text


def _cut(piece: str) -> Iterator[str]:
    while len(piece) > PIECE_CHARACTERS:
        end = _last_break(piece[:PIECE_CHARACTERS])
        if head := piece[:end].strip():
            yield head
        piece = piece[end:].lstrip()
    if piece := piece.strip():
        yield piece


def _last_break(window: str) -> int:
    """Where the last word of `window` begins; its end if there is one word only."""
    return len(window.rstrip().rpartition(" ")[0]) or len(window)
