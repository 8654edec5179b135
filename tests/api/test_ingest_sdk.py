"""The stock tracing client against a real server: what it sends arrives, in every way it knows to send."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from langsmith import Client, traceable, tracing_context

from portside.tracing.projects import ensure_project
from tests import traced
from tests.api.hosted import Hosted, open_hosted

MODES = {"zstd": (True, True), "multipart": (True, False), "batch": (False, False)}


async def client_for(server: Hosted, mode: str, base: str = "") -> Client:
    """Make a client that sends in one way, else as the server's own /info says."""
    multipart, zstd = MODES[mode]
    info = (await server.client.get(f"{base}/info")).json()
    info["batch_ingest_config"]["use_multipart_endpoint"] = multipart
    info["instance_flags"]["zstd_compression_enabled"] = zstd
    return Client(api_url=server.url + base, api_key=server.key, info=info)


def trace(client: Client, project: str) -> None:
    """Run a nested function and one that fails, traced."""

    @traceable(run_type="tool")
    def add_one(x: int) -> int:
        return x + 1

    @traceable(tags=["t1"], metadata={"k": "v"})
    def parent(x: int) -> int:
        return add_one(x) * 2

    @traceable
    def fail() -> None:
        raise ValueError("no\x00 good")

    with tracing_context(enabled=True, client=client, project_name=project):
        assert parent(3) == 8
        with pytest.raises(ValueError, match="good"):
            fail()

    client.flush(timeout=300)


async def test_interrupts_and_moves_between_graphs_are_not_failures(
    hosted_databases: Callable[[], Awaitable[str]],
) -> None:
    async with open_hosted(await hosted_databases()) as server:
        client = await client_for(server, "multipart")
        waiting, resumed = await asyncio.to_thread(traced.send_question, client, "booking")
        ids = [row["id"] for row in await server.db.pool.fetch("select id from runs")]
        runs = [(await server.client.get(f"/runs/{each}")).json() for each in ids]
        assert {run["trace_id"] for run in runs} == {waiting, resumed}
        states = {(run["name"], run["trace_id"] == waiting): run["status"] for run in runs}
        assert states["ask", True] == states["asking", True] == states["booking agent", True] == "interrupted"

        assert states["booking agent", False] == states["ask", False] == states["choose", False] == "success"
        below = [run for run in runs if run["status"] == "interrupted" and run["id"] != run["trace_id"]]
        assert all(run["error"].startswith("GraphInterrupt(") for run in below)
        query = {"session": [runs[0]["session_id"]]}

        listed = {"project_ids": query["session"], "is_root": True, "selects": ["ID", "STATUS"]}
        for state, root in (("interrupted", waiting), ("success", resumed)):
            asked = {**listed, "filter": f'eq(status, "{state}")'}
            found = (await server.client.post("/v2/runs/query", json=asked)).json()["items"]
            assert found == [{"id": str(root), "status": state.upper()}]

        assert (await server.client.post("/runs/stats", json=query)).json()["error_rate"] == 0

        for failed in ({"error": True}, {"filter": 'eq(status, "error")'}):
            assert (await server.client.post("/runs/query", json={**query, **failed})).json()["runs"] == []

        period = {"start_time": "2020-01-01T00:00:00Z", "end_time": "2100-01-01T00:00:00Z", "group_by": "project"}
        period["workspace_ids"] = str(server.actor.workspace_id)
        costs = await server.client.get("/orgs/current/billing/costs", params=period)
        assert [(each["runs"], each["failed_runs"]) for each in costs.json()["usage"]] == [(len(runs), 0)]


async def read_runs(server: Hosted) -> dict[str, dict[str, Any]]:
    """All runs by name, as the API shows them."""
    ids = await server.db.pool.fetch("select id from runs")
    responses = [await server.client.get(f"/runs/{row['id']}") for row in ids]
    return {run["name"]: run for run in (response.json() for response in responses)}


