"""Graphs that write down what they do: each step appends lines to a file, so that a double execution shows.

A run does `steps` steps one after the other. A step can be held until a file exists (`gates`: one for each number of a
step, and with `.<attempt>` behind it one for each attempt), can stop at a question (`ask_at`), fail (`fail_at`) or take
its process with it (`kill_at`).
"""

import asyncio
import gc
import json
import operator
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

LEDGER = os.environ.get("ENGINE_LEDGER", "/dev/null")


class Work(TypedDict, total=False):
    at: int
    steps: int
    pause_s: float
    gates: dict[str, str]
    ask_at: int
    fail_at: int
    kill_at: int
    done: Annotated[list[list[Any]], operator.add]


def write_down(event: str, config: RunnableConfig, step: int) -> None:
    line = {
        "event": event,
        "step": step,
        "at": time.time(),
        "pid": os.getpid(),
        "run": config["configurable"]["run_id"],
        "thread": config["configurable"]["thread_id"],
        "attempt": config["metadata"]["run_attempt"],
    }

    # One write of one short line: lines of several processes do not mix.
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def is_held(state: Work, config: RunnableConfig, step: int) -> bool:
    gate = state.get("gates", {}).get(str(step))
    return gate is not None and not any(
        Path(path).exists() for path in (gate, f"{gate}.{config['metadata']['run_attempt']}")
    )


def begin(state: Work, config: RunnableConfig) -> int:
    step = state.get("at", 0)
    write_down("begin", config, step)
    get_stream_writer()({"begin": step, "attempt": config["metadata"]["run_attempt"]})

    if step == state.get("kill_at"):
        os.kill(os.getpid(), signal.SIGKILL)

    if step == state.get("fail_at"):
        raise ValueError(f"step {step} fails")

    if step == state.get("ask_at"):
        interrupt({"step": step})

    return step


def end(config: RunnableConfig, step: int) -> Work:
    write_down("end", config, step)
    get_stream_writer()({"end": step, "attempt": config["metadata"]["run_attempt"]})
    return {"at": step + 1, "done": [[config["configurable"]["run_id"], step, config["metadata"]["run_attempt"]]]}


async def work(state: Work, config: RunnableConfig) -> Work:
    step = begin(state, config)
    while is_held(state, config, step):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)

    await asyncio.sleep(state.get("pause_s", 0))
    return end(config, step)


def block(state: Work, config: RunnableConfig) -> Work:
    step = begin(state, config)
    while is_held(state, config, step):
        time.sleep(0.01)

    time.sleep(state.get("pause_s", 0))
    return end(config, step)


def is_left(state: Work) -> str:
    return "step" if state["at"] < state.get("steps", 3) else END


ledger = (
    StateGraph(Work).add_node("step", work).add_edge(START, "step").add_conditional_edges("step", is_left).compile()
)
blocking = (
    StateGraph(Work).add_node("step", block).add_edge(START, "step").add_conditional_edges("step", is_left).compile()
)


async def hog(state: Work, config: RunnableConfig) -> Work:
    """Block the loop itself, as code does that is async in name alone."""
    return block(state, config)


hogging = (
    StateGraph(Work).add_node("step", hog).add_edge(START, "step").add_conditional_edges("step", is_left).compile()
)


class Flood(TypedDict, total=False):
    events: int
    size: int


async def pour(state: Flood) -> Flood:
    """Tell many things, each at once, but let others work in between."""
    write = get_stream_writer()
    text = "x" * state["size"]
    for number in range(state["events"]):
        write({"number": number, "text": text})
        if number % 50 == 0:
            await asyncio.sleep(0)

    return {"events": 0}


flood = StateGraph(Flood).add_node("pour", pour).add_edge(START, "pour").compile()


class Census(TypedDict, total=False):
    objects: dict[str, int]
    memory_mb: float


def is_of_a_statement(thing: Any) -> bool:
    """Whether a connection to Postgres keeps something for a statement that it has prepared: bounded, and of no run."""
    return type(thing) is tuple and bool(thing) and type(thing[-1]).__module__.startswith("asyncpg")


def count(_state: Census) -> Census:
    """Count what lives in this process, and the memory it has."""
    gc.collect()
    objects = Counter(type(thing).__name__ for thing in gc.get_objects() if not is_of_a_statement(thing))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"objects": dict(objects), "memory_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20}


census = StateGraph(Census).add_node("count", count).add_edge(START, "count").compile()
