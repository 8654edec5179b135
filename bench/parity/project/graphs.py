"""The graphs that both servers run: each shows one thing, none is slow but by its input."""

import asyncio
import operator
from pathlib import Path
from typing import Annotated

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict


async def answer(state: MessagesState) -> dict:
    return {"messages": [AIMessage(f"echo: {state['messages'][-1].content}")]}


echo = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


async def chat(_state: MessagesState) -> dict:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three four")]))
    return {"messages": [await model.ainvoke("go")]}


fake_chat = StateGraph(MessagesState).add_node("chat", chat).add_edge(START, "chat").compile()


class Draft(TypedDict):
    text: str
    decision: str


def draft(state: Draft) -> dict:
    return {"text": state["text"] + "!"}


def ask(state: Draft) -> dict:
    return {"decision": interrupt({"question": "approve?", "text": state["text"]})}


def fin(state: Draft) -> dict:
    return {"text": f"done:{state['decision']}"}


approval = (
    StateGraph(Draft)
    .add_node("draft", draft)
    .add_node("ask", ask)
    .add_node("fin", fin)
    .add_edge(START, "draft")
    .add_edge("draft", "ask")
    .add_edge("ask", "fin")
    .compile()
)


class Foo(TypedDict):
    foo: Annotated[list[str], operator.add]


def asks(name: str):
    return lambda _state: {"foo": [f"{name}:{interrupt(name)}"]}


two_questions = (
    StateGraph(Foo)
    .add_node("left", asks("left"))
    .add_node("right", asks("right"))
    .add_edge(START, "left")
    .add_edge(START, "right")
    .compile()
)


class Ticks(TypedDict):
    ticks: Annotated[list[int], operator.add]
    count: int
    pause_s: float


async def tick(state: Ticks, config: RunnableConfig) -> Command:
    await asyncio.sleep(state.get("pause_s", 0.2))
    done = len(state.get("ticks", [])) + 1

    # A scene holds a run after its first tick until it makes this file.
    gate = config["configurable"].get("gate")
    while done > 1 and gate and not await asyncio.to_thread(Path(gate).exists):  # noqa: ASYNC110 - made by another process
        await asyncio.sleep(0.01)

    return Command(update={"ticks": [done]}, goto="tick" if done < state.get("count", 10) else "__end__")


slow = StateGraph(Ticks).add_node("tick", tick, destinations=("tick", "__end__")).add_edge(START, "tick").compile()


def says(word: str):
    return lambda _state: {"foo": [word]}


child = (
    StateGraph(Foo)
    .add_node("sub1", says("sub1"))
    .add_node("sub2", says("sub2"))
    .add_edge(START, "sub1")
    .add_edge("sub1", "sub2")
    .compile()
)
parent = (
    StateGraph(Foo)
    .add_node("pre", says("pre"))
    .add_node("child", child)
    .add_edge(START, "pre")
    .add_edge("pre", "child")
    .compile()
)

inner = StateGraph(Foo).add_node("ia", asks("ia")).add_edge(START, "ia").compile()
nested_approval = StateGraph(Foo).add_node("inner", inner).add_edge(START, "inner").compile()

twostep = (
    StateGraph(Foo).add_node("a", says("a")).add_node("b", says("b")).add_edge(START, "a").add_edge("a", "b").compile()
)


class Settings(TypedDict, total=False):
    greeting: str
    times: int


class Said(TypedDict):
    said: str


def greet(_state: Said, runtime: Runtime[Settings]) -> dict:
    context = runtime.context or {}
    return {"said": " ".join([context.get("greeting", "hello")] * context.get("times", 1))}


configurable = StateGraph(Said, context_schema=Settings).add_node("greet", greet).add_edge(START, "greet").compile()


class Number(TypedDict):
    n: int


def ok(state: Number) -> dict:
    return {"n": state.get("n", 0) + 1}


def bad(_state: Number) -> dict:
    raise ValueError("kaboom")


boom = StateGraph(Number).add_node("ok", ok).add_node("bad", bad).add_edge(START, "ok").add_edge("ok", "bad").compile()


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


def shout(state: Question) -> dict:
    return {"answer": state["question"].upper()}


plain = (
    StateGraph(Question, input_schema=Question, output_schema=Answer)
    .add_node("shout", shout)
    .add_edge(START, "shout")
    .compile()
)


def write(_state: Said) -> dict:
    get_stream_writer()({"progress": 1})
    get_stream_writer()("half")
    return {"said": "written"}


writer = StateGraph(Said).add_node("write", write).add_edge(START, "write").compile()


async def keep(state: Said) -> dict:
    store = get_store()
    before = await store.aget(("parity", "graph"), state["said"])
    await store.aput(("parity", "graph"), state["said"], {"seen": (before.value["seen"] if before else 0) + 1})
    return {"said": str((before.value["seen"] if before else 0) + 1)}


remember = StateGraph(Said).add_node("keep", keep).add_edge(START, "keep").compile()
