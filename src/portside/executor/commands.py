"""Commands of clients, as langgraph takes them."""

from typing import Any

from langgraph.types import Command, Send

from portside.kernel.errors import Invalid

_BODY = ("body", "command")


def parse_command(raw: dict[str, Any]) -> Command[Any]:
    """Convert a client's command to langgraph's (spec: section 5.1). Raises Invalid that names the field."""
    goto, update, resume = raw.get("goto"), raw.get("update"), raw.get("resume")
    if goto is None and update is None and resume is None:
        raise Invalid.field(_BODY, "Give at least one of resume, update and goto", "missing")
    return Command(goto=() if goto is None else _goto(goto), update=_update(update), resume=resume)


def _goto(raw: Any) -> Any:
    """Parse a node name, a `{node, input}`, or a list of either kind."""
    if not isinstance(raw, list):
        return _target(raw, "goto")
    if len({type(item) for item in raw}) > 1:
        raise Invalid.field((*_BODY, "goto"), "A list must hold node names only, or {node, input} objects only")
    return [_target(item, "goto", index) for index, item in enumerate(raw)]


def _target(raw: Any, *loc: str | int) -> str | Send:
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, dict):
        raise Invalid.field((*_BODY, *loc), "Expected a node name or {node, input}", "type_error")
    if not isinstance(raw.get("node"), str):
        raise Invalid.field((*_BODY, *loc, "node"), "Field required", "missing")
    if "input" not in raw:
        raise Invalid.field((*_BODY, *loc, "input"), "Field required", "missing")
    return Send(raw["node"], raw["input"])


def _update(raw: Any) -> Any:
    """Parse an object, or a list of `[channel, value]` pairs."""
    if raw is None or isinstance(raw, dict):
        return raw
    if not isinstance(raw, list):
        raise Invalid.field((*_BODY, "update"), "Expected an object or a list of [key, value] pairs", "type_error")
    for index, pair in enumerate(raw):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise Invalid.field((*_BODY, "update", index), "Expected a [key, value] pair", "type_error")
    return [(key, value) for key, value in raw]
