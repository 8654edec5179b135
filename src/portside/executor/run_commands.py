"""Commands of clients: checked by servers, and converted to langgraph's where graphs run."""

from typing import TYPE_CHECKING, Any

from portside.kernel.errors import Invalid

if TYPE_CHECKING:
    from langgraph.types import Command

_BODY = ("body", "command")


def parse_command(raw: dict[str, Any]) -> "Command[Any]":
    """Convert a client's command (`Command` of langgraph_sdk) to langgraph's. Raises Invalid that names the field."""
    from langgraph.types import Command, Send

    check_command(raw)
    goto: Any = raw.get("goto")
    if goto is None:
        goto = ()
    elif isinstance(goto, list):
        goto = [target if isinstance(target, str) else Send(target["node"], target["input"]) for target in goto]
    elif not isinstance(goto, str):
        goto = Send(goto["node"], goto["input"])

    return Command(goto=goto, update=_update(raw.get("update")), resume=raw.get("resume"))


def check_command(raw: dict[str, Any]) -> None:
    """Check a client's command, without langgraph. Raises Invalid that names the field."""
    goto = raw.get("goto")
    update = raw.get("update")
    if goto is None and update is None and raw.get("resume") is None:
        raise Invalid.field(_BODY, "Give at least one of resume, update and goto", "missing")

    if goto is not None:
        _check_goto(goto)

    _update(update)


def _check_goto(raw: Any) -> None:
    """Check a node name, a `{node, input}`, or a list of either kind."""
    if not isinstance(raw, list):
        _check_target(raw, "goto")
        return

    if len({type(item) for item in raw}) > 1:
        raise Invalid.field((*_BODY, "goto"), "A list must hold node names only, or {node, input} objects only")

    for index, item in enumerate(raw):
        _check_target(item, "goto", index)


def _check_target(raw: Any, *loc: str | int) -> None:
    if isinstance(raw, str):
        return
    if not isinstance(raw, dict):
        raise Invalid.field((*_BODY, *loc), "Expected a node name or {node, input}", "type_error")
    if not isinstance(raw.get("node"), str):
        raise Invalid.field((*_BODY, *loc, "node"), "Field required", "missing")

    if "input" not in raw:
        raise Invalid.field((*_BODY, *loc, "input"), "Field required", "missing")


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
