"""Decodes request bodies and rejects valid JSON that the server cannot store or return unchanged.

Postgres cannot store NUL characters and lone surrogates. Most JSON parsers turn integers beyond 64 bits into floats,
and msgpack rejects them. NaN and infinities have no JSON form. The nesting depth is limited.

A few searches of the raw bytes, cheaper than decoding them, find bodies that may contain one of these. Only then is
the decoded value walked, to name the field in the error. If an object has a key twice, the last value counts.

The number of values is limited too, and is counted before anything is decoded: a decoder of many tiny values holds the
interpreter's lock, and so every other request, for much longer than one of a long text.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import msgspec

from portside.kernel.codec import load
from portside.kernel.errors import BodyTooLarge, Invalid, Problem
from portside.kernel.http.body_settings import MAX_VALUES
from portside.kernel.user_json import MAX_DEPTH

Path = tuple[str | int, ...]
# From the lowest signed to the highest unsigned integer of 64 bits: the range of msgpack.
MIN_INT = -(2**63)
MAX_INT = 2**64 - 1
# OpenAPI constraints for fields that are documented (docs/compatibility.md), but that this server accepts only empty,
# null or false.
NO_ITEMS = msgspec.Meta(extra_json_schema={"maxItems": 0})
NO_FIELDS = msgspec.Meta(extra_json_schema={"maxProperties": 0})
NO_TEXT = msgspec.Meta(extra_json_schema={"maxLength": 0})
NO_VALUE = msgspec.Meta(extra_json_schema={"type": "null"})
NOT_TRUE = msgspec.Meta(extra_json_schema={"const": False})
# A text in a query that is a JSON object. The document describes it as such (OpenAPI: `content` of a parameter).
JSON_TEXT = msgspec.Meta(
    extra_json_schema={"contentMediaType": "application/json", "contentSchema": {"type": "object"}}
)
NOT_JSON = "Invalid JSON in request body"
value_limit: ContextVar[int] = ContextVar("value_limit", default=MAX_VALUES)
"""The values that the body of the current request may hold."""
# A search for the field of a problem ends after this many values: it is slow, and everything else waits for it.
MAX_SEARCHED_VALUES = 50_000
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_NOT_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


def needs_any(*names: str) -> msgspec.Meta:
    """Return the OpenAPI constraint of an object that must have at least one of these fields, and not as null."""
    alternatives = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]
    return msgspec.Meta(extra_json_schema={"anyOf": alternatives})


def among(names: Iterable[str]) -> msgspec.Meta:
    """Return the OpenAPI constraint of a text that the server compares with names that it knows at run time only."""
    return msgspec.Meta(extra_json_schema={"enum": sorted(names)})


class TooManyValues(BodyTooLarge):
    """The request body holds more values than this server accepts; send fewer, or join small values to texts."""

    code = "too_many_values"

    @classmethod
    def of(cls, count: int, limit: int) -> "TooManyValues":
        """Name the number of values, the limit and its setting."""
        return cls(
            f"The request body holds {count} values, more than {limit}, the limit of this server (setting "
            "HTTP_MAX_REQUEST_BODY_VALUES); send fewer, or join small values to texts."
        )


def read_json(raw: bytes) -> Any:
    """Decode JSON and return plain data that can be stored and returned. Raises Invalid, which names the field.

    If the body is not valid JSON, the error names the field only if Python's more lenient parser can read the body.
    Raises TooManyValues.
    """
    limit_values(raw)
    try:
        value = load(raw)
    except RecursionError:
        raise _too_deep(()) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        problem = _find_problem_leniently(raw) or Problem(["body"], f"{NOT_JSON}: {exc}", "json_invalid")
        raise Invalid([problem]) from exc

    if _may_be_deep(raw) and (path := _find_too_deep(value)) is not None:
        raise _too_deep(path)

    if b"\\u0000" in raw and _NUL.search(raw) is not None:
        raise _build_refusal(value, "a NUL character, which cannot be stored")
    if _LONG_NUMBER in raw.translate(_DIGITS) and _has_long_integer(value):
        raise _build_refusal(value, "an integer of more than 64 bits")

    return value


def _build_refusal(value: Any, description: str) -> Invalid:
    """Return the error for a body that holds such a value: with its field, if it is among the first values."""
    fallback = f"holds {description}; it is not among the first values"
    return Invalid([_find_problem(value) or _problem((), fallback)])


def limit_values(raw: bytes) -> None:
    """Refuse JSON with more values than the current request may hold. Raises TooManyValues.

    Each value but the first is behind a comma or an opening bracket, so these are counted: at first all of them, and
    only if there are too many those outside of strings.
    """
    limit = value_limit.get()
    if len(raw) <= limit or _count_values(raw) <= limit:
        return

    # A quote inside a string is behind an odd number of backslashes.
    without_escapes = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = without_escapes.count(b'"') // 2

    # At most every second string is the key of another value.
    count = strings // 2
    if count <= limit:
        outside_of_strings = b"".join(without_escapes.split(b'"')[::2])
        count = _count_values(outside_of_strings)

    if count > limit:
        raise TooManyValues.of(count, limit)


def _count_values(raw: bytes) -> int:
    return 1 + raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _has_long_integer(value: Any) -> bool:
    """Whether a value holds an integer that msgpack, and so this server, cannot hold."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        return True

    return False


