"""JSON of values of a user's graph, whose types are unknown.

orjson encodes them, with one hook, because clients of LangGraph servers expect its encoding of named tuples and
datetimes (docs/why/libraries.md). Executors use this module too, so it imports only the standard library and orjson.
"""

import contextlib
import dataclasses
import json
import math
import re
from typing import Any

import orjson

MAX_DEPTH = 200
COPIED_BELOW_BYTES = 4096
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def dump_user(value: Any) -> bytes:
    """Encode a value of unknown type. Objects without a JSON form become their `repr`.

    Raises ValueError if the value is nested too deeply or contains itself.
    """
    try:
        encoded = orjson.dumps(value, _user_default, orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except (TypeError, ValueError):
        return _encode_plain(_plain(value, MAX_DEPTH))
    # orjson shrinks a larger buffer in place, which leaves up to 4 kB unused behind each small value. Copy those.
    return bytes(memoryview(encoded)) if len(encoded) < COPIED_BELOW_BYTES else encoded


def _encode_plain(value: Any) -> bytes:
    """Encode plain data, which may have integers that are too large for orjson."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """Return a value of unknown type as plain JSON data."""
    return json.loads(dump_user(value))


def dump_jsonb(value: Any) -> str:
    """Encode a value of unknown type as text for a `jsonb` column, which stores no NUL characters."""
    return without_nul(dump_user(value)).decode()


def without_nul(raw: bytes) -> bytes:
    """Replace escaped NUL characters in JSON text by U+FFFD, because `jsonb` cannot store them."""
    return _NUL.sub(rb"\1\\ufffd", raw) if b"\\u0000" in raw else raw


def storable(text: str, max_bytes: int | None = None) -> str:
    """Replace NUL and lone surrogates, which Postgres and JSON cannot store, and keep at most `max_bytes` bytes."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace")[:max_bytes].decode(errors="ignore")


def _user_default(value: Any) -> Any:
    """Convert an object that orjson does not know to one that it does."""
    return repr(value) if isinstance(value, type) else _convert_instance(value)


def _convert_instance(value: Any) -> Any:
    for method in ("model_dump", "_asdict", "to_dict", "dict"):
        dump = getattr(value, method, None)
        if callable(dump):
            # A method of this name may do anything. If it fails, the next one is tried.
            with contextlib.suppress(Exception):
                return dump()
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    return repr(value)


def _plain(value: Any, depth: int) -> Any:
    """Rebuild a value from plain types with JSON forms. Lone surrogates are replaced."""
    if depth == 0:
        raise ValueError(f"the value is nested more than {MAX_DEPTH} levels deep, or it contains itself")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [_plain(item, depth - 1) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS))
    except TypeError:
        return _plain(_user_default(value), depth - 1)


def _plain_key(key: Any) -> str:
    try:
        return str(next(iter(orjson.loads(orjson.dumps({key: None}, option=orjson.OPT_NON_STR_KEYS)))))
    except TypeError:
        return str(_plain(str(key), 1))
