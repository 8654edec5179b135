"""A node that exits ends its run, not the executor."""

import asyncio
import sys
import threading
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from portside.agent.graphs.execute import LocalExecutor
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.protocol import RunRequest


async def leaves(_: Any) -> Any:
    sys.exit(3)


def leaves_from_a_thread(_: Any) -> Any:
    sys.exit(3)


@pytest.mark.parametrize("node", [leaves, leaves_from_a_thread])
def test_sys_exit_in_a_node_fails_the_run(node):
    builder = StateGraph(dict)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    execution = LocalExecutor(Graphs({"g": builder.compile()}, {})).execute(RunRequest(graph_id="g", input={}))
    loop = asyncio.new_event_loop()
    stopped = threading.Event()

    async def run() -> list[str]:
        return [event async for event, _ in execution]

    def serve() -> None:
        # asyncio lets a SystemExit out through the loop as well; who owns the loop goes on with it.
        while not stopped.is_set():
            try:
                loop.run_forever()
            except SystemExit:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert asyncio.run_coroutine_threadsafe(run(), loop).result(10)[-1] == "error"
        assert execution.outcome.error == {"error": "SystemExit", "message": "3"}
    finally:
        stopped.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
