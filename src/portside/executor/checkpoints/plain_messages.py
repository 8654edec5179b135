"""Messages as the dicts that their JSON has, for reading a state without creating its messages.

The serializer stores the fields of a message as `model_dump` returns them, and the JSON of a message is that of
`model_dump` as well. Creating the message in between takes four fifths of the time to read a long conversation. It can
be left out where it would change nothing: the stored fields are those of the class, in its order, and each has a value
that the class takes as it is. Anything else is created, and encoded by the caller.
"""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import isclass
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

MODULE = "langchain_core.messages."
_COUNTS = tuple(UsageMetadata.__annotations__)
_JSON = frozenset({type(None), bool, int, float, str})
_DETAILS = {
    "input_token_details": tuple(InputTokenDetails.__annotations__),
    "output_token_details": tuple(OutputTokenDetails.__annotations__),
}
_TEXT: frozenset[type] = frozenset({str})
_TEXT_OR_NONE: frozenset[type] = frozenset({str, type(None)})
_NONE = frozenset({type(None)})
_DICT = frozenset({dict})
_NO_TYPE: frozenset[type] = frozenset()
_TYPES: dict[str, frozenset[type]] = {
    "content": _TEXT,
    "additional_kwargs": _NO_TYPE,
    "response_metadata": _DICT,
    "type": _TEXT,
    "name": _TEXT_OR_NONE,
    "id": _TEXT_OR_NONE,
    "example": frozenset({bool}),
    "tool_calls": _NO_TYPE,
    "invalid_tool_calls": _NO_TYPE,
    "usage_metadata": _NONE,
    "tool_call_id": _TEXT,
    "artifact": _NONE,
    "status": _NO_TYPE,
    "role": _TEXT,
}


def is_plain_message(module: str, name: str, fields_by_name: Any) -> bool:
    """Whether the dict that is stored for a class's instance is the one that the instance would be encoded from."""
    fields = _find_fields(module, name)
    if fields is None or type(fields_by_name) is not dict or tuple(fields_by_name) != fields.names:
        return False

    # Not `all`: this is done for each message of a state.
    for types, is_valid, value in zip(fields.types, fields.checks, fields_by_name.values(), strict=True):
        if type(value) not in types and not is_valid(value):
            return False

    return True


@lru_cache(maxsize=1000)
def is_message(kind: Any) -> bool:
    """Whether this is a class of messages of langchain itself."""
    return issubclass(kind, BaseMessage) and kind.__module__.startswith(MODULE)


def is_plain(item: Any) -> bool:
    """Whether an item is a message or JSON data, without any other object in it."""
    kind: Any = type(item)
    if kind in _JSON:
        return True
    if kind is list:
        return all(map(is_plain, item))
    if kind is dict:
        return all(type(key) is str for key in item) and all(map(is_plain, item.values()))

    if not is_message(kind) or issubclass(kind, BaseMessageChunk) or item.__pydantic_extra__:
        return False

    return all(type(field) in _JSON or not field or is_plain(field) for field in item.__dict__.values())


class _Fields(NamedTuple):
    """The fields of a class of messages, the types of each that are always valid, and what checks other values."""

    names: tuple[str, ...]
    types: tuple[frozenset[type], ...]
    checks: tuple[Callable[[Any], bool], ...]


@lru_cache(maxsize=1000)
def _find_fields(module: str, name: str) -> _Fields | None:
    """Return the fields of a class of messages of langchain; None for any other class."""
    kind: Any = (
        getattr(sys.modules[module], name, None) if module.startswith(MODULE) and module in sys.modules else None
    )
    if not isclass(kind) or not issubclass(kind, BaseMessage) or issubclass(kind, BaseMessageChunk):
        return None

    names = tuple(kind.model_fields)
    if any(field not in _TYPES for field in names):
        return None

    checks = tuple(_CHECKS.get(field, lambda _: False) for field in names)
    return _Fields(names, tuple(_TYPES[field] for field in names), checks)


def _is_content(value: Any) -> bool:
    return type(value) is list and all(type(part) is str or type(part) is dict for part in value)


def _is_additional(value: Any) -> bool:
    # A message without tool calls takes them from here.
    return type(value) is dict and "tool_calls" not in value


def _are_calls(value: Any) -> bool:
    return type(value) is list and all(map(_is_call, value))


def _is_call(value: Any) -> bool:
    if type(value) is not dict or tuple(value) != ("name", "args", "id", "type"):
        return False

    name, args, call_id, kind = value.values()
    return type(name) is str and type(args) is dict and type(call_id) in _TEXT_OR_NONE and kind == "tool_call"


def _is_usage(value: Any) -> bool:
    if type(value) is not dict or not _is_ordered(value, _COUNTS) or len(value) < len(_COUNTS) - len(_DETAILS):
        return False

    return all(
        _are_counts(counts, _DETAILS[name]) if name in _DETAILS else type(counts) is int
        for name, counts in value.items()
    )


def _are_counts(value: Any, names: tuple[str, ...]) -> bool:
    return type(value) is dict and _is_ordered(value, names) and all(type(count) is int for count in value.values())


def _is_ordered(value: Mapping[Any, Any], names: tuple[str, ...]) -> bool:
    return list(value) == [name for name in names if name in value]


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "content": _is_content,
    "additional_kwargs": _is_additional,
    "tool_calls": _are_calls,
    "invalid_tool_calls": lambda value: value == [],
    "usage_metadata": _is_usage,
    "status": lambda value: value in ("success", "error"),
}
