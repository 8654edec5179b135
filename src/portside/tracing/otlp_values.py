"""Values of OpenTelemetry's attributes: JSON in text, and names with dots and numbers as objects and lists.

An attribute holds no object, so instrumentations send JSON as text, or one attribute for each value, such as
`gen_ai.completion.0.tool_calls.0.function.name`.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from portside.kernel.user_json import MAX_DEPTH, dump_user

# With fewer brackets no JSON text is nested so deeply that it could not be encoded again as a part of a run.
_SHALLOW = MAX_DEPTH // 2
_MAX_PARTS = 30
# Four digits: a list has at most 10,000 items.
_INDEX = re.compile(r"0|[1-9]\d{0,3}")
# Where an object and a value stand at the same place, the value is under this key.
_VALUE = "value"


def decode_text(value: Any) -> Any:
    """Decode text that is a JSON object or list; return other values unchanged, and text that is nested too deeply."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {"{", "["}:
        return value

    try:
        content = msgspec.json.decode(value)
        if value.count("[") + value.count("{") > _SHALLOW:
            # A run holds it a few levels further down, such as in the metadata of a document in a list.
            dump_user([[[[content]]]])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return value

    return content


def decode_object(value: Any) -> dict[str, Any]:
    """Return an attribute that is an object, or JSON of one; an empty object for anything else."""
    content = decode_text(value)
    return content if isinstance(content, dict) else {}


def decode_list(value: Any) -> list[Any]:
    """Return an attribute that is a list, or JSON of one, with its items decoded; an empty list for anything else."""
    content = decode_text(value)
    return [decode_text(item) for item in content] if isinstance(content, list) else []


def nest(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as nested objects: `{"a.0.b": 1}` becomes `{"a": [{"b": 1}]}`."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        parts = name.split(".", _MAX_PARTS)
        place = tree
        for part in parts[:-1]:
            branch = place.get(part)
            if not isinstance(branch, _Branch):
                branch = _Branch({_VALUE: branch} if part in place else {})
                place[part] = branch

            place = branch

        last = parts[-1]
        if isinstance(place.get(last), _Branch):
            place[last].setdefault(_VALUE, value)
        else:
            place[last] = value

    return {key: _to_plain(value) for key, value in tree.items()}


class _Branch(dict[str, Any]):
    """An object that was made of names with dots, in contrast to a value that is an object."""


def _to_plain(value: Any) -> Any:
    """Return branches as plain objects, and as lists where all their keys are numbers."""
    if not isinstance(value, _Branch):
        return value
    if all(_INDEX.fullmatch(key) for key in value):
        return [_to_plain(value[key]) for key in sorted(value, key=int)]

    return {key: _to_plain(part) for key, part in value.items()}
