"""Graphs that the tests deploy: each shows one thing."""

import asyncio
import operator
import os
import time
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt


async def answer(state: MessagesState) -> dict:
    return {"messages": [AIMessage(f"echo: {state['messages'][-1].content}")]}


echo = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


class Draft(TypedDict):
    text: str
    decision: str


def draft(state: Draft) -> dict:
    return {"text": state["text"] + "!"}


def ask(state: Draft) -> dict:
    return {"decision": interrupt({"question": "approve?", "text": state["text"]})}


approval = (
    StateGraph(Draft)
    .add_node("draft", draft)
    .add_node("ask", ask)
    .add_edge(START, "draft")
    .add_edge("draft", "ask")
    .compile()
)


def inquire(state: Draft) -> dict:
    return {"decision": interrupt({"deep": state["text"]})}


child = StateGraph(Draft).add_node("inquire", inquire).add_edge(START, "inquire").compile()
nested = (
    StateGraph(Draft)
    .add_node("draft", draft)
    .add_node("child", child)
    .add_edge(START, "draft")
    .add_edge("draft", "child")
    .compile()
)


class Journal(TypedDict):
    done: Annotated[list[str], operator.add]
    pause_s: float


def step(name: str):
    async def run(state: Journal, config: RunnableConfig) -> dict:
        if mark := os.environ.get("STEP_LOG"):
            with Path(mark).open("a") as file:
                file.write(name + "\n")

        if config["configurable"].get("hold_at") == name:
            await asyncio.Event().wait()

        gate = config["configurable"].get("gates", {}).get(name)
        while gate and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process opens the gate
            await asyncio.sleep(0.01)

        await asyncio.sleep(state.get("pause_s", 0))
        return {"done": [name]}

    return run


steps = (
    StateGraph(Journal)
    .add_node("one", step("one"))
    .add_node("two", step("two"))
    .add_node("three", step("three"))
    .add_edge(START, "one")
    .add_edge("one", "two")
    .add_edge("two", "three")
    .compile()
)


class Gated(Journal):
    gate: str


async def block(state: Gated) -> dict:
    while not Path(state["gate"]).exists():  # noqa: ASYNC240 - a node that blocks its loop is the point
        time.sleep(0.01)  # noqa: ASYNC251
    return {"done": ["blocked"]}


blocking = StateGraph(Gated).add_node("block", block).add_edge(START, "block").compile()


def explode(_state: Journal) -> dict:
    raise ValueError("kaboom")


boom = StateGraph(Journal).add_node("explode", explode).add_edge(START, "explode").compile()


def factory(config: dict):
    who = config["configurable"].get("who", "nobody")

    def greet(_state: Journal) -> dict:
        return {"done": [f"hello {who}"]}

    return StateGraph(Journal).add_node("greet", greet).add_edge(START, "greet").compile()


def configured(config: dict):
    """A graph whose nodes have the names that the configuration says, and which asks at the last of them."""
    first, last = config["configurable"].get("names", ["none", "never"])
    builder = StateGraph(Journal).add_node(first, lambda _state: {"done": [first]})
    builder.add_node(last, lambda _state: {"done": [interrupt(f"{last}?")]})
    return builder.add_edge(START, first).add_edge(first, last).compile()


def doze(state: Gated) -> dict:
    while not Path(state["gate"]).exists():
        time.sleep(0.01)

    time.sleep(state["pause_s"])
    if mark := os.environ.get("STEP_LOG"):
        with Path(mark).open("a") as file:
            file.write("dozed\n")

    return {"done": ["dozed"]}


threaded = StateGraph(Gated).add_node("doze", doze).add_edge(START, "doze").compile()

deep = StateGraph(Journal).add_node("inner", steps).add_edge(START, "inner").compile()


class Person(TypedDict):
    name: str


def introduce(_state: Journal, runtime: Runtime[Person]) -> dict:
    return {"done": [runtime.context["name"] if runtime.context else "nobody"]}


contextual = (
    StateGraph(Journal, context_schema=Person).add_node("introduce", introduce).add_edge(START, "introduce").compile()
)


def decide(state: Draft) -> dict:
    schema = {"type": "string", "enum": ["yes", "no"]}
    return {"decision": interrupt({"question": "approve?"}, response_schema=schema)}


choice = StateGraph(Draft).add_node("decide", decide).add_edge(START, "decide").compile()
