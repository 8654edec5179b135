"""JSON of values of a user's graph, whose types are unknown.

orjson encodes them, with one hook, because clients of LangGraph servers expect its encoding of named tuples and
datetimes (docs/why/libraries.md). Executors use this module too, so it imports only the standard library and orjson.
"""

import base64
import contextlib
import dataclasses
import json
import math
import re
import sys
from collections import UserList, UserString, deque
from collections.abc import Callable, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import orjson

MAX_DEPTH = 200
COPIED_BELOW_BYTES = 4096
# A decimal of a higher power of ten is written as a float, and not with all of its digits.
MAX_EXPONENT = 300
# Units of numpy that have a fixed number of seconds.
_FIXED_UNITS = frozenset({"W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as"})
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
_NO_FORM = object()
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def dump_user(value: Any) -> bytes:
    """Encode a value of unknown type. Objects without a JSON form become their `repr`.

    Raises ValueError if the value is nested too deeply or contains itself.
    """
    try:
        raw = orjson.dumps(value, _user_default, _OPTIONS | orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError):
        return _encode_plain(_plain(value, MAX_DEPTH))

    # orjson shrinks a larger buffer in place, which leaves up to 4 kB unused behind each small value. Copy those.
    return bytes(memoryview(raw)) if len(raw) < COPIED_BELOW_BYTES else raw


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
    if isinstance(value, type):
        return repr(value)

    form = _FORMS.get(type(value))
    return _convert_instance(value) if form is None else form(value)


