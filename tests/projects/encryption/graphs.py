"""Graphs that leave something in every place where an agent server stores anything."""

import operator
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


class State(MessagesState):
    word: str
    notes: Annotated[list[str], operator.add]
    tenant: str


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


async def remember(state: State, config: RunnableConfig) -> dict[str, Any]:
    word = state["word"]
    store = get_store()
    await store.aput(("notes",), "last", {"text": word, "tenant": "acme"})
    found = await store.aget(("notes",), "last")

    get_stream_writer()({"reported": word})
    return {"messages": [AIMessage(f"heard {word}")], "notes": [found.value["text"] if found else "lost"]}


def ask(state: State) -> dict[str, Any]:
    return {"notes": [interrupt({"question": state["word"]})]}


def fail(state: State) -> dict[str, Any]:
    raise ValueError(f"no {state['word']}")


def inner() -> Any:
    graph = StateGraph(State)
    graph.add_node("remember", remember)
    graph.add_edge(START, "remember")
    return graph.compile()


def build(*nodes: tuple[str, Any]) -> Any:
    graph = StateGraph(State)
    last = START
    for name, node in nodes:
        graph.add_node(name, node)
        graph.add_edge(last, name)
        last = name

    graph.add_edge(last, END)
    return graph.compile()


agent = build(("inner", inner()), ("remember", remember))
asker = build(("remember", remember), ("ask", ask))
failing = build(("fail", fail))
