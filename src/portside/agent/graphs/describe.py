"""What a graph looks like from outside: its drawing, its JSON schemas, its subgraphs (contract: section 3).

A schema that cannot be made, as of a state that holds a socket, is None; the others are told all the same.
"""

import functools
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import typing_extensions
from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel
from langgraph.graph.state import CompiledStateGraph
from pydantic import Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError

from portside.agent.graphs.factories import Graph
from portside.agent.types.assistants import Drawing, Schemas
from portside.kernel.codec import dump_user, load
from portside.kernel.errors import Invalid
from portside.kernel.logs import get_logger

log = get_logger(__name__)
Schema = dict[str, Any]
# Messages take a tenth of a second to describe, on a loop where runs go on; what a graph is does not change.
_schemas: WeakKeyDictionary[Any, Schemas] = WeakKeyDictionary()
_DEPTH = re.compile(r"[1-9][0-9]{0,8}")


def parse_xray(raw: str | None) -> int:
    """Read how deep a drawing looks into subgraphs; True is all the way. Raises Invalid."""
    flag = (raw or "false").lower()
    if flag in {"true", "false"}:
        return flag == "true"
    if _DEPTH.fullmatch(flag):
        return int(flag)
    raise Invalid.field(["query", "xray"], "Invalid xray value")


async def draw(graph: Graph, config: RunnableConfig, xray: int) -> Drawing:
    """Draw a graph; where a node comes from in the code is left out."""
    plain = load(dump_user((await graph.aget_graph(config, xray=xray)).to_json()))
    for node in plain["nodes"]:
        if isinstance(data := node.get("data"), dict):
            data.pop("id", None)
    return Drawing(plain["nodes"], plain["edges"])


async def subgraph_schemas(graph: Graph, namespace: str | None, *, recurse: bool) -> dict[str, Schemas]:
    """Return the schemas of a graph's subgraphs, or of the one at a namespace, by the nodes that hold them."""
    is_nested = namespace is not None and "|" in namespace
    found = graph.aget_subgraphs(namespace=namespace, recurse=recurse or is_nested)
    return {name: schemas_of(subgraph) async for name, subgraph in found}


def schemas_of(graph: Any) -> Schemas:
    """Return the schemas of a graph; what is no langgraph graph, as one on another server, may have none."""
    known = _schemas.get(graph)
    if known is None:
        known = _schemas[graph] = _schemas_of(graph)
    return known


def _schemas_of(graph: Any) -> Schemas:
    context = _attempt("context", lambda: _context_schema(graph))
    return Schemas(
        input_schema=_attempt("input", lambda: _input_schema(graph)),
        output_schema=_attempt("output", lambda: _output_schema(graph)),
        state_schema=_attempt("state", lambda: _state_schema(graph)),
        config_schema={} if context is None and _has_no_context(graph) else context,
        context_schema=context,
    )


def _has_no_context(graph: Any) -> bool:
    return getattr(graph, "context_schema", None) is None


def _attempt(kind: str, make: Callable[[], Schema | None]) -> Schema | None:
    try:
        return make()
    except Exception as exc:  # noqa: BLE001 - the types are the user's, and so is whatever they raise
        log.info("schema_not_made", kind=kind, error=f"{type(exc).__name__}: {exc}"[:300])
        return None


def _input_schema(graph: Any) -> Schema:
    kind = graph.builder.input_schema if isinstance(graph, CompiledStateGraph) else graph.InputType
    return _made(graph.get_input_jsonschema, kind)


def _output_schema(graph: Any) -> Schema:
    kind = graph.builder.output_schema if isinstance(graph, CompiledStateGraph) else graph.OutputType
    return _made(graph.get_output_jsonschema, kind)


def _context_schema(graph: Any) -> Schema | None:
    return None if _has_no_context(graph) else _made(graph.get_context_jsonschema, graph.context_schema)


def _state_schema(graph: Any) -> Schema:
    """Describe what a thread's state shows: every channel, none of them required; or the value of the only one."""
    shown = graph.stream_channels_asis
    if isinstance(shown, str):
        return TypeAdapter(modern(graph.channels[shown].ValueType)).json_schema()
    channels = {name: graph.channels[name] for name in shown}
    fields: dict[str, Any] = {
        f"channel_{place}": (modern(channel.ValueType), Field(None, alias=name))
        for place, (name, channel) in enumerate(channels.items())
        if isinstance(channel, BaseChannel)
    }
    schema: Schema = create_model(graph.get_name("State"), **fields).model_json_schema()
    return schema


def _made(make: Callable[[], Schema], kind: Any) -> Schema:
    """Let langgraph make a schema; it cannot where Python is older than 3.12 and a `typing.TypedDict` is in the way."""
    try:
        return make()
    except PydanticUserError as exc:
        if exc.code != "typed-dict-version":
            raise
        return TypeAdapter(modern(kind)).json_schema()


def modern(kind: Any, within: frozenset[Any] = frozenset()) -> Any:
    """Rebuild a type so that each `typing.TypedDict` in it is one that pydantic takes; one within itself is a dict."""
    if typing_extensions.is_typeddict(kind):
        return dict[str, Any] if kind in within else _modern_dict(kind, within | {kind})
    arguments = typing.get_args(kind)
    rebuilt = tuple(modern(argument, within) for argument in arguments)
    if rebuilt == arguments:
        return kind
    origin: Any = typing.get_origin(kind)
    if origin is typing.Annotated:
        return typing.Annotated[(rebuilt[0], *kind.__metadata__)]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, rebuilt)
    return origin[rebuilt]


def _modern_dict(kind: Any, within: frozenset[Any]) -> Any:
    hints = typing_extensions.get_type_hints(kind)
    fields = {name: modern(hint, within) for name, hint in hints.items()}
    required = kind.__required_keys__
    make: Any = typing_extensions.TypedDict
    rebuilt = make(
        kind.__name__,
        {
            name: typing_extensions.Required[field] if name in required else typing_extensions.NotRequired[field]
            for name, field in fields.items()
        },
    )
    rebuilt.__doc__ = kind.__doc__
    return rebuilt