def _convert_instance(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _numpy_value(numpy, value)

    for find_form in (_call_dump, _read_fields, _convert_by_base, _call_list):
        form = find_form(value)
        if form is not _NO_FORM:
            return form

    return repr(value)


def _call_dump(value: Any) -> Any:
    """Return what an object returns as its plain data."""
    return _call_first(value, ("model_dump", "_asdict", "to_dict", "dict"))


def _call_list(value: Any) -> Any:
    """Return the items of an array of another library, or the text of a URL of pydantic."""
    if callable(getattr(value, "get_secret_value", None)):
        # A secret of pydantic, which shows no more of itself than this.
        return "**********"

    return _call_first(value, ("tolist", "unicode_string"))


def _call_first(value: Any, methods: Sequence[str]) -> Any:
    """Return what the first method returns that does not fail: a method of such a name may do anything."""
    for method in methods:
        dump = getattr(value, method, None)
        if callable(dump):
            with contextlib.suppress(Exception):
                return dump()

    return _NO_FORM


def _convert_by_base(value: Any) -> Any:
    """Return the form that instances of a base class have."""
    for base, convert in _FORMS_OF_BASES:
        if isinstance(value, base):
            return convert(value)

    return _NO_FORM


def _read_fields(value: Any) -> Any:
    """Return the fields of a data class of the standard library, of attrs or of msgspec."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif (attributes := getattr(value, "__attrs_attrs__", None)) is not None:
        names = [attribute.name for attribute in attributes]
    elif (fields := getattr(value, "__struct_fields__", None)) is not None:
        names = list(fields)
    else:
        return _NO_FORM

    return {name: getattr(value, name) for name in names}


def _number(value: Decimal) -> int | float | None:
    """Return a decimal as a number of JSON: an integer stays one, and what is no number is null."""
    if not value.is_finite():
        return None

    exponent = value.as_tuple().exponent
    is_short = isinstance(exponent, int) and exponent >= 0 and value.adjusted() <= MAX_EXPONENT
    return int(value) if is_short else float(value)


def _fraction(value: Fraction) -> float | str:
    try:
        return float(value)
    except OverflowError:
        return str(value)


def _base64(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(value).decode()


def _complex(value: Any) -> dict[str, float]:
    return {"real": value.real, "imag": value.imag}


def _range(value: Any) -> dict[str, Any]:
    # Not its items: there may be any number of them.
    return {"start": value.start, "stop": value.stop, "step": value.step}


def _error(value: BaseException) -> dict[str, str]:
    return {"error": type(value).__name__, "message": str(value)}


def _numpy_value(numpy: Any, value: Any) -> Any:
    """Convert a scalar or an array of numpy."""
    kind = value.dtype.kind
    if kind == "M":
        return _times(value.astype("datetime64[us]").tolist())
    if kind == "m":
        return _durations(value)
    if value.dtype.names is not None:
        return [dict(zip(value.dtype.names, row, strict=True)) for row in value.ravel().tolist()]

    return _numbers(numpy, value) if kind in "biufc" else value.tolist()


def _numbers(numpy: Any, value: Any) -> Any:
    if value.dtype.kind != "c":
        # orjson writes the shortest digits of a number of its size, but refuses other orders of bytes and of items.
        with contextlib.suppress(TypeError):
            native_value = value[()] if value.ndim == 0 else numpy.ascontiguousarray(value)
            return orjson.Fragment(orjson.dumps(native_value, option=orjson.OPT_SERIALIZE_NUMPY))

    if value.ndim > 0:
        return value.tolist()

    # The longest numbers have no counterpart in Python.
    return complex(value) if value.dtype.kind == "c" else float(value)


def _times(value: Any) -> Any:
    """Write times as orjson writes those of an array."""
    if isinstance(value, list):
        return [_times(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else None


def _durations(value: Any) -> Any:
    """Write the seconds of durations. Months and years have no fixed number of them: those are counted."""
    unit = str(value.dtype)[len("timedelta64[") : -1]
    is_fixed = unit.strip("0123456789") in _FIXED_UNITS
    durations = value.astype("timedelta64[us]" if is_fixed else "int64")
    return _seconds(durations.tolist())


def _seconds(value: Any) -> Any:
    if isinstance(value, list):
        return [_seconds(item) for item in value]
    return value.total_seconds() if isinstance(value, timedelta) else value


# By exact class, which is found at once: what most objects are.
_FORMS: dict[type, Callable[[Any], Any]] = {
    Decimal: _number,
    bytes: _base64,
    bytearray: _base64,
    memoryview: _base64,
    deque: list,
    set: list,
    frozenset: list,
    timedelta: timedelta.total_seconds,
    complex: _complex,
    Fraction: _fraction,
    range: _range,
    slice: _range,
    SimpleNamespace: vars,
    re.Pattern: lambda value: value.pattern,
}
_FORMS_OF_BASES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (BaseException, _error),
    (PurePath, str),
    ((IPv4Address, IPv6Address, IPv4Network, IPv6Network), str),
    (tzinfo, str),
    ((datetime, date, time), lambda value: value.isoformat()),
    (timedelta, timedelta.total_seconds),
    (Decimal, _number),
    (Fraction, _fraction),
    ((bytes, bytearray), _base64),
    (float, float.__float__),
    (complex, _complex),
    (UserString, str),
    (Mapping, dict),
    ((tuple, list, Sequence, AbstractSet, deque, ValuesView, UserList), list),
    (SimpleNamespace, vars),
)


def _plain(value: Any, depth: int) -> Any:
    """Rebuild a value from plain types with JSON forms. Lone surrogates are replaced."""
    if depth == 0:
        raise ValueError(f"the value is nested more than {MAX_DEPTH} levels deep, or it contains itself")
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [_plain(item, depth - 1) for item in value]

    if value is None or isinstance(value, (bool, int, float, str)):
        return _plain_scalar(value)

    try:
        return orjson.loads(orjson.dumps(value, option=_OPTIONS))
    except TypeError:
        return _plain(_user_default(value), depth - 1)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None

    return value


def _plain_key(key: Any) -> str:
    try:
        raw = orjson.dumps({key: None}, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        text = _base64(key) if isinstance(key, bytes) else str(key)
        return str(_plain(text, 1))

    (plain_key,) = orjson.loads(raw)
    return str(plain_key)
