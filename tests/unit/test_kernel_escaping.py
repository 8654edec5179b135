"""Control characters are escaped for logs and terminals, formulas for spreadsheets."""

import sys
import unicodedata

import pytest

from portside.kernel.escaping import escape_controls, escape_formula, restore


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("one\r\ntwo", r"one\x0d\ntwo"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("a\u202eb\u2066c\u200f", r"a\u202eb\u2066c\u200f"),
        ("half \ud800", r"half \ud800"),
        ("tab\there, ünïcödé, שלום, 🙂", "tab\there, ünïcödé, שלום, 🙂"),
    ],
)
def test_escape_controls_replaces_only_control_characters(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


def test_escape_controls_can_keep_newlines() -> None:
    assert escape_controls("one\ntwo\rthree\x1b", keep_newlines=True) == "one\ntwo\\x0dthree\\x1b"


def test_escape_controls_covers_all_of_unicode() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = [
        character
        for character in escape_controls(every)
        if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(character) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]

    assert left == ["\t"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum(A1)", "\tx", "\rx", "\nx", "\uff1d1", "'=1", "''=1"])
def test_formula_is_escaped_and_restored(text: str):
    assert escape_formula(text) == f"'{text}"
    assert restore(escape_formula(text)) == text


@pytest.mark.parametrize("text", ["", "plain", "'quoted'", "a=b", "'", "it's"])
def test_text_without_formula_is_unchanged(text: str):
    assert escape_formula(text) == text
    assert restore(text) == text
