"""The text of a filter, parsed into a tree of calls: `and(eq(run_type, "llm"), gt(latency, "5s"))`.

Length, depth and the number of calls are bounded, and errors name the character.
"""

import json
import re
from typing import Any

import msgspec

from portside.kernel.errors import BadRequest

MAX_CHARS = 20_000
MAX_DEPTH = 20
MAX_CALLS = 200
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?(?![\w.]))|(?P<word>[A-Za-z_][A-Za-z0-9_]{0,99})
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<mark>[(),\[\]]))""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
# The escapes of JSON: clients write texts with `json.dumps`, which escapes characters beyond ASCII too.
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class FilterInvalid(BadRequest):
    """The filter cannot be parsed; `detail` names the character and the reason."""

    code = "filter_invalid"

    @classmethod
    def at(cls, offset: int, reason: str) -> "FilterInvalid":
        """Return the error for an offset in the text."""
        return cls(f"Invalid filter at character {offset + 1}: {reason}")


class FilterField(msgspec.Struct, frozen=True):
    """The name of a field."""

    name: str
    offset: int


class FilterValue(msgspec.Struct, frozen=True):
    """A string, a number, true, false, null, or a list of them; `written` is a string with its escapes."""

    value: Any
    offset: int
    source: str = ""
    """A string as it was written, with its escapes."""


class FilterCall(msgspec.Struct, frozen=True):
    """An operator and its arguments."""

    name: str
    arguments: list[Any]
    offset: int


def parse_filter(text: str) -> FilterCall:
    """Parse a filter. Raises FilterInvalid."""
    if len(text) > MAX_CHARS:
        raise FilterInvalid.at(MAX_CHARS, f"a filter has at most {MAX_CHARS} characters")

    reader = _FilterParser(text)
    tree = reader.argument(0)
    if not isinstance(tree, FilterCall):
        raise FilterInvalid.at(0, 'a filter is a call, such as eq(name, "x")')

    reader.expect_end()
    return tree


class _FilterParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._calls = 0

    def argument(self, depth: int) -> FilterCall | FilterField | FilterValue:
        """Parse a call, a field, a value or a list of values."""
        kind, text, offset = self._next()
        if kind == "word" and text in _CONSTANTS:
            return FilterValue(_CONSTANTS[text], offset)
        if kind == "word":
            return self._call(text, offset, depth) if self._takes("(") else FilterField(text, offset)
        if kind == "number":
            return FilterValue(float(text) if re.search(r"[.eE]", text) else int(text), offset)

        if kind == "text":
            return FilterValue(_unquote(text), offset, text[1:-1])
        if text == "[":
            return FilterValue([self._item(part) for part in self._list("]", offset, depth)], offset)

        raise FilterInvalid.at(offset, f"unexpected {text}")

    def expect_end(self) -> None:
        """Raise FilterInvalid if text is left."""
        if self._next_offset() < len(self._text):
            raise FilterInvalid.at(self._next_offset(), "the filter should end here")

    def _call(self, name: str, offset: int, depth: int) -> FilterCall:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise FilterInvalid.at(offset, f"a filter has at most {MAX_CALLS} calls")

        return FilterCall(name, self._list(")", offset, depth), offset)

    def _list(self, end: str, offset: int, depth: int) -> list[Any]:
        if depth == MAX_DEPTH:
            raise FilterInvalid.at(offset, f"a filter is nested at most {MAX_DEPTH} levels deep")

        parts: list[Any] = []
        if self._takes(end):
            return parts

        while True:
            parts.append(self.argument(depth + 1))
            if self._takes(end):
                return parts
            if not self._takes(","):
                raise FilterInvalid.at(self._next_offset(), f"expected , or {end}")

    def _item(self, part: Any) -> Any:
        if isinstance(part, FilterValue) and not isinstance(part.value, list):
            return part.value
        raise FilterInvalid.at(part.offset, "a list holds texts and numbers")

    def _takes(self, mark: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match["mark"] != mark:
            return False

        self._at = match.end()
        return True

    def _next_offset(self) -> int:
        """Return the offset of the next token."""
        return len(self._text) - len(self._text[self._at :].lstrip())

    def _next(self) -> tuple[str, str, int]:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise FilterInvalid.at(self._next_offset(), "expected a field, a value or a call")

        self._at = match.end()
        return match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)


def _unquote(text: str) -> str:
    """Return what a quoted text says, without NUL, which Postgres cannot store."""
    content = _ESCAPE.sub(_unescape, text[1:-1])
    if not content.isascii():
        # Two escapes may be one character: a pair of surrogates.
        content = content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    return content.replace("\x00", "")


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)


def escape_for_json(text: str) -> str:
    """Return a text as it stands within JSON: with escapes of quotes, backslashes and control characters."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
