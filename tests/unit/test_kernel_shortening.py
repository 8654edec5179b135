"""Texts are cut behind a line or a word, and have a mark where something is missing."""

import pytest

from portside.kernel.shortening import first_line, shorten, shorten_line


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("one two", 7, "one two"),
        ("one two three", 8, "one two…"),
        ("one two three", 10, "one two…"),
        ("abcdefghij", 5, "abcd…"),
        ("  deep", 4, "  d…"),
    ],
)
def test_lines_are_cut_behind_words(text: str, limit: int, short: str):
    assert shorten_line(text, limit) == short
    assert len(short) <= limit


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("one\ntwo", 7, "one\ntwo"),
        ("one\ntwo\nthree", 10, "one\ntwo\n…"),
        ("one\ntwo\nthree", 9, "one\ntwo\n…"),
        ("one\ntwo\nthree", 8, "one\n…"),
        ("one two three", 9, "one two…"),
    ],
)
def test_texts_are_cut_behind_lines(text: str, limit: int, short: str):
    assert shorten(text, limit) == short
    assert len(short) <= limit


def test_the_first_line_is_the_first_that_is_not_empty():
    assert first_line("\n  one two \nthree", 80) == "one two"
    assert first_line("", 80) == ""
