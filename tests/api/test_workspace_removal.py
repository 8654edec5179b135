"""Deleting workspaces with their contents.

No workspace is deleted while something is deployed in it, and nothing is deployed in a workspace that is being
deleted.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from asyncpg import SerializationError

from portside.identity.keys import Owner, create_key
from portside.identity.types import KeyRequest
from portside.kernel.db import Session
from portside.kernel.migrations import migrate
from portside.platform.deleted_workspaces import DeletedWorkspaces
from portside.platform.modules import MODULES
from tests.api.control_server import Control, control, create_body
from tests.api.hosted import Hosted, open_hosted

AT_ONCE = timedelta(0)
EMPTIERS = [module.empty_workspace for module in MODULES if module.empty_workspace]
TABLES = (
    "runs",
    "attachments",
    "feedback",
    "feedback_tokens",
    "shared_runs",
    "models",
    "model_prices",
    "cost_recomputations",
    "datasets",
    "dataset_versions",
    "shared_datasets",
    "examples",
    "comparative_experiments",
    "prompt_repos",
    "chart_sections",
    "charts",
    "usage_limits",
    "annotation_queues",
    "queued_runs",
    "feedback_configs",
)


@pytest.fixture
async def server(platform_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[Hosted]:
    async with open_hosted(await platform_databases()) as running:
        await migrate(running.db, ["portside.control"])
        yield running


async def fill(server: Hosted, workspace: str) -> None:
    """Put something of each kind into a workspace."""
    run = str(uuid4())
    in_it = {"x-tenant-id": workspace}
    usage = {"ls_model_name": "m", "usage_metadata": {"input_tokens": 1}}
    price = {"name": "m", "match_pattern": "m", "prompt_cost": 0.1, "completion_cost": 0.1}
    experiment = {"id": str(uuid4()), "name": "e", "reference_dataset_id": run}

    for method, path, body in (
        (
            "POST",
            "/runs",
            {"id": run, "name": "r", "session_name": "p", "run_type": "llm", "extra": {"metadata": usage}},
        ),
        ("POST", "/feedback", {"run_id": run, "key": "k", "score": 1}),
        ("POST", "/feedback/tokens", {"run_id": run, "feedback_key": "k"}),
        ("PUT", f"/runs/{run}/share", {"run_id": run, "share_token": str(uuid4())}),
        ("POST", "/model-price-map", price),
        ("POST", "/model-price-map/recomputations", {}),
        ("POST", "/datasets", {"name": "d", "id": run}),
        ("PUT", f"/datasets/{run}/share", {}),
        ("POST", "/examples", {"dataset_id": run, "inputs": {"a": 1}}),
        ("POST", "/sessions", experiment),
        ("POST", "/datasets/comparative", {"experiment_ids": [experiment["id"]], "reference_dataset_id": run}),
        ("POST", "/repos", {"repo_handle": "p", "is_public": False}),
        ("POST", "/commits/-/p", {"manifest": {}}),
        ("POST", "/charts/section", {"title": "s"}),
        (
            "POST",
            "/charts/create",
            {"title": "c", "chart_type": "line", "series": [{"name": "n", "metric": "run_count"}]},
        ),
        ("POST", "/annotation-queues", {"name": "q", "id": run}),
        ("POST", f"/annotation-queues/{run}/runs", [run]),
        ("POST", "/feedback-configs", {"feedback_key": "k", "feedback_config": {"type": "freeform"}}),
        ("PUT", "/usage-limits", {"limit_type": "monthly_traces", "limit_value": 10}),
    ):
        response = await server.client.request(method, path, json=body, headers=in_it)
        assert response.is_success, (path, response.text)

    file = {f"attachment.{run}.a": ("a", b"x", "text/plain")}
    assert (await server.client.post("/runs/multipart", files=file, headers=in_it)).is_success


async def count_rows(server: Hosted, workspace: str) -> dict[str, int]:
    counted = "select count(*) from {} where workspace_id = $1"
    return {table: await server.db.pool.fetchval(counted.format(table), workspace) for table in TABLES}


async def test_deleting_a_workspace_deletes_its_data(server: Hosted) -> None:
    own = str(server.actor.workspace_id)
    made = (await server.client.post("/workspaces", json={"display_name": "Team"})).json()
    for workspace in (own, made["id"]):
        await fill(server, workspace)

    in_it = {"x-tenant-id": made["id"]}
    key = (await server.client.post("/api-key", json={}, headers=in_it)).json()["key"]
    assert (await server.client.get("/sessions", headers=in_it)).status_code == 200
    assert (await server.client.delete(f"/workspaces/{made['id']}")).status_code == 204
    assert (await server.client.get("/sessions", headers=in_it)).status_code == 403
    assert (await server.client.get("/sessions", headers={"x-api-key": key})).status_code == 401
    assert [found["id"] for found in (await server.client.get("/workspaces")).json()] == [own]

    assert (await server.client.delete(f"/workspaces/{made['id']}")).status_code == 404
    for path in ("/orgs/current/service-keys", "/orgs/current/members"):
        body = {"workspaces": [made["id"]]} | ({"email": "late@example.com"} if path.endswith("members") else {})
        assert (await server.client.post(path, json=body)).status_code == 422

    assert (await server.client.patch(f"/workspaces/{made['id']}", json={"display_name": "x"})).status_code == 404
    not_yet = DeletedWorkspaces(server.db, EMPTIERS)
    assert (await not_yet.activate()).did == {}

    async def leave_more(_db: Session, workspace_id: UUID) -> bool:
        return str(workspace_id) == made["id"]

    # As long as a package has more to delete, the workspace has its next turn too.
    for _ in range(2):
        assert (await DeletedWorkspaces(server.db, [leave_more], AT_ONCE).activate()).did == {"workspaces": 0}

    task = DeletedWorkspaces(server.db, EMPTIERS, AT_ONCE)
    assert (await task.activate()).did == {"workspaces": 1}
    assert (await task.activate()).did == {}

    assert set((await count_rows(server, made["id"])).values()) == {0}
    assert set((await count_rows(server, own)).values()) == {1}
    billed = await server.usage("workspace", workspace_ids=[own, made["id"]])
    assert sum(record["traces"] for record in billed) >= 1
    assert await server.db.pool.fetchval("select count(*) from traces where workspace_id = $1", made["id"]) == 1
    again = await server.client.post("/workspaces", json={"display_name": "Team"})
    assert again.json()["tenant_handle"] == "team"


async def test_deleting_a_workspace_needs_all_permissions(server: Hosted) -> None:
    own = str(server.actor.workspace_id)
    other = str(await server.new_workspace("Other"))
    assert (await server.client.delete(f"/workspaces/{own}")).status_code == 409
    assert (await server.client.delete(f"/workspaces/{uuid4()}")).status_code == 404
    organization = Owner(server.actor.organization_id, None)

    manages = await create_key(server.db, organization, KeyRequest(permissions=["organization:manage"]))
    bound = await server.new_key(workspace_id=await server.new_workspace("Third"))
    for key in (manages.key, bound):
        response = await server.client.delete(f"/workspaces/{other}", headers={"x-api-key": key})
        assert response.status_code == 403

    whole = await create_key(server.db, organization, KeyRequest())
    assert (await server.client.delete(f"/workspaces/{other}", headers={"x-api-key": whole.key})).status_code == 204


@pytest.fixture
async def platform(platform_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[Control]:
    async with control(await platform_databases()) as running:
        yield running


async def test_a_workspace_with_deployments_cannot_be_deleted(platform: Control) -> None:
    made: Any = (await platform.client.post("/workspaces", json={"display_name": "Team"})).json()
    path = f"/workspaces/{made['id']}"
    there = {"x-tenant-id": made["id"]}
    response = await platform.client.post("/v2/deployments", json=create_body("one"), headers=there)
    assert response.status_code == 201
    refused = await platform.client.delete(path)
    assert (refused.status_code, "deployments: one" in refused.json()["detail"]) == (409, True)

    await platform.client.delete(f"/v2/deployments/{response.json()['id']}", headers=there)
    assert (await platform.client.delete(path)).status_code == 409
    await platform.db.pool.execute("delete from deployments")
    assert (await platform.client.delete(path)).status_code == 204

    # What another process let in a moment ago comes too late.
    late = "insert into deployments select * from jsonb_populate_record(null::deployments, $1)"
    with pytest.raises(SerializationError, match="is deleted"):
        await platform.db.pool.execute(late, {"id": str(uuid4()), "workspace_id": made["id"]})
