"""What the servers run while they are measured: next to nothing, so that what is measured is the server."""

import asyncio
import random
import string
import time

from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

LETTERS = string.ascii_letters + string.digits + " "


async def answer(state: MessagesState) -> dict:
    return {"messages": [AIMessage(f"echo: {state['messages'][-1].content}")]}


async def say(_state: MessagesState) -> dict:
    """Say 20 tokens in a second, as a quick model does."""
    write = get_stream_writer()
    for number in range(20):
        write(AIMessageChunk(f"token {number} ", id="answer").model_dump())
        await asyncio.sleep(0.05)

    return {"messages": [AIMessage("all said", id="answer")]}


class Count(TypedDict):
    count: int


async def write_burst(state: Count) -> dict:
    write = get_stream_writer()
    for number in range(state["count"]):
        write({"number": number, "text": "a piece of an answer"})
        if number % 10 == 9:
            await asyncio.sleep(0)

    return {"count": 0}


echo = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
tokens = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say").compile()
burst = StateGraph(Count).add_node("burst", write_burst).add_edge(START, "burst").compile()


class Work(TypedDict):
    ms: int


async def work_hard(state: Work) -> dict:
    until = time.thread_time() + state["ms"] / 1000
    while time.thread_time() < until:
        sum(range(1000))

    return {"ms": 0}


heavy = StateGraph(Work).add_node("work_hard", work_hard).add_edge(START, "work_hard").compile()


def _text(characters: int) -> str:
    return "".join(random.choices(LETTERS, k=characters))


async def think(_state: MessagesState) -> dict:
    return {"messages": [AIMessage(_text(600))]}


async def reply(_state: MessagesState) -> dict:
    return {"messages": [AIMessage(_text(400))]}


def _conversation() -> StateGraph:
    builder = StateGraph(MessagesState).add_node("think", think).add_node("reply", reply)
    return builder.add_edge(START, "think").add_edge("think", "reply")


class Tiny(TypedDict):
    count: int


async def one(_state: Tiny) -> dict:
    return {"count": 1}


async def two(_state: Tiny) -> dict:
    return {"count": 2}


conversation_builder = _conversation()
conversation = conversation_builder.compile()
tiny = (
    StateGraph(Tiny).add_node("one", one).add_node("two", two).add_edge(START, "one").add_edge("one", "two").compile()
)
