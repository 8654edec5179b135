"""From request to typed values: JSON bodies, query strings and path parameters, with errors that name the field.

Fields that the contract does not know are ignored, as clients expect, and reported by `decode_body` so that the answer
can name them in `X-Ignored-Fields`. What no field may hold is in `vetting.py`.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, get_type_hints
from uuid import UUID

import msgspec

from portside.kernel.errors import Invalid, Problem
from portside.kernel.http.vetting import read_json, unfit_text
from portside.kernel.spellings import canonical_field

_PATH = re.compile(r"^(?P<msg>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")


def decode_body(raw: bytes, kind: Any) -> tuple[Any, list[str]]:
    """Decode a JSON body. Returns the value and the names of ignored fields. Raises Invalid."""
    ignored: list[str] = []
    value = _rename(read_json(raw), kind, "", ignored)
    return convert(value, kind, "body"), ignored


def decode_query(pairs: Iterable[tuple[str, str]], kind: type[msgspec.Struct] | None) -> tuple[Any, list[str]]:
    """Decode a query string into a struct; list fields take repeated keys or a comma list.

    Returns the struct, None where the route has none, and the names of ignored parameters. Raises Invalid.
    """
    names, lists = _query_fields(kind)
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in pairs:
        name = canonical_field(key)
        if name not in names:
            ignored.append(key)
        elif why := unfit_text(value):
            raise Invalid.field(["query", name], why)
        elif name in lists:
            values.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif value != "" or name not in values:
            values[name] = value
    return None if kind is None else convert(values, kind, "query", strict=False), ignored


def decode_path(name: str, text: str, kind: Any) -> Any:
    """Decode one path parameter. Raises Invalid."""
    if kind is str:
        if why := unfit_text(text):
            raise Invalid.field(["path", name], why)
        return text
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as exc:
        label = name.removesuffix("_id").replace("_", " ")
        is_uuid = kind is UUID or getattr(kind, "__supertype__", None) is UUID
        message = f"Invalid {label} ID: must be a UUID" if is_uuid else str(exc)
        raise Invalid.field(["path", name], message, "uuid_parsing" if is_uuid else "value_error") from exc


def convert(value: Any, kind: Any, where: str, *, strict: bool = True) -> Any:
    """Check plain data against a type. Raises Invalid with the location under `where`."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as exc:
        raise Invalid([problem_of(str(exc), where)]) from exc


def problem_of(text: str, where: str) -> Problem:
    """Turn a msgspec message into a located problem."""
    match = _PATH.match(text)
    message, path = (match["msg"], match["path"] or "") if match else (text, "")
    loc: list[str | int] = [where]
    for name, index in _STEP.findall(path):
        loc.append(name or (int(index) if index.isdigit() else index))
    missing = _MISSING.search(message)
    if missing:
        return Problem([*loc, missing[1]], "Field required", "missing")
    return Problem(loc, message, _kind_of(message))


def _kind_of(message: str) -> str:
    if "Invalid UUID" in message:
        return "uuid_parsing"
    if "Invalid enum value" in message:
        return "enum"
    return "type_error" if message.startswith("Expected") and ", got " in message else "value_error"


@cache
def _query_fields(kind: type[msgspec.Struct] | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of a query's parameters, and of those that are lists."""
    if kind is None:
        return frozenset(), frozenset()
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - narrows the type
    lists = (field.encode_name for field in info.fields if _holds_list(field.type))
    return frozenset(field.encode_name for field in info.fields), frozenset(lists)


def _holds_list(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.UnionType):
        return any(_holds_list(part) for part in info.types)
    return isinstance(info, msgspec.inspect.ListType)


@cache
def _structs_in(kind: Any) -> dict[str, Any] | None:
    """Map each field of a struct to the type it holds; None for anything that is no struct."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    hints = get_type_hints(kind)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _rename(value: Any, kind: Any, path: str, ignored: list[str]) -> Any:
    """Give every field its canonical name, and drop what the struct does not know."""
    if isinstance(value, list):
        item = next((arg for arg in _members(kind) if _structs_in(arg)), None)
        return [_rename(part, item, f"{path.removesuffix('.')}[].", ignored) for part in value] if item else value
    if not isinstance(value, dict):
        return value
    fields = next((found for arg in _alternatives(kind) if (found := _structs_in(arg))), None)
    if fields is None:
        return value
    renamed: dict[str, Any] = {}
    for key, part in value.items():
        name = key if key in fields else canonical_field(key)
        if name not in fields:
            ignored.append(f"{path}{key}")
        elif name not in renamed or key == name:
            renamed[name] = _rename(part, fields[name], f"{path}{name}.", ignored)
    return renamed


@cache
def _alternatives(kind: Any) -> tuple[Any, ...]:
    import types
    import typing

    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    if typing.get_origin(kind) is typing.Annotated:
        return _alternatives(typing.get_args(kind)[0])
    return (kind,)


@cache
def _members(kind: Any) -> tuple[Any, ...]:
    import typing

    return tuple(
        member
        for option in _alternatives(kind)
        if typing.get_origin(option) is list
        for member in _alternatives(typing.get_args(option)[0])
    )
