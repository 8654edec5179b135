"""JSON Schema: what a dataset says its inputs and outputs have to be, checked wherever they are written.

Schemas are strangers' code. Nothing is fetched for one, patterns run in time that grows with the text alone, and what a
check may cost is known before it begins: references lead within the schema and never in circles, so that a schema is
as large as it is with all of them written out (`schema_weight`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import msgspec

from portside.datasets.schema_weight import SchemaTooLarge, weigh
from portside.kernel.errors import Invalid, Problem

MAX_WORK = 500_000_000
_MAX_PROBLEMS = 20
_MAX_MESSAGE_CHARS = 500
Place = list[str | int]


class Schemas(msgspec.Struct):
    """The schemas of one dataset; None takes everything."""

    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None


def check_schema(schema: dict[str, Any], field: str) -> None:
    """Raise Invalid unless this is a JSON Schema that needs nothing from elsewhere and ends."""
    try:
        weigh(schema)
        _validator(schema)
    except SchemaTooLarge as exc:
        raise Invalid.field(["body", field], str(exc)) from exc
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        message = getattr(exc, "message", None) or str(exc)
        raise Invalid.field(["body", field], f"is no JSON Schema: {message[:_MAX_MESSAGE_CHARS]}") from exc


async def check_values(schemas: Schemas, values: Sequence[tuple[Place, Any, Any]]) -> None:
    """Raise Invalid that names what of inputs and outputs does not fit. A value that is not there counts as empty."""
    if schemas.inputs is None and schemas.outputs is None:
        return
    problems = await asyncio.to_thread(_find_problems, schemas, values)
    if problems:
        raise Invalid(problems)


def _find_problems(schemas: Schemas, values: Sequence[tuple[Place, Any, Any]]) -> list[Problem]:
    found: list[Problem] = []
    given = {name: schema for name, schema in msgspec.structs.asdict(schemas).items() if schema is not None}
    judged = [(name, weigh(schema), _validator(schema)) for name, schema in given.items()]
    for place, inputs, outputs in values:
        held = {"inputs": inputs or {}, "outputs": outputs or {}}
        for name, weight, validator in judged:
            if len(msgspec.json.encode(held[name])) * weight > MAX_WORK:
                return [Problem([*place, name], "is too large for a schema of this size", "schema_mismatch")]
            for error in validator.iter_errors(held[name]):
                where = [*place, name, *error.instance_path]
                found.append(Problem(where, error.message[:_MAX_MESSAGE_CHARS], "schema_mismatch"))
                if len(found) == _MAX_PROBLEMS:
                    return found
    return found


def _validator(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=jsonschema_rs.RegexOptions())
