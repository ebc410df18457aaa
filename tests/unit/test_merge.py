"""The deterministic merger loses nothing, and a proposed wording that loses something is not taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from afterrun.merge import DeterministicMerger, wording
from afterrun.models import Member
from afterrun.reading import read, sentences

START = datetime(2026, 1, 1, tzinfo=UTC)


def member(text: str, *, day: int) -> Member:
    return Member(id=UUID(int=day), content=text, source_type="fact", created_at=START + timedelta(days=day))


def members(*texts: str) -> list[Member]:
    return [member(text, day=day) for day, text in enumerate(texts, 1)]


def merged(*texts: str) -> str:
    return DeterministicMerger().merge(members(*texts))


def test_the_newest_text_stands_first_and_is_kept_as_it_is() -> None:
    assert merged("It is written in Go. It listens on port 80.", "It listens on port 80, behind nginx.") == (
        "It listens on port 80, behind nginx. It is written in Go."
    )


def test_a_sentence_that_adds_nothing_is_left_out() -> None:
    assert merged("Redis holds the cart data.", "Cart data lives in Redis.") == "Cart data lives in Redis."


def test_a_sentence_that_adds_only_a_small_word_is_kept() -> None:
    assert merged("Cart data does not live in Redis.", "Cart data lives in Redis.").count("Redis") == 2
    assert merged("Only cart data lives in Redis.", "Cart data lives in Redis.").count("Redis") == 2


def test_the_order_of_the_members_does_not_matter() -> None:
    cluster = members("It is slow.", "It is fast.", "It is green.")
    assert DeterministicMerger().merge(cluster) == DeterministicMerger().merge(cluster[::-1])


def test_lines_stay_lines() -> None:
    assert merged("- red\n- blue", "Colours:\n- red") == "Colours:\n- red\n- blue"


def test_a_word_that_another_text_has_only_within_code_is_kept() -> None:
    assert merged("cache", "`x cache `x") == "`x cache `x\ncache"


def test_nothing_gives_nothing() -> None:
    assert DeterministicMerger().merge([]) == ""
    assert merged("", "Here.") == "Here."
    assert merged("Here.", " ") == "Here."


_WORDS = st.sampled_from(
    [
        "the",
        "cache",
        "Redis",
        "not",
        "only",
        "port",
        "80",
        "30s",
        "3.10",
        "src/a.py",
        "--force",
        "`x",
        "y`",
        "from",
        "to",
        "never",
        "all",
        "lives",
        "holds.",
        "is.",
        "Port?",
        "café",
        "\n",
        "-",
        "测试",
        "el",
        "no",
        "guarda!",
        "!=",
        "a.b",
        "DB-12",
    ]
)
_TEXTS = st.lists(st.lists(_WORDS, max_size=15).map(" ".join), min_size=1, max_size=4)


@given(_TEXTS)
def test_every_content_word_number_and_identifier_of_every_member_is_in_the_result(texts: list[str]) -> None:
    kept = _content(merged(*texts))
    for text in texts:
        assert _content(text) <= kept


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_the_result_is_no_longer_than_the_members_together(texts: list[str]) -> None:
    assert len(merged(*texts)) <= sum(len(text) for text in texts) + len(texts) * 40


@given(_TEXTS)
def test_merging_the_result_with_a_member_again_gives_the_result(texts: list[str]) -> None:
    result = merged(*texts)
    for text in texts:
        again = DeterministicMerger().merge([member(text, day=1), member(result, day=9)])
        assert again == result


def _content(text: str) -> set[str]:
    return {key for sentence in sentences(text) for key in read(sentence).keys}


def test_a_proposed_wording_that_keeps_all_facts_is_taken() -> None:
    cluster = members("It listens on port 80.", "The API listens on 80 for 30 seconds.")
    assert wording(cluster, " The API listens on port 80 for 30s. ") == "The API listens on port 80 for 30s."


def test_a_proposed_wording_that_loses_a_number_a_path_or_a_name_is_not_taken() -> None:
    for text, proposed in (
        ("It listens on port 80.", "It listens on a port."),
        ("It is in src/app.py.", "It is in the source."),
        ("We run `make demo`.", "We run the demo."),
        ("It belongs to Anna.", "It belongs to someone."),
    ):
        assert wording(members(text, text), proposed) == text


def test_without_a_proposal_the_merger_words() -> None:
    assert wording(members("It is old.", "It is green."), None) == "It is green. It is old."
    assert wording(members("It is old.", "It is green."), "  ") == "It is green. It is old."


def test_a_text_that_says_it_all_stands_as_it_is_also_when_it_is_older() -> None:
    full = "It listens on port 80, behind nginx. It is written in Go."
    assert merged(full, "It listens on port 80.") == full
    assert merged(full, "It is written in Go. It listens on port 80, behind nginx.") != full


def test_a_fact_that_is_merged_with_its_parts_again_and_again_keeps_its_length() -> None:
    first = merged("It listens on port 80, behind nginx.", "It is written in Go.")
    text = first
    for part in ("It is written in Go.", "It listens on port 80.", "Behind nginx, it listens on port 80.") * 3:
        text = merged(text, part)
        assert len(text) <= len(first)
    assert text == first
