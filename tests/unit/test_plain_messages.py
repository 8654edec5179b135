"""A message that is read as the dict that is stored for it has the same JSON as the message itself."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels import LastValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy
from pydantic import BaseModel

from portside.executor.checkpoints.serde import make_serde
from portside.executor.graph_operations import reads_without_code
from portside.kernel.user_json import dump_user

CALL = {"name": "search", "args": {"q": "\u00e9", "n": [1, None]}, "id": "call-1", "type": "tool_call"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1}}


class Page(BaseModel):
    title: str
    messages: list[BaseMessage]


@dataclasses.dataclass
class Box:
    message: Any


def change(message: Any, **fields: Any) -> Any:
    """Return a message whose fields were assigned, which nothing validates."""
    for name, value in fields.items():
        setattr(message, name, value)
    return message


PLAIN: list[Any] = [
    HumanMessage("hello", id="1"),
    HumanMessage([{"type": "text", "text": "hello"}, "and"], name="anna"),
    SystemMessage("be brief", additional_kwargs={"a": {"b": [1.5, None]}}),
    AIMessage("", tool_calls=[CALL], usage_metadata=USAGE, response_metadata={"model": "m", "at": [1, {"x": True}]}),
    AIMessage("answer", id="2"),
    ToolMessage("found", tool_call_id="call-1", status="error"),
    ChatMessage("hello", role="critic"),
    RemoveMessage("3"),
]
OTHERS: list[Any] = [
    AIMessageChunk("chunk", id="4"),
    ToolMessage("found", tool_call_id="call-1", artifact={"raw": [1, 2]}),
    FunctionMessage("result", name="f"),
    AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": "bad"}]),
    HumanMessage("hello", extra="field"),
    change(
        AIMessage("late calls"),
        additional_kwargs={
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        },
    ),
    change(AIMessage("late usage"), usage_metadata={"total_tokens": 3, "input_tokens": 1, "output_tokens": 2}),
    change(AIMessage("late usage"), usage_metadata={**USAGE, "price": 1.0}),
    change(AIMessage("partial usage"), usage_metadata={}),
    change(AIMessage("call"), tool_calls=[{"args": {}, "name": "f", "id": "1"}]),
    change(AIMessage("call"), tool_calls=[{**CALL, "extras": {"a": 1}}]),
    change(HumanMessage("number"), id=5),
    change(HumanMessage("none"), content=None),
    change(HumanMessage("numbers"), content=[1, 2]),
]
NESTED: list[Callable[[Any], Any]] = [
    lambda message: [message, message],
    lambda message: {"a": [message, {"b": message}], 1: (message, {message.type})},
    lambda message: Page(title="t", messages=[message]),
    Box,
    lambda message: AIMessage("outer", additional_kwargs={"inner": message, "at": datetime(2026, 1, 2, tzinfo=UTC)}),
    lambda message: ToolMessage("outer", tool_call_id="1", artifact=message),
]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("message", PLAIN + OTHERS, ids=lambda message: f"{message.type} {message.content}"[:30])
def test_the_json_of_a_stored_message_is_that_of_the_message(message: Any):
    serde = make_serde()
    for value in (message, *(make(message) for make in NESTED)):
        stored = serde.dumps_typed(value)
        wanted = dump_user(serde.loads_typed(stored))
        assert dump_user(serde.loads_for_json(stored)) == wanted


@pytest.mark.parametrize("message", PLAIN, ids=lambda message: f"{message.type} {message.content}"[:30])
def test_usual_messages_are_not_created(message: Any):
    serde = make_serde()
    [read] = serde.loads_for_json(serde.dumps_typed([message]))
    assert type(read) is dict


def test_a_class_that_has_another_field_now_is_created():
    serde = make_serde()
    fields = {"content": "old", "additional_kwargs": {}, "response_metadata": {}, "type": "ai", "name": None, "id": "1"}
    stored = ormsgpack.packb(ormsgpack.Ext(5, ormsgpack.packb(["langchain_core.messages.ai", "AIMessage", fields, ""])))
    assert serde.loads_for_json(("msgpack", stored)) == AIMessage("old", id="1")


class Model(BaseModel):
    messages: list[BaseMessage] = []


class Inverted(LastValue[Any]):
    """A channel of the graph's author."""


def compile_graph(schema: Any, **options: Any) -> Any:
    builder = StateGraph(schema).add_node("answer", lambda _: {}, **options).add_edge(START, "answer")
    return builder.compile(checkpointer=InMemorySaver())


def test_states_are_read_for_json_only_if_no_code_of_the_graph_sees_them():
    assert reads_without_code(compile_graph(MessagesState))
    assert not reads_without_code(compile_graph(Model))
    assert not reads_without_code(compile_graph(MessagesState, cache_policy=CachePolicy()))
    own = compile_graph(MessagesState)
    own.channels["messages"] = Inverted(list)
    assert not reads_without_code(own)
