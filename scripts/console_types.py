"""TypeScript types of an OpenAPI document: an interface for each schema, and one table of all operations.

The console's client takes paths and methods from that table, so a route that changed is an error of the type check.
"""

import json
import re
from typing import Any

NOTE = "// Written by `make generate` from the OpenAPI document; edit the routes.\n"
# Any JSON, and the unknown fields of objects: types of their own would hide misspelled fields.
JSON = {"$ref": "#/components/schemas/Json"}
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def typescript(document: dict[str, Any]) -> str:
    """Return the module with the types of a document."""
    lines = [NOTE]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines.append(f"export type {_identifier(name)} = {'unknown' if name == 'Json' else _type(schema)};\n")

    lines.append("export interface Operations {")

    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            lines.append(f"  {json.dumps(f'{method.upper()} {path}')}: {_operation(operation)};")

    return "\n".join([*lines, "}"]) + "\n"


def _operation(operation: dict[str, Any]) -> str:
    parameters = operation["parameters"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    success = [text for status, text in sorted(operation["responses"].items()) if status.startswith("2")]
    content = success[0].get("content", {}).get("application/json") if success else None

    return (
        f"{{ path: {_parameters(parameters, 'path')}; query: {_parameters(parameters, 'query')}; "
        f"body: {_type(body['schema']) if body else 'undefined'}; "
        f"response: {_type(content['schema']) if content else 'undefined'} }}"
    )


def _parameters(parameters: list[dict[str, Any]], place: str) -> str:
    named = [
        f"{_key(each['name'])}{'' if each['required'] else '?'}: {_type(each.get('schema', {}))}"
        for each in parameters
        if each["in"] == place
    ]

    return f"{{ {'; '.join(named)} }}" if named else "Record<never, never>"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return "unknown" if name == "Json" else _identifier(name)

    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " | ".join(json.dumps(value) for value in values)
    if parts := schema.get("anyOf", schema.get("oneOf")):
        return " | ".join(dict.fromkeys(_type(part) for part in parts))

    kind = schema.get("type")
    return _array(schema) if kind == "array" else _object(schema) if kind == "object" else _PLAIN.get(kind, "unknown")


def _array(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type(part) for part in schema['prefixItems'])}]"
    return f"({_type(schema.get('items', {}))})[]"


def _object(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", []))
    fields = [
        f"{_key(name)}{'' if name in required else '?'}: {_type(part)}"
        for name, part in schema.get("properties", {}).items()
    ]
    if fields:
        return f"{{ {'; '.join(fields)} }}"

    others = schema.get("additionalProperties", JSON)
    return f"Record<string, {_type(others) if isinstance(others, dict) else 'unknown'}>"


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