@pytest.mark.parametrize(
    ("mode", "base"), [("zstd", ""), ("zstd", "/api/v1"), ("multipart", "/api"), ("batch", ""), ("batch", "/api/v1")]
)
async def test_traced_functions_are_stored(
    hosted_databases: Callable[[], Awaitable[str]], mode: str, base: str, caplog: pytest.LogCaptureFixture
):
    async with open_hosted(await hosted_databases()) as server:
        client = await client_for(server, mode, base)
        await asyncio.to_thread(trace, client, "p1")
        runs = await read_runs(server)
        assert set(runs) == {"parent", "add_one", "fail"}
        parent = runs["parent"]
        child = runs["add_one"]
        assert (parent["inputs"], parent["outputs"], parent["status"]) == ({"x": 3}, {"output": 8}, "success")

        assert (parent["tags"], parent["extra"]["metadata"]["k"]) == (["t1"], "v")
        assert (child["parent_run_id"], child["trace_id"], child["run_type"]) == (parent["id"], parent["id"], "tool")
        assert child["dotted_order"].startswith(parent["dotted_order"] + ".")
        assert (runs["fail"]["status"], "ValueError" in runs["fail"]["error"]) == ("error", True)
        assert [(r["dimensions"]["project_name"], r["traces"]) for r in await server.usage("project")] == [("p1", 2)]

        # Other libraries warn of what earlier tests left, and so do clients of servers that have stopped.
        of_clients = [record for record in caplog.records if record.name.startswith("langsmith")]
        messages = [record.getMessage() for record in of_clients if record.levelno >= logging.WARNING]
        warnings = [message for message in messages if "http://" not in message or server.url in message]
        assert [message for message in warnings if "compression is not enabled" not in message] == []


async def test_the_sdk_compresses_because_of_info(hosted_databases: Callable[[], Awaitable[str]]):
    async with open_hosted(await hosted_databases()) as server:
        client = Client(api_url=server.url, api_key=server.key)
        info = await asyncio.to_thread(lambda: client.info)
        assert info.instance_flags is not None
        assert info.instance_flags["zstd_compression_enabled"] is True
        await asyncio.to_thread(trace, client, "p1")
        assert len(await read_runs(server)) == 3


async def test_created_and_updated_runs_are_stored(hosted_databases: Callable[[], Awaitable[str]]):
    async with open_hosted(await hosted_databases()) as server:
        client = Client(api_url=server.url, api_key=server.key)
        run_id = uuid4()

        def work() -> Any:
            client.create_run("r1", {"a": 1}, "llm", id=run_id, project_name="p2", start_time=datetime.now(UTC))
            client.flush(timeout=300)
            client.update_run(run_id, outputs={"b": 2})
            client.flush(timeout=300)
            return client.read_project(project_name="p2")

        project = await asyncio.to_thread(work)
        run = (await server.client.get(f"/runs/{run_id}")).json()
        assert (run["inputs"], run["outputs"], run["status"]) == ({"a": 1}, {"b": 2}, "success")
        assert (run["trace_id"], UUID(run["session_id"])) == (str(run_id), project.id)
        assert run["app_path"] == f"/o/{server.actor.workspace_id}/projects/p/{project.id}/r/{run_id}"
        assert [record["traces"] for record in await server.usage("workspace")] == [1]


async def test_attachments_and_feedback_are_stored(hosted_databases: Callable[[], Awaitable[str]]):
    async with open_hosted(await hosted_databases()) as server:
        client = Client(api_url=server.url, api_key=server.key)
        project = await ensure_project(server.db, server.actor.workspace_id, "default")
        run_id = uuid4()

        def work() -> None:
            stamp = datetime.now(UTC)
            client.create_run(
                "r1",
                {},
                "llm",
                id=run_id,
                trace_id=run_id,
                dotted_order=f"{stamp:%Y%m%dT%H%M%S%fZ}{run_id}",
                attachments={"cat": ("image/png", b"\x89PNG\r\n--")},
            )

            client.create_feedback(run_id, "k2", score=0.5, trace_id=run_id, session_id=project.id)
            client.flush(timeout=300)

        await asyncio.to_thread(work)
        attachment = await server.db.pool.fetchrow("select run_id, name, content_type, data from attachments")
        assert tuple(attachment) == (run_id, "cat", "image/png", b"\x89PNG\r\n--")
        assert tuple(await server.db.pool.fetchrow("select run_id, key from feedback")) == (run_id, "k2")
