"""What JSON may say and we do not take, because what stands behind us cannot hold it or would change it.

Postgres holds no NUL characters and no lone surrogates; most readers of JSON turn integers beyond 64 bits into floats
and msgpack refuses them; numbers without a finite value have no JSON form; depth ends somewhere. A few searches of the
raw bytes, which cost less than decoding them, say whether there may be such a thing. Only then is the value walked, to
name the place. Of keys that are given twice the last one counts, as in every reader of JSON.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from portside.kernel.codec import MAX_DEPTH, load
from portside.kernel.errors import Invalid, Problem

Path = tuple[str | int, ...]
LEAST_INT, GREATEST_INT = -(2**63), 2**64 - 1
NOT_JSON = "Invalid JSON in request body"
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_NOT_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


def read_json(raw: bytes) -> Any:
    """Decode JSON and return plain data that can be stored and written out again. Raises Invalid that names the field.

    The last is the case for `json_invalid` only as far as a more patient reader can make sense of the body.
    """
    try:
        value = load(raw)
    except RecursionError:
        raise _too_deep(()) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Invalid([_patiently(raw) or Problem(["body"], f"{NOT_JSON}: {exc}", "json_invalid")]) from exc
    if _may_be_deep(raw) and (path := _deep_place(value)) is not None:
        raise _too_deep(path)
    if (b"\\u0000" in raw or _LONG_NUMBER in raw.translate(_DIGITS)) and (found := _first_unfit(value)):
        raise Invalid([found])
    return value


def unfit_text(text: str) -> str | None:
    """Say why a text cannot be stored, or return None."""
    if "\0" in text:
        return "must not hold a NUL character (\\u0000): it cannot be stored"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        # Bytes that are no UTF-8 come as surrogates from U+DC80 on (the error handler `surrogateescape`).
        is_byte = 0xDC80 <= ord(text[exc.start]) <= 0xDCFF
        return "is not valid UTF-8" if is_byte else "must not hold half of a surrogate pair: it is no character"
    return None


def _patiently(raw: bytes) -> Problem | None:
    """Find the place of what only the strict reader refuses."""
    try:
        return _first_unfit(json.loads(raw.decode("utf-8", "surrogateescape")))
    except (ValueError, RecursionError):
        return None


def _first_unfit(value: Any) -> Problem | None:
    """Walk a value and return the first problem that is met; an explicit stack, for it may be deep."""
    stack: list[tuple[Path, Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, (dict, list)):
            for step, part in _parts(item):
                if isinstance(step, str) and (why := unfit_text(step)):
                    return _problem((*path, step), f"the name {why}")
                if type(part) is not bool and part is not None:
                    stack.append(((*path, step), part))
        elif why := _unfit(item):
            return _problem(path, why)
    return None


def _unfit(item: Any) -> str | None:
    if isinstance(item, str):
        return unfit_text(item)
    if isinstance(item, float):
        return None if math.isfinite(item) else "must be a finite number"
    if isinstance(item, int) and not LEAST_INT <= item <= GREATEST_INT:
        return "must be an integer of at most 64 bits; send a larger one as a string"
    return None


def _parts(container: Any) -> Iterator[tuple[str | int, Any]]:
    return iter(container.items() if isinstance(container, dict) else enumerate(container))


def _problem(path: Path, why: str) -> Problem:
    return Problem(["body", *(_shown(step) for step in path)], why, "value_error")


def _shown(step: str | int) -> str | int:
    return step if isinstance(step, int) else step.encode("utf-8", "replace").decode()[:200]


def _may_be_deep(raw: bytes) -> bool:
    """Peel off innermost pairs of brackets, one or two levels a time; brackets in strings make this err to be safe."""
    left = raw.translate(None, _NOT_BRACKETS)
    if len(left) <= 2 * MAX_DEPTH:
        return False
    for _ in range(MAX_DEPTH // 2):
        if not left:
            return False
        left, before = left.replace(b"[]", b"").replace(b"{}", b""), len(left)
        if len(left) == before:
            return True
    return bool(left)


def _deep_place(value: Any) -> Path | None:
    """Return the way to the first container that is nested too deeply, if there is one."""
    level: list[tuple[Path, Any]] = [((), value)]
    for _ in range(MAX_DEPTH):
        level = [
            (path if len(path) > 2 else (*path, step), part)
            for path, item in level
            for step, part in _parts(item)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return None
    return level[0][0]


def _too_deep(path: Path) -> Invalid:
    problem = _problem(path, f"nested more than {MAX_DEPTH} levels deep")
    return Invalid([problem])
