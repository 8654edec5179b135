"""Projects over HTTP and with the stock client: made, found, changed, deleted; another workspace sees none of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client
from langsmith.utils import LangSmithConflictError, LangSmithNotFoundError

from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


async def make(server: Hosted, name: str, **fields: Any) -> dict[str, Any]:
    response = await server.client.post("/sessions", json={"name": name, **fields})
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


async def list_projects(server: Hosted, **params: Any) -> list[str]:
    response = await server.client.get("/sessions", params=params)
    assert response.status_code == 200, response.text
    return [project["name"] for project in response.json()]


async def test_the_sdk_creates_changes_and_deletes_projects(server: Hosted):
    client = Client(api_url=server.url, api_key=server.key)

    def work() -> None:
        made = client.create_project("sdk", description="d", metadata={"team": "a"})
        assert client.read_project(project_id=made.id).description == "d"
        with pytest.raises(LangSmithConflictError):
            client.create_project("sdk")

        again = client.create_project("sdk", description="d2", upsert=True)
        assert (again.id, again.description, again.metadata) == (made.id, "d2", {"team": "a"})
        changed = client.update_project(made.id, name="sdk2")
        assert (changed.name, changed.description, changed.metadata) == ("sdk2", "d2", {"team": "a"})
        assert [p.name for p in client.list_projects(metadata={"team": "a"}, reference_free=True)] == ["sdk2"]
        client.delete_project(project_name="sdk2")

        with pytest.raises(LangSmithNotFoundError):
            client.read_project(project_id=made.id)

    await asyncio.to_thread(work)


async def test_lists_are_filtered_and_sorted(server: Hosted):
    dataset = str(uuid4())
    await make(server, "sort-b", start_time="2026-01-03T00:00:00")
    await make(server, "sort-c", start_time="2026-01-01T00:00:00Z", reference_dataset_id=dataset)
    await make(server, "sort-a", start_time="2026-01-02T02:00:00+02:00", extra={"metadata": {"k": "v", "n": 1}})

    some = {"name_contains": "SORT-"}
    assert await list_projects(server, **some) == ["sort-b", "sort-a", "sort-c"]
    assert await list_projects(server, **some, sort_by_desc=False) == ["sort-c", "sort-a", "sort-b"]
    assert await list_projects(server, **some, sort_by="name", sort_by_desc=False) == ["sort-a", "sort-b", "sort-c"]
    assert await list_projects(server, **some, sort_by="name", limit=1, offset=1) == ["sort-b"]
    assert await list_projects(server, reference_dataset=dataset) == ["sort-c"]
    assert await list_projects(server, **some, reference_free=True) == ["sort-b", "sort-a"]

    assert await list_projects(server, metadata='{"k": "v"}') == ["sort-a"]
    assert await list_projects(server, metadata='{"k": "w"}') == []

    for params in ({"metadata": "[1]"}, {"metadata": "{"}, {"sort_by": "colour"}, {"facets": True}, {"limit": 101}):
        response = await server.client.get("/sessions", params=params)
        assert (response.status_code, response.json()["detail"][0]["loc"][:2]) == (422, ["query", next(iter(params))])


async def test_project_names_are_unique_and_reusable_after_deletion(server: Hosted):
    one = await make(server, "taken-1")
    two = await make(server, "taken-2")
    response = await server.client.patch(f"/sessions/{two['id']}", json={"name": "taken-1"})
    assert response.status_code == 409
    assert (await server.client.post("/sessions", json={"name": "other", "id": one["id"]})).status_code == 409
    ids = [("session_ids", one["id"]), ("session_ids", two["id"]), ("session_ids", str(uuid4()))]
    assert (await server.client.delete("/sessions", params=ids)).status_code == 202

    assert await list_projects(server, name_contains="taken-") == []
    await make(server, "taken-1")


async def test_an_end_time_is_stored_and_null_changes_nothing(server: Hosted):
    made = await make(server, "ends", description="d")
    path = f"/sessions/{made['id']}"
    await server.client.patch(path, json={"end_time": "2026-02-01T00:00:00Z", "description": None})
    shown = (await server.client.patch(path, json={"name": None, "end_time": None})).json()
    assert (shown["name"], shown["description"], shown["end_time"]) == ("ends", "d", "2026-02-01T00:00:00Z")
    tiered = await server.client.patch(path, json={"trace_tier": "shortlived"})
    assert tiered.json()["trace_tier"] == "shortlived"

    refused = await server.client.patch(path, json={"trace_tier": "endless"})
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", "trace_tier"])


async def test_deleting_a_project_deletes_its_runs(server: Hosted):
    run_id = str(uuid4())
    await server.client.post("/runs", json={"id": run_id, "name": "r", "run_type": "chain", "session_name": "gone"})
    (project,) = (await server.client.get("/sessions", params={"name": "gone"})).json()
    await server.client.post("/feedback", json={"run_id": run_id, "key": "k"})
    assert (await server.client.delete(f"/sessions/{project['id']}")).status_code == 202
    assert (await server.client.get(f"/runs/{run_id}")).status_code == 404
    assert (await server.client.get("/feedback", params={"run": run_id})).json() == []
    assert (await server.client.delete(f"/sessions/{project['id']}")).status_code == 404

    late: dict[str, Any] = {"id": str(uuid4()), "name": "r", "run_type": "chain", "session_id": project["id"]}
    assert (await server.client.post("/runs", json=late)).status_code == 422
    assert (await server.client.get(f"/runs/{late['id']}")).status_code == 404
    on_project = await server.client.post("/feedback", json={"session_id": project["id"], "key": "k"})
    assert on_project.status_code == 422

    renamed = await server.client.patch(f"/sessions/{project['id']}", json={"name": "renamed"})
    billed = [record["dimensions"]["project_name"] for record in await server.usage("project")]
    assert (renamed.status_code, "gone" in billed, "renamed" in billed) == (404, True, False)


async def test_projects_are_filtered_by_their_fields(server: Hosted):
    await make(server, "filter-a", description="Of the north", extra={"metadata": {"team": "x", "n": 1}})
    await make(server, "filter-b", start_time="2020-01-01T00:00:00Z", extra={"metadata": {"team": "y"}})

    some = {"name_contains": "filter-"}
    for text, expected in (
        ('eq(name, "filter-a")', ["filter-a"]),
        ('search("NORTH")', ["filter-a"]),
        ('lt(start_time, "2021-01-01T00:00:00Z")', ["filter-b"]),
        ('and(eq(metadata_key, "team"), eq(metadata_value, "y"))', ["filter-b"]),
        ("or(has(metadata, '{\"n\": 1}'), not(exists(id)))", ["filter-a"]),
    ):
        assert await list_projects(server, **some, filter=text) == expected, text

    for text in ("eq(run_type, 'llm')", "has(tags, 'x')", "x", "eq(is_root, true)"):
        assert (await server.client.get("/sessions", params={"filter": text})).status_code == 400, text


async def test_projects_are_sorted_by_statistics_of_their_runs(server: Hosted):
    spent = {"metadata": {"usage_metadata": {"input_tokens": 7, "output_tokens": 5, "total_cost": 0.5}}}
    for project, seconds, error in (("figures-a", 2, None), ("figures-b", 5, "bad"), ("figures-b", 7, None)):
        root = str(uuid4())
        child = str(uuid4())
        times = {"start_time": "2026-03-01T00:00:00Z", "end_time": f"2026-03-01T00:00:0{seconds}Z"}
        run = {"id": root, "name": "r", "run_type": "chain", "session_name": project, "error": error, **times}

        await server.client.post("/runs", json=run)
        below = {"id": child, "parent_run_id": root, "name": "m", "run_type": "llm", "extra": spent, **times}
        await server.client.post("/runs", json={**below, "session_name": project})
        await server.client.post("/feedback", json={"run_id": root, "key": "k", "score": seconds, "value": "fine"})

    await make(server, "figures-c")
    some = {"name_contains": "figures-"}
    response = (await server.client.get("/sessions", params={**some, "include_stats": True, "sort_by": "name"})).json()
    c, b, a = response
    assert (a["run_count"], b["run_count"], c["run_count"]) == (1, 2, 0)
    assert (b["latency_p50"], b["error_rate"], b["total_tokens"], float(b["total_cost"])) == (6, 0.5, 24, 1.0)
    assert b["feedback_stats"] == {"k": {"n": 2, "avg": 6.0, "values": {"fine": 2}}}

    assert (c["latency_p50"], c["last_run_start_time"], c["session_feedback_stats"]) == (None, None, {})
    assert (await server.client.get(f"/sessions/{b['id']}", params={"include_stats": True})).json() == b
    assert await list_projects(server, **some, sort_by="runs_count") == ["figures-b", "figures-a", "figures-c"]

    assert await list_projects(server, **some, sort_by="error_rate", sort_by_desc=False) == [
        "figures-a",
        "figures-b",
        "figures-c",
    ]

    by_feedback = {"sort_by": "feedback", "sort_by_feedback_key": "k"}
    assert await list_projects(server, **some, **by_feedback, limit=1, offset=1) == ["figures-a"]
    assert (await server.client.get("/sessions", params={"sort_by": "feedback"})).status_code == 422
    shown = (await server.client.get("/sessions", params={**some, "sort_by": "latency_p99", "limit": 1})).json()
    assert (shown[0]["name"], shown[0]["run_count"]) == ("figures-b", None)
    client = Client(api_url=server.url, api_key=server.key)
    project = await asyncio.to_thread(client.read_project, project_name="figures-b", include_stats=True)
    assert (project.run_count, project.latency_p50.total_seconds(), str(project.total_cost)) == (2, 6, "1.0")


async def test_another_workspace_cannot_see_or_change_projects(server: Hosted):
    made = await make(server, "mine")
    workspace = await server.new_workspace("Others")

    headers = {"x-api-key": await server.new_key(workspace_id=workspace)}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        path = f"/sessions/{made['id']}"
        assert (await other.get(path)).status_code == 404
        assert (await other.patch(path, json={"name": "theirs"})).status_code == 404
        assert (await other.delete(path)).status_code == 404
        assert (await other.delete("/sessions", params={"session_ids": made["id"]})).status_code == 202
        assert (await other.get("/sessions", params={"id": made["id"]})).json() == []
        assert (await other.post("/sessions", json={"name": "mine"}, params={"upsert": True})).json()["id"] != made[
            "id"
        ]

    assert await list_projects(server, id=made["id"]) == ["mine"]


async def test_upsert_requires_the_update_permission(server: Hosted):
    made = await make(server, "kept", description="mine")
    headers = {"x-api-key": await server.new_key("projects:create")}
    for name, status in (("kept", 409), ("new", 200)):
        body = {"name": name, "description": "theirs"}
        response = await server.client.post("/sessions", json=body, params={"upsert": True}, headers=headers)
        assert response.status_code == status

    assert (await server.client.get(f"/sessions/{made['id']}")).json()["description"] == "mine"
