"""Describing graphs: drawings, schemas of every kind of state and context, and subgraphs."""

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict
from uuid import UUID

import msgspec
import pytest
import typing_extensions
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from pydantic import BaseModel, TypeAdapter

from portside.agent.assistants.descriptions import _build_request, parse_xray
from portside.agent.types.access import Caller
from portside.agent.types.assistants import Assistant
from portside.executor.graph_operations import draw, get_schemas, get_subgraph_schemas, modernize
from portside.kernel.errors import Invalid


class Old(TypedDict, total=False):
    """Made with typing's own."""

    number: Required[int]
    words: Annotated[list[str], operator.add]


class New(typing_extensions.TypedDict, total=False):
    """Made with typing's own."""

    number: typing_extensions.Required[int]
    words: Annotated[list[str], operator.add]


class Holder(TypedDict):
    old: Old
    many: list[Old | None]
    either: Old | int
    named: Annotated[dict[str, Old], "kept"]
    self: "list[Holder]"


class Limits(BaseModel):
    depth: int = 3


@dataclass
class Model:
    model: str = "small"


class Socket: ...


class Strange(TypedDict):
    socket: Socket


class Called(TypedDict):
    call: Callable[[], None]


def graph(state: Any, *, node: Any = lambda _: {}, **options: Any) -> Any:
    return StateGraph(state, **options).add_node("go", node).add_edge(START, "go").compile()


def describe(of: Any) -> dict[str, Any]:
    return json.loads(msgspec.json.encode(get_schemas(of)))


@pytest.mark.parametrize(
    ("raw", "depth"), [(None, False), ("", False), ("false", False), ("True", True), ("1", 1), ("12", 12)]
)
def test_xray_parameter_is_parsed(raw, depth):
    assert parse_xray(raw) is depth if isinstance(depth, bool) else parse_xray(raw) == depth


@pytest.mark.parametrize("raw", ["0", "-1", "1.5", "yes", "٣", "9" * 20])
def test_invalid_xray_parameter_is_refused(raw):
    with pytest.raises(Invalid, match="Invalid xray value"):
        parse_xray(raw)


@pytest.mark.parametrize("state", [Old, New])
def test_both_kinds_of_typed_dict_look_the_same(state):
    found = describe(graph(state))
    fields = {
        "number": {"title": "Number", "type": "integer"},
        "words": {"items": {"type": "string"}, "title": "Words", "type": "array"},
    }

    expected = {
        "description": "Made with typing's own.",
        "properties": fields,
        "required": ["number"],
        "title": state.__name__,
        "type": "object",
    }

    assert found["input_schema"] == found["output_schema"] == expected
    nothing = {name: {**field, "default": None} for name, field in fields.items()}
    assert found["state_schema"]["properties"] == nothing
    assert "required" not in found["state_schema"]
    assert (found["config_schema"], found["context_schema"]) == ({}, None)


@pytest.mark.needs("pydantic", "2.11")
def test_typed_dicts_within_others():
    schema = TypeAdapter(modernize(Holder)).json_schema()
    reference = {"$ref": "#/$defs/Old"}
    shapes = schema["properties"]
    assert shapes["old"] == reference
    assert shapes["many"]["items"] == {"anyOf": [reference, {"type": "null"}]}
    assert shapes["either"]["anyOf"] == [reference, {"type": "integer"}]
    assert shapes["named"]["additionalProperties"] == reference

    assert shapes["self"]["items"] == {"additionalProperties": True, "type": "object"}
    assert schema["$defs"]["Old"]["required"] == ["number"]
    assert modernize(dict[str, int]) == dict[str, int]


@pytest.mark.parametrize(
    ("context", "properties"),
    [
        (Model, {"model": {"default": "small", "title": "Model", "type": "string"}}),
        (Limits, {"depth": {"default": 3, "title": "Depth", "type": "integer"}}),
        (
            Old,
            {
                "number": {"title": "Number", "type": "integer"},
                "words": {"items": {"type": "string"}, "title": "Words", "type": "array"},
            },
        ),
    ],
)
def test_contexts_of_every_kind(context, properties):
    found = describe(graph(MessagesState, context_schema=context))
    assert found["context_schema"]["properties"] == properties
    assert found["config_schema"] == found["context_schema"]
    assert found["state_schema"]["properties"]["messages"]["default"] is None


