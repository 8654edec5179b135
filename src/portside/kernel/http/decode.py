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
from portside.kernel.http.json_validation import MAX_INT, MIN_INT, find_text_problem, read_json

_PATH = re.compile(r"^(?P<msg>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_FLOAT_FOR_INT = re.compile(r"Expected `(?:[^`]* )?int(?: [^`]*)?`, got `float`")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_ANYTHING = inspect.AnyType()
_type_info = cache(inspect.type_info)
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
    value = _rename(fields, kind, path="", ignored=ignored)

    if is_search and isinstance(fields, dict):
        for name in ignored:
            if fields.get(name) not in (None, [], {}, ""):
                _refuse_filter("body", name)

    return convert(value, kind, "body"), ignored


def decode_query(pairs: Iterable[tuple[str, str]], kind: type[msgspec.Struct] | None) -> tuple[Any, list[str]]:
    """Decode a query string into a struct. A list field takes repeated keys, or one key with commas.

    Returns the struct, or None for a route without one, and the names of ignored parameters. Raises Invalid.
    """
    names, lists, times = _query_fields(kind)
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in pairs:
        name = canonical_field(key)
        if name not in names:
            if value:
                _refuse_filter("query", name)
            ignored.append(key)
        elif why := find_text_problem(value):
            raise Invalid.field(["query", name], why)
        elif value.lower() == "null" and not names[name]:
            # msgspec would take it as None, and so ignore a filter that the client meant to send.
            raise Invalid.field(["query", name], "must not be null; leave the parameter out", "type_error")
        elif name in times and _is_number(value):
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


def _refuse_filter(part: str, name: str) -> None:
    """Raise Invalid for a filter that the route does not have; other names pass."""
    if name in _FILTERS:
        why = "is a filter that this route does not support; leave it out, or use another filter"
        raise Invalid.field([part, name], why, "not_supported")


def decode_path(name: str, text: str, kind: Any) -> Any:
    """Decode one path parameter. Raises Invalid."""
    if kind is str:
        if why := find_text_problem(text):
            raise Invalid.field(["path", name], why)
        return text

    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as exc:
        is_uuid = kind is UUID or getattr(kind, "__supertype__", None) is UUID
        if not is_uuid:
            raise Invalid.field(["path", name], str(exc), "value_error") from exc

        label = name.removesuffix("_id").replace("_", " ")
        raise Invalid.field(["path", name], f"Invalid {label} ID: must be a UUID", "uuid_parsing") from exc


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
    if problem.type == "enum":
        values = _list_values(_list_types(_type_info(kind), problem.loc[1:]))
        if values:
            problem.msg += f"; use one of: {', '.join(map(str, values))}"
    elif "matching regex" in problem.msg:
        descriptions = _list_descriptions(_list_types(_type_info(kind), problem.loc[1:]))
        if descriptions:
            problem.msg = f"must be {' or '.join(descriptions)}"

    raise Invalid([problem]) from failure


def _list_types(info: inspect.Type, path: list[str | int]) -> list[inspect.Type]:
    """List the types that a value may have at a path, with their annotations."""
    if not path:
        return [info]

    types: list[inspect.Type] = []
    for member in _union_members(info):
        if isinstance(member, (inspect.StructType, inspect.TypedDictType)):
            for field in member.fields:
                if field.encode_name == path[0]:
                    types += _list_types(field.type, path[1:])
        elif isinstance(member, inspect.CollectionType):
            types += _list_types(member.item_type, path[1:])
        elif isinstance(member, inspect.DictType):
            types += _list_types(member.value_type, path[1:])

    return types


def _list_values(types: Iterable[inspect.Type]) -> list[Any]:
    """List the values that types enumerate."""
    values: list[Any] = []
    for info in types:
        for member in _union_members(info):
            if isinstance(member, inspect.LiteralType):
                values += member.values
            elif isinstance(member, inspect.EnumType):
                values += [item.value for item in member.cls]

    return values


def _list_descriptions(types: Iterable[inspect.Type]) -> list[str]:
    """List the descriptions of types, which name the values that they take, such as `an e-mail address`."""
    descriptions: list[str] = []
    for info in types:
        if isinstance(info, inspect.UnionType):
            descriptions += _list_descriptions(info.types)
        elif isinstance(info, inspect.Metadata) and "description" in (info.extra_json_schema or {}):
            descriptions.append(str((info.extra_json_schema or {})["description"]))

    return descriptions


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

        value_types = (member.value_type for member in members if isinstance(member, inspect.DictType))
        default = next(value_types, _ANYTHING)
        return {key: _whole_floats_as_ints(part, fields.get(key, default)) for key, part in value.items()}

    if isinstance(value, list):
        item_types = (member.item_type for member in members if isinstance(member, inspect.CollectionType))
        item_type = next(item_types, _ANYTHING)
        return [_whole_floats_as_ints(part, item_type) for part in value]

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
    message = match["msg"] if match else text
    path = (match["path"] or "") if match else ""

    loc: list[str | int] = [where]
    for name, index in _STEP.findall(path):
        loc.append(name or (int(index) if index.isdigit() else index))

    if field := _MISSING.search(message):
        return Problem([*loc, field[1]], "Field required", "missing")
    if field := _UNKNOWN.search(message):
        return Problem([*loc, field[1]], "is not supported here; leave it out", "not_supported")

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

    texts = {field.encode_name: _takes_text(field.type) for field in info.fields}
    lists = {field.encode_name for field in info.fields if _holds_list(field.type)}
    times = {field.encode_name for field in info.fields if _holds_time(field.type)}
    return texts, frozenset(lists), frozenset(times)


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


def _holds_time(info: inspect.Type) -> bool:
    return any(isinstance(member, inspect.DateTimeType) for member in _union_members(info))


def _holds_list(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(_holds_list(part) for part in info.types)
    if isinstance(info, inspect.Metadata):
        return _holds_list(info.type)

    return isinstance(info, inspect.ListType)


@cache
def _field_types(kind: Any) -> dict[str, Any] | None:
    """Return the type of each field of a struct, by its name on the wire; None for any other type."""
    if not _is_struct(kind):
        return None

    hints = get_type_hints(kind)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _forbids_unknown_fields(kind: Any) -> bool:
    return any(_is_struct(arg) and arg.__struct_config__.forbid_unknown_fields for arg in _alternatives(kind))


def _rename(value: Any, kind: Any, *, path: str, ignored: list[str]) -> Any:
    """Give every field its canonical name, and drop the fields that the struct does not have.

    `path` is that of the value, with a dot behind it. The paths of dropped fields are added to `ignored`.
    """
    if isinstance(value, list):
        item = next((arg for arg in _item_types(kind) if _field_types(arg)), None)
        if item is None:
            return value

        item_path = f"{path.removesuffix('.')}[]."
        return [_rename(part, item, path=item_path, ignored=ignored) for part in value]

    if not isinstance(value, dict):
        return value

    structs = (_field_types(arg) for arg in _alternatives(kind))
    fields = next((field_types for field_types in structs if field_types), None)
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
            renamed[name] = _rename(part, fields[name], path=f"{path}{name}.", ignored=ignored)

    return renamed


@cache
def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself; without annotations."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(part for option in typing.get_args(kind) for part in _alternatives(option))
    if typing.get_origin(kind) is typing.Annotated:
        return _alternatives(typing.get_args(kind)[0])

    return (kind,)


@cache
def _item_types(kind: Any) -> tuple[Any, ...]:
    """Return the types of the items, if a type is a list or a union with one."""
    return tuple(
        member
        for option in _alternatives(kind)
        if typing.get_origin(option) is list
        for member in _alternatives(typing.get_args(option)[0])
    )
