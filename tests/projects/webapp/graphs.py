"""Graphs that call the server they run in, and one that returns its input."""

import asyncio
from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client

early = get_client()


class Text(TypedDict, total=False):
    text: str
    parts: list[str]


async def shout(state: Text) -> Text:
    return {"text": state["text"].upper()}


async def ask(state: Text) -> Text:
    """Ask the child in every way there is, with a client from the import and one from just now."""
    waited = await early.runs.wait(None, "child", input={"text": state["text"]})
    stream = get_client().runs.stream(None, "child", input={"text": "streamed"}, stream_mode="values")
    parts = [f"{part.event}:{part.data['text']}" if part.event == "values" else part.event async for part in stream]
    return {"text": waited["text"], "parts": parts}


def ask_in_thread(state: Text) -> Text:
    """Ask from a node that is no coroutine, on an event loop of its own."""

    async def count() -> int:
        return await get_client().threads.count()

    return {"parts": [*state["parts"], f"threads:{asyncio.run(count())}"]}


def tell(_state: Text, config: RunnableConfig) -> Text:
    configurable = config["configurable"]
    return {"parts": sorted(f"{key}={value}" for key, value in configurable.items() if key.startswith("x-"))}


child = StateGraph(Text).add_node("shout", shout).add_edge(START, "shout").compile()
parent = (
    StateGraph(Text)
    .add_node("ask", ask)
    .add_node("thread", ask_in_thread)
    .add_edge(START, "ask")
    .add_edge("ask", "thread")
    .compile()
)
reported = StateGraph(Text).add_node("tell", tell).add_edge(START, "tell").compile()