def test_states_of_every_kind():
    for state in (Limits, Model):
        found = describe(graph(state))
        assert found["input_schema"]["properties"] == TypeAdapter(state).json_schema()["properties"]
        assert all(field["default"] is None for field in found["state_schema"]["properties"].values())

    names = {"_hidden": int, "json": str, "model_config": str}
    odd = typing_extensions.TypedDict("odd", names)  # type: ignore[misc]
    assert describe(graph(odd))["state_schema"]["properties"].keys() == names.keys()
    one = describe(graph(Annotated[list[int], operator.add], node=lambda _: [1]))
    assert one["state_schema"] == {"items": {"type": "integer"}, "type": "array"}


def test_missing_schema_is_null():
    found = describe(graph(Strange, input_schema=Old, context_schema=Model))
    assert (found["state_schema"], found["output_schema"]) == (None, None)
    assert found["input_schema"]["title"] == "Old"
    assert found["context_schema"]["title"] == "Model"
    found = describe(graph(Old, context_schema=Called))
    assert (found["config_schema"], found["context_schema"]) == (None, None)
    assert found["state_schema"]["properties"].keys() == {"number", "words"}


async def test_entrypoints():
    @entrypoint()
    async def work(inputs: Old) -> str:
        return ""

    found = describe(work)
    assert found["input_schema"]["required"] == ["number"]
    assert found["output_schema"]["type"] == found["state_schema"]["type"] == "string"
    assert found["config_schema"] == {}
    drawing = await draw(work, {}, xray=True)
    assert {node["id"] for node in drawing.nodes} == {"__start__", "work", "__end__"}


async def test_drawings_and_subgraphs():
    inner = StateGraph(Old).add_node("deep", graph(Old)).add_edge(START, "deep").compile()
    outer = StateGraph(Old).add_node("in", inner).add_edge(START, "in").compile()
    flat = await draw(outer, {}, xray=False)

    assert flat.nodes == [
        {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}},
        {"id": "in", "type": "runnable", "data": {"name": "in"}},
        {"id": "__end__"},
    ]

    assert flat.edges == [{"source": "__start__", "target": "in"}, {"source": "in", "target": "__end__"}]
    assert "in:deep" in [node["id"] for node in (await draw(outer, {}, xray=1)).nodes]
    assert "in:deep:go" in [node["id"] for node in (await draw(outer, {}, xray=2)).nodes]
    assert "in:deep:go" in [node["id"] for node in (await draw(outer, {}, xray=True)).nodes]

    async def names(namespace: str | None = None, *, recurse: bool = False) -> list[str]:
        return list(await get_subgraph_schemas(outer, namespace, recurse=recurse))

    assert await names() == ["in"]
    assert await names(recurse=True) == ["in", "in|deep"]
    assert await names("in") == ["in"]
    assert await names("in|deep") == ["in|deep"]
    assert await names("nowhere") == []


async def test_a_subgraph_on_another_server_has_no_schemas():
    remote = RemoteGraph("elsewhere")
    outer = StateGraph(Old).add_node("far", remote).add_edge(START, "far").compile()
    found = await get_subgraph_schemas(outer, None, recurse=True)
    assert found.keys() == {"far"}
    assert found["far"].state_schema is None
    assert found["far"].config_schema == {}


def test_context_of_an_assistant_names_neither_its_caller_nor_its_graph():
    spoofed = {"langgraph_auth_user_id": "root", "langgraph_auth_user": {"identity": "root"}, "graph_id": "other"}
    assistant = Assistant(
        assistant_id=UUID(int=1),
        graph_id="agent",
        name="",
        description=None,
        config={"tags": ["t"], "configurable": spoofed},
        context={**spoofed, "assistant_id": "other", "mine": 1},
        metadata={},
        version=1,
        created_at="",
        updated_at="",
    )
    request = _build_request(assistant, Caller("ada", user={"identity": "ada"}))
    configurable = request.config["configurable"]
    assert (request.graph_id, request.config["tags"], configurable["mine"]) == ("agent", ["t"], 1)
    assert (configurable["graph_id"], configurable["assistant_id"]) == ("agent", str(UUID(int=1)))
    assert configurable["langgraph_auth_user_id"] == "ada"
    assert "root" not in str(configurable)
