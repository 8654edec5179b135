"""A graph that writes numbers until a file exists, so that a test can cut its stream."""

import asyncio
from pathlib import Path
from typing import TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph


class Ticks(TypedDict):
    until: str


async def tick(state: Ticks) -> None:
    write = get_stream_writer()
    write("first")
    while not Path(state["until"]).exists():  # noqa: ASYNC110, ASYNC240 - the test makes the file
        await asyncio.sleep(0.05)

    write("last")


graph = StateGraph(Ticks).add_node("tick", tick).add_edge(START, "tick").compile()
