"""Agents that other agents talk to: each shows one thing of the A2A protocol."""

import asyncio
from pathlib import Path
from typing import TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import interrupt


class Topical(MessagesState):
    topic: str


class Manners(TypedDict, total=False):
    greeting: str


async def repeat(state: Topical, runtime: Runtime[Manners]) -> dict:
    said = state["messages"][-1].content
    text = said if isinstance(said, str) else ", ".join(block["type"] for block in said)
    about = f" about {state['topic']}" if state.get("topic") else ""
    return {"messages": [AIMessage(f"{(runtime.context or {}).get('greeting', 'echo')}: {text}{about}")]}


echo = StateGraph(Topical, context_schema=Manners).add_node("repeat", repeat).add_edge(START, "repeat").compile()


async def speak(_state: MessagesState) -> dict:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    return {"messages": [await model.ainvoke("speak")]}


talk = StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak").compile()


def inquire(state: MessagesState) -> dict:
    return {"messages": [AIMessage(f"heard {interrupt('May I continue?')}")]}


ask = StateGraph(MessagesState).add_node("inquire", inquire).add_edge(START, "inquire").compile()


def ask_for(name: str):
    def run(_state: MessagesState) -> dict:
        return {"messages": [AIMessage(f"{name} is {interrupt({'name': name})}")]}

    return run


both = (
    StateGraph(MessagesState)
    .add_node("left", ask_for("left"))
    .add_node("right", ask_for("right"))
    .add_edge(START, "left")
    .add_edge(START, "right")
    .compile()
)


class Order(TypedDict, total=False):
    dish: str
    approved: str
    receipt: str


def approve(state: Order) -> dict:
    return {"approved": interrupt({"approve": state["dish"]}) if state["dish"] == "lobster" else "at once"}


def charge(state: Order) -> dict:
    return {"receipt": f"one {state['dish']}"}


form = (
    StateGraph(Order)
    .add_node("approve", approve)
    .add_node("charge", charge)
    .add_edge(START, "approve")
    .add_edge("approve", "charge")
    .compile()
)


@tool
def look_up(place: str) -> str:
    """Look up the weather."""
    return f"rain in {place}"


@tool
def look_away() -> str:
    """Look up nothing."""
    return "secret"


def call(_state: MessagesState) -> dict:
    calls = [
        {"name": "look_up", "args": {"place": "Bergen"}, "id": "call-1", "type": "tool_call"},
        {"name": "look_away", "args": {}, "id": "call-2", "type": "tool_call"},
    ]

    return {"messages": [AIMessage("", tool_calls=calls)]}


def conclude(_state: MessagesState) -> dict:
    return {"messages": [AIMessage("take an umbrella")]}


tools = (
    StateGraph(MessagesState)
    .add_node("call", call)
    .add_node("tools", ToolNode([look_up, look_away]))
    .add_node("conclude", conclude)
    .add_edge(START, "call")
    .add_edge("call", "tools")
    .add_edge("tools", "conclude")
    .compile()
)


async def wait(state: MessagesState) -> dict:
    """Wait until the test opens the gate, which is the file that the message names."""
    while not Path(state["messages"][-1].content).exists():  # noqa: ASYNC110, ASYNC240 - it is in another process
        await asyncio.sleep(0.02)
    return {"messages": [AIMessage("through")]}


gate = StateGraph(MessagesState).add_node("wait", wait).add_edge(START, "wait").compile()


def explode(_state: MessagesState) -> dict:
    raise ValueError("kaboom")


boom = StateGraph(MessagesState).add_node("explode", explode).add_edge(START, "explode").compile()