def find_text_problem(text: str) -> str | None:
    """Return why a text cannot be stored, or None if it can."""
    if "\0" in text:
        return "must not hold a NUL character (\\u0000): it cannot be stored"
    if text.isascii():
        return None

    try:
        text.encode()
    except UnicodeEncodeError as exc:
        # The error handler `surrogateescape` decodes bytes that are not UTF-8 to surrogates from U+DC80 on.
        is_byte = 0xDC80 <= ord(text[exc.start]) <= 0xDCFF
        return "is not valid UTF-8" if is_byte else "must not hold half of a surrogate pair: it is no character"

    return None


def _find_problem_leniently(raw: bytes) -> Problem | None:
    """Return the first problem of a body that only the strict parser rejects, or None."""
    try:
        return _find_problem(json.loads(raw.decode("utf-8", "surrogateescape")))
    except (ValueError, RecursionError):
        return None


def _find_problem(value: Any) -> Problem | None:
    """Return the first problem of a value, or None. It is searched for among MAX_SEARCHED_VALUES values.

    The stack is explicit, because the value may be deeply nested.
    """
    stack: list[tuple[Path, Iterator[tuple[str | int, Any]]]] = [((), iter([("", value)]))]
    for _ in range(MAX_SEARCHED_VALUES):
        place, items = stack[-1]
        step, item = next(items, (None, None))
        if step is None:
            stack.pop()
            if not stack:
                return None

            continue

        # The whole value is at no step.
        path = (*place, step) if len(stack) > 1 else ()
        if isinstance(step, str) and (why := find_text_problem(step)):
            return _problem(path, f"the name {why}")

        if isinstance(item, (dict, list)):
            stack.append((path, _items(item)))
        elif type(item) is not bool and (why := _scalar_problem(item)):
            return _problem(path, why)

    return None


def _scalar_problem(item: Any) -> str | None:
    if isinstance(item, str):
        return find_text_problem(item)
    if isinstance(item, float):
        return None if math.isfinite(item) else "must be a finite number"
    if isinstance(item, int) and not MIN_INT <= item <= MAX_INT:
        return "must be an integer of at most 64 bits; send a larger one as a string"

    return None


def _items(container: Any) -> Iterator[tuple[str | int, Any]]:
    return iter(container.items() if isinstance(container, dict) else enumerate(container))


def _problem(path: Path, why: str) -> Problem:
    # Keys come from the client: they may be long, or hold surrogates that the response could not encode.
    loc = [step if isinstance(step, int) else step.encode("utf-8", "replace").decode()[:200] for step in path]
    return Problem(["body", *loc], why, "value_error")


def _may_be_deep(raw: bytes) -> bool:
    """Whether the nesting may exceed the limit. Brackets inside strings may cause a wrong yes, never a wrong no.

    Each pass removes the innermost pairs of brackets, which are one or two levels.
    """
    brackets = raw.translate(None, _NOT_BRACKETS)
    if len(brackets) <= 2 * MAX_DEPTH:
        return False

    for _ in range(MAX_DEPTH // 2):
        if not brackets:
            return False

        outer_brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(outer_brackets) == len(brackets):
            return True

        brackets = outer_brackets

    return bool(brackets)


def _find_too_deep(value: Any) -> Path | None:
    """Return the first three steps of the path to the first container that is nested too deeply, or None."""
    level: list[tuple[Path, Any]] = [((), value)]
    for _ in range(MAX_DEPTH):
        level = [
            (path if len(path) > 2 else (*path, step), child)
            for path, item in level
            for step, child in _items(item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return None

    return level[0][0]


def _too_deep(path: Path) -> Invalid:
    return Invalid([_problem(path, f"nested more than {MAX_DEPTH} levels deep")])
