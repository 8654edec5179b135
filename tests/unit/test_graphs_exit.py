"""Whatever a node raises ends its run and nothing else."""

import asyncio
import inspect
import threading
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from portside.executor.execute import Execution
from portside.executor.load import Graphs
from portside.executor.loops import GraphLoop
from portside.executor.requests import RunRequest


class OfItsOwn(BaseException):
    """Neither an error nor an exit."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError


FAILURES: list[tuple[Any, str, str]] = [
    (SystemExit(3), "SystemExit", "3"),
    (KeyboardInterrupt(), "KeyboardInterrupt", ""),
    (OfItsOwn("mine"), "OfItsOwn", "mine"),
    (ValueError("a\ud800b\0c"), "ValueError", "a?b\ufffdc"),
    (Wordless(), "Wordless", "the exception has no text: its __str__ raised ValueError"),
]


def build_failing_graph(failure: BaseException, *, in_a_thread: bool) -> Any:
    async def on_the_loop(_: Any) -> Any:
        raise failure

    def off_the_loop(_: Any) -> Any:
        raise failure

    builder = StateGraph(dict)
    builder.add_node("node", off_the_loop if in_a_thread else on_the_loop)
    builder.add_edge(START, "node")

    return builder.compile()


@pytest.mark.parametrize("in_a_thread", [False, True])
@pytest.mark.parametrize(("failure", "name", "text"), FAILURES)
async def test_exception_of_a_node_fails_only_its_run(failure, name, text, in_a_thread):
    graph = build_failing_graph(failure, in_a_thread=in_a_thread)
    execution = Execution(Graphs({"g": graph}, {}), RunRequest(graph_id="g", input={}))

    async def run() -> list[str]:
        return [event async for event, _ in execution]

    async def work() -> str:
        return "still here"

    loop = GraphLoop("test")
    try:
        assert "values" in await asyncio.wait_for(loop.call(run()), 60)
        assert execution.outcome.error == {"error": name, "message": text}
        assert await asyncio.wait_for(loop.call(work()), 60) == "still here"
    finally:
        loop.close()


async def test_work_that_is_cancelled_before_it_begins_is_closed():
    async def work() -> None:
        raise AssertionError("it was cancelled before")

    loop = GraphLoop("test")
    is_free = threading.Event()
    made = work()
    try:
        loop.call_soon(is_free.wait)
        call = asyncio.create_task(loop.call(made))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        is_free.set()

        with pytest.raises(asyncio.CancelledError):
            await call

        assert inspect.getcoroutinestate(made) == inspect.CORO_CLOSED
    finally:
        is_free.set()
        loop.close()


def endless() -> Any:
    """A graph whose subgraph reports one step and never ends the next."""

    async def begin(_: Any) -> Any:
        return {"begun": True}

    async def wait(_: Any) -> Any:
        await asyncio.Event().wait()

    inside = StateGraph(dict)
    inside.add_node("begin", begin)
    inside.add_node("wait", wait)
    inside.add_edge(START, "begin")
    inside.add_edge("begin", "wait")

    builder = StateGraph(dict)
    builder.add_node("inside", inside.compile())
    builder.add_edge(START, "inside")

    return builder.compile()


@pytest.mark.parametrize("modes", [["values"], ["values", "events"]])
async def test_run_cancelled_during_an_event_leaves_no_task(modes):
    request = RunRequest(graph_id="g", input={"begun": False}, stream_modes=modes, stream_subgraphs=True)
    execution = Execution(Graphs({"g": endless()}, {}), request)
    before = asyncio.all_tasks()

    async def run() -> None:
        async for event, _ in execution:
            if event.startswith("values|"):
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())

    assert asyncio.all_tasks() == before
