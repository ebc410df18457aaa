"""Chunks that lose nothing and that the model reads to the end."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterrun.chunking import PIECE_CHARACTERS, Chunker
from afterrun.errors import InputError
from afterrun.modelfiles import PACKAGED_MODEL, model_spec

CHUNKER = Chunker(model_spec(PACKAGED_MODEL))
ROOM = CHUNKER.spec.max_tokens - 2
SENTENCE = "The publisher waited too long for a frozen broker, so the timeout is now one second. "

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
long_texts = st.builds(lambda part, times: part * times, texts, st.integers(1, 60))


def without_spaces(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=150, deadline=None)
@given(long_texts)
def test_pieces_hold_every_character_that_is_no_space_in_order(text: str) -> None:
    assert without_spaces("".join(CHUNKER.split(text))) == without_spaces(text)


@settings(max_examples=150, deadline=None)
@given(long_texts)
def test_every_piece_fits_the_model(text: str) -> None:
    pieces = CHUNKER.split(text)
    assert all(CHUNKER.count(piece) <= ROOM and len(piece) <= PIECE_CHARACTERS for piece in pieces)
    assert all(piece.strip() for piece in pieces)


def test_a_short_text_is_one_piece_unchanged() -> None:
    assert CHUNKER.split("  two words\n") == ["  two words\n"]


@pytest.mark.parametrize("text", ["", " ", "\n\t  \n", "\u3000" * 5000])
def test_a_blank_text_has_no_pieces(text: str) -> None:
    assert CHUNKER.split(text) == []


def test_pieces_end_at_paragraphs_and_sentences() -> None:
    pieces = CHUNKER.split((SENTENCE * 8).strip() + "\n\n" + (SENTENCE * 12).strip())
    assert pieces[0] == (SENTENCE * 8).strip()
    assert all(piece.endswith("one second.") for piece in pieces)


def test_no_word_is_cut_where_spaces_allow_it() -> None:
    words = [f"word{number}" for number in range(20_000)]
    assert " ".join(CHUNKER.split(" ".join(words))).split() == words


def test_a_long_word_becomes_parts_that_the_model_can_read() -> None:
    secretless = base64.b64encode(random.Random(1).randbytes(3000)).decode()
    pieces = CHUNKER.split(secretless)
    assert without_spaces("".join(pieces)) == secretless
    assert all(CHUNKER.count(piece) > 50 for piece in pieces[:-1])


def test_a_text_of_spaces_makes_no_long_piece() -> None:
    assert CHUNKER.split("a" + " " * 100_000 + "b") == ["a", "b"]


def test_chinese_is_not_cut_into_parts_while_it_fits() -> None:
    text = "我们决定使用数据库" * 20
    assert CHUNKER.split(text) == [text]


def test_counting_cuts_nothing_and_adds_nothing() -> None:
    assert CHUNKER.count("") == 0
    assert CHUNKER.count("hello world") == 2
    assert CHUNKER.count("hello " * 5000) == 5000


def test_lone_surrogates_are_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match="errors='replace'"):
        CHUNKER.split("a\ud800b")


def test_loading_a_chunker_imports_no_model_library() -> None:
    program = (
        "import sys; from afterrun.chunking import Chunker; from afterrun.modelfiles import model_spec; "
        "Chunker(model_spec('all-MiniLM-L6-v2')).split('a b'); "
        "print(sorted({'torch', 'transformers', 'openvino', 'sentence_transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("separator", [" ", "\n", "\n\n"])
def test_two_megabytes_take_linear_time(separator: str) -> None:
    part = SENTENCE.strip() + separator
    small, large = (part * (size // len(part)) for size in (200_000, 2_000_000))
    assert _cpu_seconds(large) < 10 * 1.8 * _cpu_seconds(small)


def _cpu_seconds(text: str) -> float:
    start = time.process_time()
    CHUNKER.split(text)
    return time.process_time() - start
