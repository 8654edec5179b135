"""Values of items as JSON.

A value that `jsonb` cannot hold unchanged is refused, never altered: an agent must not find something else in its
memory than it stored.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from portside.kernel.codec import load
from portside.kernel.user_json import without_nul

_EXPONENT = re.compile(rb"\de\+?\d")


def to_value_text(value: Mapping[str, Any]) -> str:
    """Return the JSON of an item's value. Raises ValueError that says what cannot be stored."""
    if not isinstance(value, Mapping):
        raise ValueError(  # noqa: TRY004 - one class for all that a value can have wrong
            f"the value of an item must be a mapping, not {type(value).__name__}"
        )

    return to_json_text(dict(value), "the value of an item")


def to_json_text(value: Any, what: str) -> str:
    """Return JSON that `jsonb` stores unchanged. Raises ValueError."""
    try:
        raw = orjson.dumps(value, _json_default, orjson.OPT_NON_STR_KEYS)
    except TypeError as exc:
        raise ValueError(f"{what} cannot be stored as JSON: {exc}") from exc

    if without_nul(raw) != raw:
        raise ValueError(f"{what} holds a NUL character (\\u0000), which cannot be stored")

    # orjson writes these numbers as null.
    if b"null" in raw and _has_non_finite(value):
        raise ValueError(f"{what} holds NaN or an infinity, which JSON cannot express; store null or a string instead")

    if _EXPONENT.search(raw):
        raw = orjson.dumps(_without_exponents(load(raw)))

    return raw.decode()


def _without_exponents(value: Any) -> Any:
    """Write large floats with all digits and a decimal point: `jsonb` turns `1e20` into an integer."""
    if isinstance(value, dict):
        return {key: _without_exponents(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_exponents(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return orjson.Fragment(f"{value:.1f}".encode())

    return value


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_non_finite, value))

    return _is_model(value) and _has_non_finite(value.model_dump())


def _json_default(value: Any) -> Any:
    """Return the JSON form of pydantic models, such as messages; nothing else has one."""
    if _is_model(value):
        return value.model_dump()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _is_model(value: Any) -> bool:
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)
