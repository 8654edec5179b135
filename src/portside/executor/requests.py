"""What goes into the execution of a graph, and what comes out: a request, events and an outcome. All is plain data."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from langgraph.types import Command, Send

from portside.kernel.errors import Invalid


@dataclass(slots=True, kw_only=True)
class RunRequest:
    """One run of a graph, with the names and defaults of the API (spec: section 5)."""

    graph_id: str
    input: Any = None
    command: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] | None = None
    stream_modes: list[str] = field(default_factory=lambda: ["values"])
    stream_subgraphs: bool = False
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    durability: Literal["sync", "async", "exit"] = "async"
    strict_resume: bool = False
    """Fail if the command answers an interrupt that is not open, instead of ignoring the answer."""
    tracer: dict[str, Any] | None = None
    """The tracing project and the dataset example of the run, if tracing is on."""
    attempt: int = 1
    is_ephemeral: bool = False
    """The thread was created for this run, and is deleted when the run ends."""
    resume: bool = False
    """An earlier attempt wrote a checkpoint: continue from it, without the input or the command."""


class Emitted(NamedTuple):
    """An event of a run as clients receive it: its name and its JSON."""

    event: str
    data: bytes


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    values: bytes | None
    """The JSON of the final values, with `__interrupt__` if interrupts are open; None if a failed run has none."""
    row_values: bytes | None = None
    """The JSON of the values without the long lists that are in the last checkpoint; None if it has none."""
    long_values: dict[str, str] | None = None
    """The versions of those lists in the checkpoint, by their keys."""
    interrupts: dict[str, list[dict[str, Any]]]
    """The open interrupts by task id: `{id, value}`, and `response_schema` if the graph gives one."""
    has_next: bool
    """Whether the graph stopped before its end without a failure: the thread is interrupted."""
    error: dict[str, str] | None
    """The class and the message of the exception that ended the run, as `{error, message}`."""
    is_refused: bool = False
    """The run failed before it changed anything, so the thread keeps its state."""


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
