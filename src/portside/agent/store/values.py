"""What items hold: from Python to the JSON that Postgres keeps, and back to langgraph's items.

A value is kept as `jsonb`. What that cannot hold as it is, is refused and never changed: an agent should not find
something else in its memory than it put there.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from langgraph.store.base import Item, SearchItem

from portside.kernel.codec import load, without_nul
from portside.kernel.db import Record

_EXPONENT = re.compile(rb"\de\+?\d")


def value_text(value: Mapping[str, Any]) -> str:
    """Write the value of an item as JSON. Raises ValueError that says what cannot be stored."""
    if not isinstance(value, Mapping):
        raise ValueError(  # noqa: TRY004 - one class for all that a value can have wrong
            f"the value of an item must be a mapping, not {type(value).__name__}"
        )
    return json_text(dict(value), "the value of an item")


def json_text(value: Any, what: str) -> str:
    """Write JSON that `jsonb` takes. Raises ValueError."""
    try:
        raw = orjson.dumps(value, _default, orjson.OPT_NON_STR_KEYS)
    except TypeError as exc:
        raise ValueError(f"{what} cannot be stored as JSON: {exc}") from exc
    if without_nul(raw) != raw:
        raise ValueError(f"{what} holds a NUL character (\\u0000), which cannot be stored")
    if _EXPONENT.search(raw):
        raw = orjson.dumps(_spelled_out(load(raw)))
    return raw.decode()


def item_of(row: Record) -> Item:
    """Make langgraph's item of a row."""
    return Item(**_fields(row))


def search_item_of(row: Record) -> SearchItem:
    """Make langgraph's search result of a row."""
    return SearchItem(**_fields(row), score=row["score"])


def _spelled_out(value: Any) -> Any:
    """Write large floats with all their digits and a point: `jsonb` would make integers of them."""
    if isinstance(value, dict):
        return {key: _spelled_out(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_spelled_out(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return orjson.Fragment(f"{value:.1f}".encode())
    return value


def _fields(row: Record) -> dict[str, Any]:
    return {
        "namespace": tuple(row["namespace"]),
        "key": row["key"],
        "value": load(row["value"]),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def _default(value: Any) -> Any:
    """Give pydantic models, such as messages, their JSON form; anything else has none."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump()
    raise TypeError(f"a {type(value).__name__} has no JSON form")
