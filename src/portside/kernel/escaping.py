"""Escapes untrusted text before a terminal or a spreadsheet shows it.

Terminals interpret control characters: escape sequences, newlines that begin a forged log line, and bidirectional
controls that reorder the text. Spreadsheets run a cell that begins like a formula. An apostrophe before it marks it as
text; reading the file back removes the apostrophe again.
"""

import re

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# C0, DEL and C1; marks, embeddings, overrides and isolates of bidirectional text; separators of lines and paragraphs;
# halves of surrogate pairs, which no stream can encode. A tab is text.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_formula(text: str) -> str:
    """Return the text so that no spreadsheet runs it as a formula."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def restore(text: str) -> str:
    """Undo `escape_formula`."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA) else text


def escape_controls(text: str, *, keep_newlines: bool = False) -> str:
    r"""Replace each control character except tabs by its escape sequence, like `\x1b` or `\u202e`."""
    if keep_newlines:
        return "\n".join(map(escape_controls, text.split("\n")))
    return _CONTROLS.sub(_to_escape, text)


def _to_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\n":
        return r"\n"

    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
