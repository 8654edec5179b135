"""Graphs that are called as tools; those whose names begin with `test_` are what the protocol's own tests ask for."""

import asyncio
import json
from pathlib import Path
from typing import TypedDict

from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt


class Person(TypedDict):
    name: str


async def answer(state: MessagesState, runtime: Runtime[Person]) -> dict:
    name = runtime.context["name"] if runtime.context else "nobody"
    return {"messages": [AIMessage(f"{name} hears {state['messages'][-1].content}")]}


echo = StateGraph(MessagesState, context_schema=Person).add_node("answer", answer).add_edge(START, "answer").compile()


def show(state: MessagesState) -> dict:
    """Answer with the blocks of content that the message holds as JSON."""
    return {"messages": [AIMessage(json.loads(str(state["messages"][-1].content)))]}


show_blocks = StateGraph(MessagesState).add_node("show", show).add_edge(START, "show").compile()


class Draft(TypedDict):
    text: str
    decision: str


def ask(state: Draft) -> dict:
    return {"decision": interrupt({"question": "approve?", "text": state["text"]})}


approval = StateGraph(Draft).add_node("ask", ask).add_edge(START, "ask").compile()


SIZE = {"type": "object", "properties": {"size": {"type": "string", "enum": ["S", "L"]}}, "required": ["size"]}


def fill(_state: Draft, runtime: Runtime[Person]) -> dict:
    size = interrupt({"message": "Which size?", "schema": SIZE})["size"]
    is_sure = interrupt({"question": "Sure?", "schema": {"type": "boolean"}})
    return {"decision": f"{size} {is_sure} for {(runtime.context or {}).get('name')}"}


form = StateGraph(Draft, context_schema=Person).add_node("fill", fill).add_edge(START, "fill").compile()


def ask_both(name: str):
    def run(_state: Draft) -> dict:
        return {name: interrupt(f"What {name}?")}

    return run


both = (
    StateGraph(Draft)
    .add_node("left", ask_both("text"))
    .add_node("right", ask_both("decision"))
    .add_edge(START, "left")
    .add_edge(START, "right")
    .compile()
)


@entrypoint()
async def shout(said: str) -> str:
    """Take a text and return one: no object on either side."""
    return said.upper()


class Gate(TypedDict):
    path: str
    done: str


async def wait(state: Gate) -> dict:
    """Say that the run is under way, and wait until the test opens the gate; both are files."""
    gate = Path(state["path"])
    gate.with_suffix(".begun").touch()
    try:
        while not gate.exists():  # noqa: ASYNC110, ASYNC240 - the gate is in another process
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        gate.with_suffix(".cancelled").touch()
        raise

    return {"done": "through"}


gate = StateGraph(Gate).add_node("wait", wait).add_edge(START, "wait").compile()


def say(_state: Draft) -> dict:
    return {"text": "This is a simple text response for testing."}


def fail(_state: Draft) -> dict:
    raise ValueError("This tool intentionally returns an error for testing")


async def count(_state: Draft) -> dict:
    write = get_stream_writer()
    for reached in (0, 50, 100):
        write({"progress": reached, "total": 100, "message": f"{reached} of 100"})
        await asyncio.sleep(0)

    return {"text": "counted"}


simple_text = StateGraph(Draft).add_node("say", say).add_edge(START, "say").compile()
error_handling = StateGraph(Draft).add_node("fail", fail).add_edge(START, "fail").compile()
with_progress = StateGraph(Draft).add_node("count", count).add_edge(START, "count").compile()
