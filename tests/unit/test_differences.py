"""What a merge would keep, drop and add, word by word."""

from __future__ import annotations

from afterrun.serve.cli.differences import Piece, pieces, plain, styled, words

MERGED = "We use Postgres 17 for orders, behind pgbouncer."


def test_a_word_that_the_merged_text_has_anywhere_is_kept() -> None:
    assert pieces("Behind pgbouncer: orders use Postgres 17!", words([MERGED])) == [
        Piece(text="Behind pgbouncer: orders use Postgres 17!", common=True)
    ]


def test_a_word_that_the_merged_text_lacks_is_dropped_and_marked() -> None:
    found = pieces("We do use Postgres 16 here.", words([MERGED]))
    assert plain(found, ("[-", "-]")) == "We [-do-] use Postgres [-16 here.-]"


def test_a_word_that_no_member_has_is_added() -> None:
    found = pieces(MERGED, words(["We use Postgres 17.", "Orders for Postgres."]))
    assert plain(found, ("{+", "+}")) == "We use Postgres 17 for orders, {+behind pgbouncer.+}"


def test_signs_at_the_edges_and_case_do_not_count_but_signs_alone_do() -> None:
    assert words(['"Postgres",', "postgres"]) == {"postgres"}
    assert words(["a -> b", "..."]) == {"a", "->", "b", "..."}


def test_lines_stay_lines_on_a_terminal_and_control_characters_go() -> None:
    text = styled(pieces("One\x1b[2J\ntwo", words(["one two"])), "red")
    assert text.plain == "One [2J\ntwo"
    assert [span.style for span in text.spans if span.style] == ["red"]


def test_an_empty_text_has_no_pieces() -> None:
    assert pieces("", words([])) == []
    assert plain([], ("[-", "-]")) == ""
