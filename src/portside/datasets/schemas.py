"""The JSON Schemas of a dataset's inputs and outputs, checked on every write.

Schemas come from untrusted clients. Nothing is fetched for one, patterns run in linear time (`RegexOptions`), and the
cost of a check is known before it begins: references stay inside the schema and never form a cycle, so the size of a
schema with every reference expanded bounds the work for a value. A short schema could otherwise expand to more than can
be checked.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from portside.kernel.errors import Invalid, Problem

Location = list[str | int]
MAX_EXPANDED_PARTS = 5_000
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")
MAX_WORK = 500_000_000
_MAX_PROBLEMS = 20
_MAX_MESSAGE_CHARS = 500


class SchemaTooLarge(Exception):
    """The schema refers to itself or to other documents, or is too large with its references expanded."""


def count_expanded_parts(schema: dict[str, Any]) -> int:
    """Count the objects and lists of a schema with every reference expanded.

    Raises SchemaTooLarge. The validator reports references that do not resolve.
    """
    try:
        return _SchemaSize(schema).count(schema)
    except RecursionError as exc:
        raise SchemaTooLarge("the references of the schema form a chain that is too long") from exc


class _SchemaSize:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._sizes: dict[str, int] = {}
        self._open: set[str] = set()
        """The references that are being counted: one of them again is a cycle."""

    def count(self, part: Any) -> int:
        """Return the expanded size of a part."""
        if not isinstance(part, (dict, list)):
            return 0

        total = 1
        for step, inner in part.items() if isinstance(part, dict) else enumerate(part):
            is_other_document = step == "$id" and part is not self._root and isinstance(inner, str)
            if step in _ELSEWHERE or is_other_document:
                raise SchemaTooLarge(f"{step} is not supported in schemas of datasets")

            is_reference = step == "$ref" and isinstance(inner, str)
            total += self._resolve(inner) if is_reference else self.count(inner)
            if total > MAX_EXPANDED_PARTS:
                raise SchemaTooLarge(
                    f"the schema has more than {MAX_EXPANDED_PARTS} parts with its references expanded"
                )

        return total

    def _resolve(self, reference: str) -> int:
        if reference in self._sizes:
            return self._sizes[reference]
        if reference in self._open:
            raise SchemaTooLarge(f"the schema refers to itself by {reference[:200]}, which is not supported")

        if not (reference == "#" or reference.startswith("#/")):
            problem = f"the schema refers to another document, which is not supported: {reference[:200]}"
            raise SchemaTooLarge(problem)

        self._open.add(reference)
        size = self.count(self._find(reference))
        self._open.discard(reference)

        self._sizes[reference] = size
        return size

    def _find(self, reference: str) -> Any:
        part: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list) and name.isdecimal() and int(name) < len(part):
                part = part[int(name)]
            else:
                part = part.get(name) if isinstance(part, dict) else None

        return part


class DatasetSchemas(msgspec.Struct):
    """The schemas of one dataset; None accepts everything."""

    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None


def check_schema(schema: dict[str, Any], field: str) -> None:
    """Check that a JSON Schema is valid, self-contained and finite. Raises Invalid."""
    try:
        count_expanded_parts(schema)
        _build_validator(schema)
    except SchemaTooLarge as exc:
        raise Invalid.field(["body", field], str(exc)) from exc
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        message = getattr(exc, "message", None) or str(exc)
        raise Invalid.field(["body", field], f"is not a JSON Schema: {message[:_MAX_MESSAGE_CHARS]}") from exc


async def check_values(schemas: DatasetSchemas, values: Sequence[tuple[Location, Any, Any]]) -> None:
    """Check inputs and outputs against their schemas; missing values count as empty. Raises Invalid."""
    if schemas.inputs is None and schemas.outputs is None:
        return

    problems = await asyncio.to_thread(_find_problems, schemas, values)
    if problems:
        raise Invalid(problems)


def _find_problems(schemas: DatasetSchemas, values: Sequence[tuple[Location, Any, Any]]) -> list[Problem]:
    problems: list[Problem] = []
    present = {name: schema for name, schema in msgspec.structs.asdict(schemas).items() if schema is not None}
    validators = [(name, count_expanded_parts(schema), _build_validator(schema)) for name, schema in present.items()]
    for location, inputs, outputs in values:
        values_by_name = {"inputs": inputs or {}, "outputs": outputs or {}}
        for name, size, validator in validators:
            if len(msgspec.json.encode(values_by_name[name])) * size > MAX_WORK:
                return [Problem([*location, name], "is too large for a schema of this size", "schema_mismatch")]

            for error in validator.iter_errors(values_by_name[name]):
                where = [*location, name, *error.instance_path]
                problems.append(Problem(where, error.message[:_MAX_MESSAGE_CHARS], "schema_mismatch"))
                if len(problems) == _MAX_PROBLEMS:
                    return problems

    return problems


def _build_validator(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=jsonschema_rs.RegexOptions())
