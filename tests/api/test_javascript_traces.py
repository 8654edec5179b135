"""Runs of JavaScript graphs are traced by LangSmith's variables, with their usage, their costs and how they ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from langsmith import Client

from tests.api.hosted import Hosted, open_hosted
from tests.conftest import eventually
from tests.javascript import javascript_server
from tests.servers import in_thread

pytestmark = pytest.mark.timeout(600)


class Traced(NamedTuple):
    """An agent server whose runs are traced, and where the traces go."""

    agent: httpx2.AsyncClient
    platform: Hosted

    async def run(self, graph: str, given: dict[str, Any], project: str | None = None) -> Any:
        """Run a graph on a thread of its own, and return its answer."""
        thread = (await self.agent.post("/threads", json={})).json()["thread_id"]
        tracer = {"langsmith_tracer": {"project_name": project}} if project else {}
        body = {"assistant_id": graph, "input": given, **tracer}
        return (await self.agent.post(f"/threads/{thread}/runs/wait", json=body)).json()

    async def traces(self, project: str) -> list[dict[str, Any]]:
        """Return all runs of a project when the root of its trace has ended."""
        client = Client(api_url=self.platform.url, api_key=self.platform.key)

        async def ended() -> Any:
            if not await asyncio.to_thread(client.has_project, project):
                return None

            session = await asyncio.to_thread(client.read_project, project_name=project)
            found = (await self.platform.client.post("/runs/query", json={"session": [str(session.id)]})).json()["runs"]
            return found if found and all(each["end_time"] for each in found) else None

        runs: list[dict[str, Any]] = await eventually(ended)
        return runs


@pytest.fixture
async def traces(
    hosted_databases: Callable[[], Awaitable[str]], platform_database: str, tmp_path: Path
) -> AsyncIterator[Traced]:
    async with open_hosted(await hosted_databases()) as platform:
        settings = {
            "LANGSMITH_TRACING": "true",
            "LANGSMITH_ENDPOINT": platform.url,
            "LANGSMITH_API_KEY": platform.key,
            "LANGSMITH_PROJECT": "in JavaScript",
        }

        serving = javascript_server(platform_database, tmp_path, **settings)
        async with in_thread(serving) as server, httpx2.AsyncClient(base_url=server.url, timeout=300) as agent:
            yield Traced(agent, platform)


async def test_runs_are_traced_with_usage_and_costs(traces: Traced):
    given = {"messages": [{"role": "user", "content": "count"}]}
    assert (await traces.run("counted", given))["messages"][-1]["content"] == "seven"
    runs = {run["name"]: run for run in await traces.traces("in JavaScript")}
    (model,) = [run for run in runs.values() if run["run_type"] == "llm"]

    # gpt-4o-mini costs 0.15 USD for a million tokens that it reads, and 0.60 for those that it writes.
    assert float(model["prompt_cost"]) == pytest.approx(3 * 0.15e-6)
    assert float(model["completion_cost"]) == pytest.approx(4 * 0.60e-6)
    root = runs["counted"]
    assert (root["total_tokens"], float(root["total_cost"])) == (7, pytest.approx(float(model["total_cost"])))
    await traces.run("counted", given, "elsewhere")
    assert {run["name"]: run for run in await traces.traces("elsewhere")}["counted"]["total_tokens"] == 7


# How the runs of a trace end, and what the graph is given.
ENDS = {
    "ask": ({"question": "really?"}, {"decide": "interrupted", "ask": "interrupted"}),
    "nested": (
        {"question": "really?"},
        {"before": "success", "inside": "interrupted", "child": "interrupted", "nested": "interrupted"},
    ),
    "refusing": ({}, {"refuse": "interrupted", "refusing": "interrupted"}),
    "halting": ({}, {"child": "interrupted", "halting": "interrupted"}),
    "handover": ({}, {"leave": "success", "child": "success", "arrive": "success", "handover": "success"}),
    "lookalike": ({}, {"interrupt": "error", "lookalike": "error"}),
}


async def find_ended_runs(traced: Traced, graph: str, wanted: dict[str, str]) -> list[dict[str, Any]]:
    """Return the runs of a graph's trace; none while their statuses are not the wanted ones."""
    runs = await traced.traces(graph)
    found = {run["name"]: run["status"] for run in runs}
    return runs if wanted.items() <= found.items() else []


async def test_interrupts_and_moves_between_graphs_are_not_failures(traces: Traced):
    failed = {}
    for graph, (given, wanted) in ENDS.items():
        await traces.run(graph, given, graph)
        # A root is told of interrupts after the batch that has them is stored.
        runs = await eventually(partial(find_ended_runs, traces, graph, wanted))
        found = {run["name"]: run["status"] for run in runs}
        body = {"session": [runs[0]["session_id"]], "filter": 'eq(status, "interrupted")', "is_root": True}
        listed = (await traces.platform.client.post("/runs/query", json=body)).json()["runs"]
        assert bool(listed) == (found[graph] == "interrupted")
        stats = (await traces.platform.client.post("/runs/stats", json={"session": body["session"]})).json()
        failed[graph] = stats["error_rate"] > 0

    assert [graph for graph, has_failed in failed.items() if has_failed] == ["lookalike"]
