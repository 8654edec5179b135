"""Another workspace's key on every route of the hosted API that names an object: the object is not found."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from portside.annotation import http as annotation
from portside.datasets import http as datasets
from portside.identity import http as identity
from portside.kernel.http.routes import Route
from portside.prompts import http as prompts
from portside.tracing import http as tracing
from portside.usage import http as usage
from tests.api.hosted import Hosted, open_hosted

MARK = "seen-by-nobody-else"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
# The organization's are for whoever manages it, in whichever workspace, and have tests of their own.
OF_ORGANIZATIONS = ("/orgs/current", "/workspaces/{workspace_id}", "/workspaces/current/members", "/api-key/current")
# There is nothing to undo or to list, which is no word about what others have.
EMPTY = {
    "GET /runs/{run_id}/share": b"null",
    "DELETE /runs/{run_id}/share": b"",
    "DELETE /datasets/{dataset_id}/share": b"",
    "GET /datasets/{dataset_id}/comparative": b"[]",
}
# What has to be sent for a route to do something.
BODIES: dict[str, Any] = {
    "PATCH /runs/{run_id}": {"outputs": {"stolen": 1}, "end_time": NOW.isoformat()},
    "POST /charts/{chart_id}": {"start_time": "2029-12-31T00:00:00Z", "timezone": "UTC", "stride": {"hours": 1}},
    "POST /charts/section/{section_id}": {
        "start_time": "2029-12-31T00:00:00Z",
        "timezone": "UTC",
        "stride": {"hours": 1},
    },
    "PUT /model-price-map/{price_id}": {
        "name": "x",
        "match_pattern": "x",
        "prompt_cost": "0.1",
        "completion_cost": "0.2",
    },
    "PATCH /examples/{example_id}": {"inputs": {"stolen": 1}},
    "PUT /datasets/{dataset_id}/tags": {"as_of": "latest", "tag": "x"},
    "PUT /datasets/{dataset_id}/splits": {"split_name": "x", "examples": []},
    "POST /datasets/{dataset_id}/runs": {"session_ids": [str(uuid4())]},
    "POST /v2/datasets/{dataset_id}/experiment-runs": {"experiment_ids": [str(uuid4())]},
    "POST /repos/{owner}/{repo}/tags": {"tag_name": "x", "commit_id": str(uuid4())},
    "PATCH /repos/{owner}/{repo}/tags/{tag_name}": {"commit_id": str(uuid4())},
    "POST /commits/{owner}/{repo}": {"manifest": {"stolen": 1}},
    "POST /likes/{owner}/{repo}": {"like": True},
    "POST /platform/hub/repos/{owner}/{repo}/directories/commits": {
        "files": {"a.md": {"type": "file", "content": "stolen"}}
    },
    "POST /v1/platform/hub/repos/{owner}/{repo}/directories/commits": {
        "files": {"a.md": {"type": "file", "content": "stolen"}}
    },
    "POST /annotation-queues/{queue_id}/runs": [str(uuid4())],
    "POST /annotation-queues/{queue_id}/runs/by-key": [{"run_id": str(uuid4())}],
    "PATCH /annotation-queues/{queue_id}/runs/{run_id}": {"last_reviewed_time": NOW.isoformat()},
}
QUERIES: dict[str, dict[str, str]] = {
    "GET /datasets/{dataset_id}/version": {"tag": "latest"},
    "GET /datasets/{dataset_id}/versions/diff": {"from_version": "latest", "to_version": "latest"},
}
FORMS = "/platform/datasets/{dataset_id}/examples"


@pytest.fixture
async def server(hosted_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[Hosted]:
    async with open_hosted(await hosted_databases()) as running:
        yield running


async def create(client: httpx2.AsyncClient, path: str, body: Any, method: str = "POST") -> Any:
    response = await client.request(method, path, json=body)
    assert response.is_success, (path, response.text)
    return response.json()


async def create_everything(client: httpx2.AsyncClient) -> dict[str, str]:
    """Make one of everything, and return what names it, by the name of the parameter that does."""
    run_id = str(uuid4())
    run = {
        "id": run_id,
        "trace_id": run_id,
        "dotted_order": NOW.strftime("%Y%m%dT%H%M%S%fZ") + run_id,
        "name": MARK,
        "run_type": "chain",
        "start_time": NOW.isoformat(),
        "inputs": {"a": MARK},
        "session_name": MARK,
    }

    await create(client, "/runs", run)
    dataset = await create(client, "/datasets", {"name": MARK, "description": MARK})
    example = await create(client, "/examples", {"dataset_id": dataset["id"], "inputs": {"q": MARK}})
    feedback = await create(client, "/feedback", {"run_id": run_id, "key": "k", "comment": MARK})
    section = await create(client, "/charts/section", {"title": MARK})
    series = [{"name": MARK, "metric": "run_count"}]
    chart = {"title": MARK, "section_id": section["id"], "chart_type": "line", "series": series}

    await create(client, "/repos", {"repo_handle": "theirs", "description": MARK, "is_public": False})
    commit = (await create(client, "/commits/-/theirs", {"manifest": {"m": MARK}}))["commit"]
    await create(client, "/repos/-/theirs/tags", {"tag_name": "prod", "commit_id": commit["id"]})
    queue = await create(client, "/annotation-queues", {"name": MARK})

    await create(client, f"/annotation-queues/{queue['id']}/runs", [run_id])
    limit = {"limit_type": "monthly_traces", "limit_value": 1000}
    price = {"name": MARK, "match_pattern": MARK, "prompt_cost": "0.1", "completion_cost": "0.2"}

    return {
        "run_id": run_id,
        "session_id": (await client.get("/sessions")).json()[0]["id"],
        "dataset_id": dataset["id"],
        "example_id": example["id"],
        "feedback_id": feedback["id"],
        "section_id": section["id"],
        "chart_id": (await create(client, "/charts/create", chart))["id"],
        "owner": "default",
        "repo": "theirs",
        "tag_name": "prod",
        "commit": commit["commit_hash"],
        "queue_id": queue["id"],
        "index": "0",
        "limit_id": (await create(client, "/usage-limits", limit, "PUT"))["id"],
        "key_id": (await create(client, "/api-key", {"description": MARK}))["id"],
        "comparison_id": str(uuid4()),
        "rule_id": str(uuid4()),
        "trace_id": run_id,
        "name": "inputs",
        "price_id": (await create(client, "/model-price-map", price))["id"],
        "recomputation_id": (await create(client, "/model-price-map/recomputations", {}))["id"],
    }


async def read_everything(client: httpx2.AsyncClient, ids: dict[str, str]) -> dict[str, Any]:
    paths = (
        "/runs/{run_id}",
        "/sessions/{session_id}",
        "/datasets/{dataset_id}",
        "/examples/{example_id}",
        "/feedback/{feedback_id}",
        "/charts/section",
        "/commits/-/theirs",
        "/repos/-/theirs/tags",
        "/usage-limits",
        "/annotation-queues/{queue_id}",
        "/annotation-queues/{queue_id}/size",
        "/datasets/{dataset_id}/versions",
        "/runs/{run_id}/share",
    )

    found = {path: (await client.get(path.format(**ids))).json() for path in paths}
    return {**found, "keys": [key["id"] for key in (await client.get("/api-key")).json()]}


def list_routes() -> list[Route]:
    packages = (identity, tracing, datasets, prompts, annotation, usage)
    routes = [route for package in packages for route in package.routes if route.path_types and not route.public]
    return [route for route in routes if not route.path.startswith(OF_ORGANIZATIONS)]


async def test_resources_of_others_are_404_on_every_route(server: Hosted) -> None:
    ids = await create_everything(server.client)
    queries = {**QUERIES, "GET /v2/traces/{trace_id}/runs": {"project_id": ids["session_id"]}}
    before = await read_everything(server.client, ids)
    assert MARK in json.dumps(before)

    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Strangers"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=300) as stranger:
        for route in list_routes():
            label = f"{route.method} {route.path}"
            path = route.path.format(**ids)
            if route.path.endswith(FORMS):
                file = (None, b"{}", "application/json")
                response = await stranger.request(route.method, path, files={str(uuid4()): file})
            else:
                body = BODIES.get(label, {} if route.body_type is not None else None)
                response = await stranger.request(route.method, path, json=body, params=queries.get(label))

            assert MARK not in response.text, label

            if label in EMPTY:
                assert (response.is_success, response.content) == (True, EMPTY[label]), label
            elif label != "PATCH /runs/{run_id}":  # An update of a run may arrive before the run.
                assert response.status_code in {404, 501}, (label, response.status_code, response.text)

        for path in ("/sessions", "/datasets", "/feedback", "/repos", "/annotation-queues", "/charts/section"):
            assert MARK not in (await stranger.get(path)).text, path

    assert await read_everything(server.client, ids) == before
