"""The run context: from the JSON of a request to what a graph's `context_schema` expects."""

import dataclasses
from typing import Any

from pydantic import BaseModel


def context_for(schema: Any, given: dict[str, Any] | None) -> Any:
    """Fit a context to a schema. Keys a typed context does not know are dropped (contract: section 5).

    An empty context becomes the schema's defaults, or None where it has fields without one.
    """
    names = _field_names(schema)
    if names is None:
        return given or ({} if schema is not None else None)
    known = {key: value for key, value in (given or {}).items() if key in names}
    if known:
        return known
    try:
        return schema()
    except (TypeError, ValueError):
        return None


def _field_names(schema: Any) -> set[str] | None:
    if dataclasses.is_dataclass(schema):
        return {field.name for field in dataclasses.fields(schema) if field.init}
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        fields = schema.model_fields.items()
        return {name for name, _ in fields} | {field.alias for _, field in fields if field.alias}
    return None
