"""What a tool takes: the input schema of its graph, in the form that models and clients can deal with.

Tools take an object. A graph that takes something else gets it as the argument `input`. A conversation would be
described by pages of message types; a model that calls a tool says one thing, so `messages` is a text.
"""

from typing import Any, NamedTuple

Schema = dict[str, Any]
INPUT = "input"
MESSAGES = "messages"
_A_TEXT: Schema = {"type": "string", "description": "What to say to the agent, as a person would write it."}


class Takes(NamedTuple):
    """What a tool takes, and how its graph gets it: whole or as `input`, with a text as a conversation or as it is."""

    schema: Schema
    is_wrapped: bool = False
    converses: bool = False

    def input(self, arguments: dict[str, Any]) -> Any:
        """Return what the graph is given for the arguments of a call."""
        if self.is_wrapped:
            return arguments.get(INPUT)
        said = arguments.get(MESSAGES)
        if self.converses and isinstance(said, str):
            return {**arguments, MESSAGES: [{"type": "human", "content": said}]}
        return arguments


ANYTHING = Takes({"type": "object"})


def taken_by(given: Schema | None) -> Takes:
    """Return what a tool takes, by the schema of its graph's input."""
    schema = _resolved(given or {})
    if not schema:
        return ANYTHING
    if schema.get("type") != "object":
        definitions = schema.pop("$defs", {})
        inner = {"type": "object", "properties": {INPUT: schema}, "required": [INPUT], "$defs": definitions}
        return Takes(_pruned(inner), is_wrapped=True)
    properties = schema.get("properties", {})
    if properties.get(MESSAGES, _A_TEXT).get("type") == "string":
        return Takes(_pruned(schema))
    schema["properties"] = {**properties, MESSAGES: _A_TEXT}
    return Takes(_pruned(schema), converses=True)


def _resolved(schema: Schema) -> Schema:
    """Return a schema that says at its top what it is, instead of naming one of its definitions."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name)
    top = {**schema, **found} if isinstance(found, dict) else dict(schema)
    if isinstance(found, dict):
        top.pop("$ref")
    if "properties" in top:
        top.setdefault("type", "object")
    return top


def _pruned(schema: Schema) -> Schema:
    """Leave out the definitions that nothing names any more."""
    definitions = schema.pop("$defs", None) or {}
    wanted = _named(schema)
    used: Schema = {}
    while wanted:
        name = wanted.pop()
        if name in definitions and name not in used:
            used[name] = definitions[name]
            wanted |= _named(used[name])
    return {**schema, "$defs": dict(sorted(used.items()))} if used else schema


def _named(part: Any) -> set[str]:
    """Return the definitions that a part of a schema names."""
    found: set[str] = set()
    parts = [part]
    while parts:
        item = parts.pop()
        if isinstance(item, dict):
            parts += item.values()
            found.add(str(item.get("$ref", "")).removeprefix("#/$defs/"))
        elif isinstance(item, list):
            parts += item
    return found
