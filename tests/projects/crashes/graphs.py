"""A graph that harms its process: the field `do` says how. It first writes a line with its process and attempt."""

import asyncio
import ctypes
import operator
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph


def use_up_the_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x") * 20_000_000)


HARMS: dict[str, Callable[[], Any]] = {
    "exit": lambda: os._exit(7),
    "kill -9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "hold the GIL": lambda: ctypes.PyDLL(None).sleep(3600),
    "use up the memory": use_up_the_memory,
}


class State(TypedDict, total=False):
    do: str
    ledger: str
    times: int
    pids: Annotated[list[int], operator.add]


def note(state: State, config: RunnableConfig) -> int:
    """Write down this process, and return how many attempts were written down before."""
    file = Path(state["ledger"])
    before = len(file.read_text().splitlines()) if file.exists() else 0
    with file.open("a") as lines:
        lines.write(f"{os.getpid()} {config['metadata']['run_attempt']}\n")

    return before


async def first(state: State) -> dict[str, Any]:
    return {"pids": [os.getpid()]}


async def act(state: State, config: RunnableConfig) -> dict[str, Any]:
    do = state["do"]
    if note(state, config) >= state.get("times", 1_000_000):
        do = "nothing"

    if do in HARMS:
        HARMS[do]()

    if do == "flood":
        for _ in range(2000):
            get_stream_writer()("x" * 1_000_000)
            await asyncio.sleep(0)

    if do == "wait":
        go = Path(state["ledger"] + ".go")
        while not go.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.01)

    return {"pids": [os.getpid()]}


graph = (
    StateGraph(State)
    .add_node("first", first)
    .add_node("act", act)
    .add_edge("__start__", "first")
    .add_edge("first", "act")
    .compile()
)
