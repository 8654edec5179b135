"""Descriptions of a graph: its drawing, its schemas and its subgraphs.

A schema that cannot be made, for example of a state with a socket, is None; the others are returned all the same (spec:
section 3).
"""

import functools
import json
import logging
import operator
import types
import typing
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import typing_extensions
from langgraph.channels.base import BaseChannel
from langgraph.graph.state import CompiledStateGraph
from pydantic import Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError

from portside.executor.load import Graph
from portside.executor.requests import Drawing, Schemas
from portside.kernel.user_json import dump_user

log = logging.getLogger(__name__)
Schema = dict[str, Any]
_QUALIFIERS = (typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly)
# The schema of messages takes 0.1 s on a loop that executes runs. It never changes, so it is cached.
_schemas: WeakKeyDictionary[Any, Schemas] = WeakKeyDictionary()


async def draw(graph: Graph, config: Any, xray: int) -> Drawing:
    """Draw a graph, without the source locations of its nodes."""
    plain = json.loads(dump_user((await graph.aget_graph(config, xray=xray)).to_json()))
    for node in plain["nodes"]:
        if isinstance(data := node.get("data"), dict):
            data.pop("id", None)
    return Drawing(plain["nodes"], plain["edges"])


async def subgraph_schemas(graph: Graph, namespace: str | None, *, recurse: bool) -> dict[str, Schemas]:
    """Return the schemas of a graph's subgraphs, or of the one at a namespace, by node name."""
    is_nested = namespace is not None and "|" in namespace
    found = graph.aget_subgraphs(namespace=namespace, recurse=recurse or is_nested)
    return {name: schemas_of(subgraph) async for name, subgraph in found}


def schemas_of(graph: Any) -> Schemas:
    """Return the schemas of a graph; a remote graph may have none."""
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
    except Exception as exc:  # noqa: BLE001 - the types are the user's code
        fields = {"kind": kind, "error": f"{type(exc).__name__}: {exc}"[:300]}
        log.info("a schema of a graph could not be made", extra={"fields": fields})
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
    """Return the schema of a thread's state: every channel, none required; or the value of the only channel."""
    shown = graph.stream_channels_asis
    if isinstance(shown, str):
        return TypeAdapter(modern(graph.channels[shown].ValueType)).json_schema()
    channels = {name: graph.channels[name] for name in shown}
    fields: dict[str, Any] = {
        f"channel_{index}": (modern(channel.ValueType), Field(None, alias=name))
        for index, (name, channel) in enumerate(channels.items())
        if isinstance(channel, BaseChannel)
    }
    schema: Schema = create_model(graph.get_name("State"), **fields).model_json_schema()
    return schema


def _made(make: Callable[[], Schema], kind: Any) -> Schema:
    """Make a schema with langgraph, or without it where it fails: before Python 3.12 on `typing.TypedDict`."""
    try:
        return make()
    except PydanticUserError as exc:
        if exc.code != "typed-dict-version":
            raise
        return TypeAdapter(modern(kind)).json_schema()


def modern(kind: Any, enclosing: frozenset[Any] = frozenset()) -> Any:
    """Replace each `typing.TypedDict` in a type by one that pydantic accepts; a recursive one becomes a dict."""
    if typing_extensions.is_typeddict(kind):
        return dict[str, Any] if kind in enclosing else _modern_dict(kind, enclosing | {kind})
    arguments = typing.get_args(kind)
    rebuilt = tuple(modern(argument, enclosing) for argument in arguments)
    origin: Any = typing.get_origin(kind)
    if origin in _QUALIFIERS:
        # Older versions of langgraph leave these qualifiers on the channels of a state.
        return rebuilt[0]
    if rebuilt == arguments:
        return kind
    if origin is typing.Annotated:
        return typing.Annotated[(rebuilt[0], *kind.__metadata__)]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, rebuilt)
    return origin[rebuilt]


def _modern_dict(kind: Any, enclosing: frozenset[Any]) -> Any:
    hints = typing_extensions.get_type_hints(kind)
    fields = {name: modern(hint, enclosing) for name, hint in hints.items()}
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
