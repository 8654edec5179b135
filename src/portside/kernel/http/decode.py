"""Decodes requests into typed values: JSON bodies, query strings and path parameters. Errors name the field.

Unknown fields are ignored, as clients expect. They are returned by name, so that the response can list them in
`X-Ignored-Fields`. A struct that forbids unknown fields refuses them. A parameter of a query that would filter is
refused where the route has no such filter, because a client may change or delete what it finds. `json_validation.py`
refuses values that no field may hold.
"""

import contextlib
import re
import types
import typing
from collections.abc import Iterable
from functools import cache
from typing import Any, get_type_hints
from uuid import UUID

import msgspec
from msgspec import inspect

from portside.kernel.aliases import canonical_field
from portside.kernel.errors import Invalid, Problem
from portside.kernel.http.json_validation import MAX_INT, MIN_INT, read_json, text_problem

_PATH = re.compile(r"^(?P<msg>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_FLOAT_FOR_INT = re.compile(r"Expected `(?:[^`]* )?int(?: [^`]*)?`, got `float`")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_ANYTHING = inspect.AnyType()
# Names of filters that clients know. Without its filter a list holds more than the client asked for.
_FILTERS = frozenset(
    {
        "actor_id",
        "agent_environment",
        "agent_id",
        "archived",
        "assigned_to_me",
        "assistant_id",
        "comparative_experiment_id",
        "compute_type",
        "dataset",
        "dataset_id",
        "dataset_version",
        "deployment_ids",
        "exclude_corrections_datasets",
        "feedback_group_id",
        "feedback_key",
        "full_text_contains",
        "graph_id",
        "has_commits",
        "max_created_at",
        "metadata",
        "min_created_at",
        "name",
        "name_contains",
        "queue_type",
        "repo_type",
        "stats_filter",
        "stats_start_time",
        "status",
        "tag_value_id",
        "tag_value_ids",
        "tags",
        "tenant_handle",
        "tenant_id",
        "thread_id",
        "trace",
        "upstream_repo_handle",
        "upstream_repo_owner",
    }
)


def decode_body(raw: bytes, kind: Any, *, is_search: bool = False) -> tuple[Any, list[str]]:
    """Decode a JSON body. Returns the value, and the names of ignored fields.

    Raises Invalid, also for a filter in the body of a search that does not have it.
    """
    ignored: list[str] = []
    fields = read_json(raw)
    value = _rename(fields, kind, "", ignored)

    if is_search:
        for name in ignored:
            _refuse_filter("body", name, isinstance(fields, dict) and fields.get(name) not in (None, [], {}, ""))

    return convert(value, kind, "body"), ignored


def decode_query(pairs: Iterable[tuple[str, str]], kind: type[msgspec.Struct] | None) -> tuple[Any, list[str]]:
    """Decode a query string into a struct. A list field takes repeated keys, or one key with commas.

    Returns the struct, or None for a route without one, and the names of ignored parameters. Raises Invalid.
    """
    names, lists, moments = _query_fields(kind)
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in pairs:
        name = canonical_field(key)
        if name not in names:
            _refuse_filter("query", name, bool(value))
            ignored.append(key)
        elif why := text_problem(value):
            raise Invalid.field(["query", name], why)
        elif value.lower() == "null" and not names[name]:
            # msgspec would take it as None, and so ignore a filter that the client meant to send.
            raise Invalid.field(["query", name], "must not be null; leave the parameter out", "type_error")
        elif name in moments and _is_number(value):
            # msgspec would take it as the seconds since 1970.
            raise Invalid.field(["query", name], "must be a time in ISO 8601, such as 2026-01-31T12:00:00Z")
        elif name in lists:
            values.setdefault(name, []).extend(_split_list(value))
        elif value != "" or name not in values:
            values[name] = value

    return None if kind is None else convert(values, kind, "query", strict=False), ignored


def _split_list(value: str) -> list[str]:
    """Return the items of a list in a query: with commas between them, or as a JSON list of texts."""
    if value.startswith("[") and value.endswith("]"):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(value, type=list[str])

    return [part for part in value.split(",") if part]


def _refuse_filter(part: str, name: str, has_value: bool) -> None:  # noqa: FBT001 - of the parameter before it
    """Raise Invalid for a filter that the route does not have."""
    if name in _FILTERS and has_value:
        why = "is a filter that this route does not support; leave it out, or use another filter"
        raise Invalid.field([part, name], why, "not_supported")


def decode_path(name: str, text: str, kind: Any) -> Any:
    """Decode one path parameter. Raises Invalid."""
    if kind is str:
        if why := text_problem(text):
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
    """Convert plain data to a type. Raises Invalid with the location under `where`.

    A number such as `1.0` counts as an integer, as in JSON Schema; msgspec refuses it. Few requests hold one, so it is
    converted only after a refusal, and then all of them in one pass.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as exc:
        failure = exc

    if _FLOAT_FOR_INT.match(str(failure)):
        try:
            return msgspec.convert(_whole_floats_as_ints(value, _type_info(kind)), kind, strict=strict)
        except msgspec.ValidationError as exc:
            failure = exc

    problem = to_problem(str(failure), where)
    if problem.type == "enum" and (allowed := _allowed_values(_types_at(_type_info(kind), problem.loc[1:]))):
        problem.msg += f"; use one of: {', '.join(map(str, allowed))}"
    elif "matching regex" in problem.msg and (meant := _descriptions(_types_at(_type_info(kind), problem.loc[1:]))):
        problem.msg = f"must be {' or '.join(meant)}"

    raise Invalid([problem]) from failure


def _types_at(info: inspect.Type, path: list[str | int]) -> list[inspect.Type]:
    """Return the types that a value may have at a path, with their annotations."""
    if not path:
        return [info]

    found: list[inspect.Type] = []

    for member in _union_members(info):
        if isinstance(member, (inspect.StructType, inspect.TypedDictType)):
            for field in member.fields:
                found += _types_at(field.type, path[1:]) if field.encode_name == path[0] else []
        elif isinstance(member, inspect.CollectionType):
            found += _types_at(member.item_type, path[1:])
        elif isinstance(member, inspect.DictType):
            found += _types_at(member.value_type, path[1:])

    return found


def _allowed_values(types: Iterable[inspect.Type]) -> list[Any]:
    """Return the values that types enumerate."""
    found: list[Any] = []

    for member in (member for info in types for member in _union_members(info)):
        if isinstance(member, inspect.LiteralType):
            found += member.values
        elif isinstance(member, inspect.EnumType):
            found += [each.value for each in member.cls]

    return found


def _descriptions(types: Iterable[inspect.Type]) -> list[str]:
    """Return the descriptions of types, which name the values that they take, such as `an e-mail address`."""
    found: list[str] = []
    for info in types:
        if isinstance(info, inspect.UnionType):
            found += _descriptions(info.types)
        elif isinstance(info, inspect.Metadata) and "description" in (info.extra_json_schema or {}):
            found.append(str((info.extra_json_schema or {})["description"]))

    return found


_type_info = cache(inspect.type_info)


def _whole_floats_as_ints(value: Any, info: inspect.Type) -> Any:
    """Return a value with its whole floats as integers, where the type takes integers and no floats."""
    if isinstance(info, inspect.AnyType):
        return value

    members = _union_members(info)
    if isinstance(value, float):
        takes_int = any(isinstance(member, inspect.IntType) for member in members)
        takes_float = any(isinstance(member, (inspect.FloatType, inspect.AnyType)) for member in members)
        is_whole = value.is_integer() and MIN_INT <= value <= MAX_INT
        return int(value) if takes_int and not takes_float and is_whole else value

    if isinstance(value, dict):
        # A union of structs may name a field twice. An integer is fine for a float as well, so either type will do.
        fields = {
            field.encode_name: field.type
            for member in members
            if isinstance(member, (inspect.StructType, inspect.TypedDictType))
            for field in member.fields
        }

        other = next((member.value_type for member in members if isinstance(member, inspect.DictType)), _ANYTHING)
        return {key: _whole_floats_as_ints(part, fields.get(key, other)) for key, part in value.items()}

    if isinstance(value, list):
        item = next((member.item_type for member in members if isinstance(member, inspect.CollectionType)), _ANYTHING)
        return [_whole_floats_as_ints(part, item) for part in value]

    return value


def _union_members(info: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(info, inspect.Metadata):
        return _union_members(info.type)
    if isinstance(info, inspect.UnionType):
        return tuple(member for part in info.types for member in _union_members(part))

    return (info,)


def to_problem(text: str, where: str) -> Problem:
    """Turn a message of msgspec into a problem with a location."""
    match = _PATH.match(text)
    message, path = (match["msg"], match["path"] or "") if match else (text, "")
    loc: list[str | int] = [where]
    for name, index in _STEP.findall(path):
        loc.append(name or (int(index) if index.isdigit() else index))

    missing = _MISSING.search(message)
    if missing:
        return Problem([*loc, missing[1]], "Field required", "missing")
    if unknown := _UNKNOWN.search(message):
        return Problem([*loc, unknown[1]], "is not supported here; leave it out", "not_supported")

    return Problem(loc, message, _classify_message(message))


def _classify_message(message: str) -> str:
    if "Invalid UUID" in message:
        return "uuid_parsing"
    if "Invalid enum value" in message:
        return "enum"

    return "type_error" if message.startswith("Expected") and ", got " in message else "value_error"


@cache
def _query_fields(kind: type[msgspec.Struct] | None) -> tuple[dict[str, bool], frozenset[str], frozenset[str]]:
    """Return a query's parameters, each with whether it takes any text, and the names of its lists and of its times."""
    if kind is None:
        return {}, frozenset(), frozenset()

    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - narrows the type
    lists = (field.encode_name for field in info.fields if _holds_list(field.type))

    moments = (
        field.encode_name
        for field in info.fields
        if any(isinstance(member, inspect.DateTimeType) for member in _union_members(field.type))
    )

    texts = {field.encode_name: _takes_text(field.type) for field in info.fields}
    return texts, frozenset(lists), frozenset(moments)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False

    return True


def _takes_text(info: inspect.Type) -> bool:
    """Whether any text is a value of a type, or of the items of a list."""
    if isinstance(info, inspect.ListType):
        return _takes_text(info.item_type)

    members = _union_members(info)
    if members == (info,):
        return isinstance(info, (inspect.StrType, inspect.AnyType))

    return any(_takes_text(member) for member in members)


def _holds_list(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(_holds_list(part) for part in info.types)
    if isinstance(info, inspect.Metadata):
        return _holds_list(info.type)

    return isinstance(info, inspect.ListType)


@cache
def _structs_in(kind: Any) -> dict[str, Any] | None:
    """Return the type of each field of a struct, by its name on the wire; None for any other type."""
    if not _is_struct(kind):
        return None

    hints = get_type_hints(kind)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _forbids_unknown_fields(kind: Any) -> bool:
    return any(_is_struct(arg) and arg.__struct_config__.forbid_unknown_fields for arg in _alternatives(kind))


def _rename(value: Any, kind: Any, path: str, ignored: list[str]) -> Any:
    """Give every field its canonical name, and drop the fields that the struct does not have."""
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
            if _forbids_unknown_fields(kind):
                renamed[key] = part
            else:
                ignored.append(f"{path}{key}")
        elif name not in renamed or key == name:
            renamed[name] = _rename(part, fields[name], f"{path}{name}.", ignored)

    return renamed


@cache
def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(part for option in typing.get_args(kind) for part in _alternatives(option))
    if typing.get_origin(kind) is typing.Annotated:
        return _alternatives(typing.get_args(kind)[0])

    return (kind,)


@cache
def _members(kind: Any) -> tuple[Any, ...]:
    return tuple(
        member
        for option in _alternatives(kind)
        if typing.get_origin(option) is list
        for member in _alternatives(typing.get_args(option)[0])
    )
