"""Schemas of datasets: accepted ones, and those refused before they cost memory or time."""

from typing import Any

import pytest

from portside.datasets.schemas import DatasetSchemas, check_schema, check_values
from portside.kernel.errors import Invalid

DOUBLING: dict[str, Any] = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
}
REFUSED: dict[str, dict[str, Any]] = {
    "doubles": DOUBLING,
    "names itself": {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
    "goes in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "leads to a host": {"$ref": "http://127.0.0.1:1/x.json"},
    "leads to a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "moves its base": {"properties": {"a": {"$id": "http://x/", "$ref": "#/a"}}},
    "is dynamic": {"$dynamicRef": "#a"},
    "is a long chain": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2000)} | {"d2000": {}},
    },
    "is large": {"anyOf": [{"const": n} for n in range(6000)]},
    "looks back": {"pattern": "(a)\\1"},
    "is no type": {"type": "colour"},
    "leads nowhere": {"$ref": "#/$defs/none"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_schemas_that_are_expensive_or_refer_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_schema(REFUSED[name], "inputs_schema_definition")
    assert caught.value.problems[0].loc == ["body", "inputs_schema_definition"]


async def test_references_are_resolved_for_values() -> None:
    name = {"type": "object", "required": ["first"], "properties": {"first": {"pattern": "^(a+)+$"}}}
    schema = {"properties": {"one": {"$ref": "#/$defs/a~1b"}, "two": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": name}}
    check_schema(schema, "inputs_schema_definition")
    good = {"one": {"first": "a"}, "two": {"first": "aa"}}

    await check_values(DatasetSchemas(schema), [(["body"], good, None)])
    with pytest.raises(Invalid) as caught:
        bad = {"one": {"first": "a" * 50_000 + "!"}, "two": {}}
        await check_values(DatasetSchemas(schema), [(["body", "id"], bad, None)])

    places = sorted(problem.loc for problem in caught.value.problems)
    assert places == [["body", "id", "inputs", "one", "first"], ["body", "id", "inputs", "two"]]


async def test_a_value_too_large_for_its_schema_is_refused_before_validation() -> None:
    schema = {"anyOf": [{"const": n} for n in range(4000)]}
    check_schema(schema, "inputs_schema_definition")
    with pytest.raises(Invalid, match="too large"):
        await check_values(DatasetSchemas(schema), [(["body"], {"text": "x" * 200_000}, None)])
