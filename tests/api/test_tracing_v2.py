"""Version 2 of reading runs, and shared links, with the stock client and over HTTP.

A link shows the shared run and its descendants, and answers no query about the rest of its trace.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client

from portside.tracing import run_pages
from tests.api.hosted import Hosted, open_hosted

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
]
ROOT, MODEL, DEEP, BESIDE = (UUID(int=n) for n in range(1, 5))
NOW = datetime.now(UTC).replace(microsecond=0)
EVERY_FIELD = [
    "ID",
    "NAME",
    "RUN_TYPE",
    "STATUS",
    "START_TIME",
    "END_TIME",
    "LATENCY_SECONDS",
    "FIRST_TOKEN_TIME",
    "ERROR",
    "ERROR_PREVIEW",
    "EXTRA",
    "METADATA",
    "EVENTS",
    "INPUTS",
    "INPUTS_PREVIEW",
    "OUTPUTS",
    "OUTPUTS_PREVIEW",
    "MANIFEST",
    "PARENT_RUN_IDS",
    "PROJECT_ID",
    "TRACE_ID",
    "THREAD_ID",
    "DOTTED_ORDER",
    "IS_ROOT",
    "REFERENCE_EXAMPLE_ID",
    "REFERENCE_DATASET_ID",
    "TOTAL_TOKENS",
    "PROMPT_TOKENS",
    "COMPLETION_TOKENS",
    "TOTAL_COST",
    "PROMPT_COST",
    "COMPLETION_COST",
    "PROMPT_TOKEN_DETAILS",
    "COMPLETION_TOKEN_DETAILS",
    "PROMPT_COST_DETAILS",
    "COMPLETION_COST_DETAILS",
    "PRICE_MODEL_ID",
    "TAGS",
    "APP_PATH",
    "ATTACHMENTS",
    "THREAD_EVALUATION_TIME",
    "IS_IN_DATASET",
    "LAST_QUEUED_AT",
    "SHARE_URL",
    "FEEDBACK_STATS",
    "LS_USER_ID",
]


def run(run_id: UUID, above: list[UUID], started: float, **fields: Any) -> dict[str, Any]:
    start = NOW - timedelta(seconds=60 - started)
    place = ".".join(f"20260101T00000{level}000000Z{one}" for level, one in enumerate([*above, run_id]))
    times = {"start_time": start.isoformat(), "end_time": (start + timedelta(seconds=2)).isoformat()}
    parent = {"parent_run_id": str(above[-1])} if above else {}
    known = {"id": str(run_id), "trace_id": str(ROOT), "dotted_order": place, "session_name": "p"}

    return {**known, "run_type": "chain", "inputs": {"n": started}, **times, **parent, **fields}


USAGE = {"input_tokens": 7, "output_tokens": 5, "total_cost": 0.25, "input_token_details": {"cache_read": 3}}
RUNS = [
    run(ROOT, [], 1, name="root"),
    run(
        MODEL, [ROOT], 2, name="model", run_type="llm", extra={"metadata": {"usage_metadata": USAGE, "thread_id": "t1"}}
    ),
    run(DEEP, [ROOT, MODEL], 3, name="deep", error="bad\n" * 200),
    run(BESIDE, [ROOT], 4, name="beside"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        assert (await running.client.post("/runs/batch", json={"post": RUNS})).status_code == 202
        for run_id in (ROOT, MODEL, DEEP):
            await running.client.post("/feedback", json={"run_id": str(run_id), "key": "k", "score": 1})

        yield running


async def find_project_id(server: Hosted) -> str:
    return str((await server.client.get("/sessions", params={"name": "p"})).json()[0]["id"])


async def stock_client(server: Hosted) -> Client:
    """A client that has asked for `/info` already: it asks without leaving its thread, which serves here."""
    client = Client(api_url=server.url, api_key=server.key)
    await asyncio.to_thread(lambda: client.info)
    return client


async def test_the_sdk_reads_every_field(server: Hosted):
    project = await find_project_id(server)

    client = await stock_client(server)
    pager = await client.runs.query(project_ids=[project], selects=EVERY_FIELD, page_size=3)
    found = [item async for item in pager]
    one = await client.runs.retrieve(str(MODEL), project_id=project, selects=["NAME", "METADATA"])
    assert [item.name for item in found] == ["beside", "deep", "model", "root"]
    model = found[2]
    deep = found[1]

    assert (model.status, model.run_type, model.latency_seconds, model.is_root) == ("SUCCESS", "LLM", 2, False)
    assert (model.total_tokens, model.total_cost, model.prompt_token_details.raw) == (12, 0.25, {"cache_read": 3})
    assert (model.thread_id, model.project_id, model.parent_run_ids) == ("t1", project, [str(ROOT)])
    assert (deep.status, len(deep.error_preview), len(deep.error)) == ("ERROR", 250, 800)
    assert (deep.feedback_stats["k"].n, deep.metadata, deep.attachments) == (1, None, {})
    assert (one.name, one.id, one.metadata["thread_id"]) == ("model", None, "t1")


async def test_filters_restrict_runs(server: Hosted):
    project = await find_project_id(server)

    async def names(**body: Any) -> list[str]:
        asked = {"project_ids": [project], "selects": ["NAME"], **body}
        response = await server.client.post("/api/v2/runs/query", json=asked)
        assert response.status_code == 200, response.text
        return [item["name"] for item in response.json()["items"]]

    assert await names(run_type="LLM") == await names(trace_id=str(ROOT), filter='eq(name, "model")') == ["model"]
    assert await names(is_root=True) == ["root"]
    assert await names(has_error=True) == await names(ids=[str(DEEP)]) == ["deep"]
    assert await names(max_start_time=RUNS[1]["start_time"]) == ["model", "root"]
    assert await names(min_start_time=(NOW + timedelta(hours=1)).isoformat()) == []
    dataset = str(uuid4())
    assert await names(project_ids=None, reference_dataset_id=dataset) == []

    await server.client.patch(f"/sessions/{project}", json={"reference_dataset_id": dataset})
    assert await names(project_ids=None, reference_dataset_id=dataset, is_root=True) == ["root"]


async def test_old_runs_are_found_by_their_time(server: Hosted):
    old = {**RUNS[0], "id": str(uuid4()), "trace_id": None, "dotted_order": None, "session_name": "old"}
    old["start_time"] = (NOW - timedelta(days=3)).isoformat()
    assert (await server.client.post("/runs", json=old)).status_code == 202

    project = (await server.client.get("/sessions", params={"name": "old"})).json()[0]["id"]
    for body, count in (({}, 0), ({"min_start_time": "2020-01-01T00:00:00Z"}, 1)):
        response = await server.client.post("/api/v2/runs/query", json={"project_ids": [project], **body})
        assert len(response.json()["items"]) == count


async def test_invalid_queries_are_refused(server: Hosted):
    project = await find_project_id(server)
    for body, field in (
        ({}, "project_ids"),
        ({"project_ids": []}, "project_ids"),
        ({"project_ids": [project], "reference_dataset_id": str(uuid4())}, "project_ids"),
        ({"project_ids": [project], "page_size": 1001}, "page_size"),
        ({"project_ids": [project], "selects": ["COLOUR"]}, "selects"),
        ({"project_ids": [project], "ai_search": "angry"}, "ai_search"),
    ):
        response = await server.client.post("/api/v2/runs/query", json=body)
        assert (response.status_code, response.json()["detail"][0]["loc"][:2]) == (422, ["body", field])

    other = await server.client.get(f"/api/v2/runs/{MODEL}", params={"project_id": str(uuid4())})
    assert other.status_code == 404


async def test_a_share_link_shows_descendants_alone(server: Hosted):
    token = (await server.client.put(f"/runs/{MODEL}/share", json={})).json()["share_token"]
    client = await stock_client(server)
    listed = await asyncio.to_thread(lambda: list(client.list_shared_runs(token)))
    assert {item.name for item in listed} == {"model", "deep"}
    shown = (await client.public.runs.query(token, selects=["NAME", "INPUTS_PREVIEW"])).items or []

    assert [(item.name, item.inputs_preview) for item in shown] == [("model", '{"n":2}'), ("deep", '{"n":3}')]
    async with httpx2.AsyncClient(base_url=server.url) as nobody:
        path = f"/public/{token}/runs/query"
        assert (await nobody.post(path, json={"id": [str(ROOT), str(BESIDE)]})).json()["runs"] == []
        anything = {"filter": "or(exists(name), not(exists(name)))"}
        assert len((await nobody.post(path, json=anything)).json()["runs"]) == 2

        for name in ("trace_filter", "tree_filter"):
            assert (await nobody.post(path, json={name: 'eq(name, "root")'})).status_code == 422

        feedback = (await nobody.get(f"/public/{token}/feedbacks")).json()
        assert {item["run_id"] for item in feedback} == {str(MODEL), str(DEEP)}
        assert all(item["feedback_source"] == {"type": "api"} for item in feedback)
        one = (await nobody.get(f"/public/{token}/feedbacks", params={"run": [str(DEEP), str(ROOT)]})).json()
        assert [item["run_id"] for item in one] == [str(DEEP)]
        for field in ("LS_USER_ID", "APP_PATH", "SHARE_URL"):
            hidden = await nobody.post(f"/api/v2/public/{token}/runs/query", json={"selects": ["ID", field]})
            assert hidden.status_code == 422, field

        await server.client.delete(f"/runs/{MODEL}/share")
        assert (await nobody.post(path, json={})).status_code == 404


async def test_another_workspace_finds_nothing(server: Hosted):
    project = await find_project_id(server)
    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Others"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        response = await other.post("/api/v2/runs/query", json={"project_ids": [project]})
        assert response.json() == {"items": [], "next_cursor": None, "has_more": False}
        assert (await other.get(f"/api/v2/runs/{MODEL}", params={"project_id": project})).status_code == 404


async def test_a_search_with_a_limit_finds_the_same_runs_piece_by_piece(server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_pages, "FIRST_WINDOW", 7)
    monkeypatch.setattr(run_pages, "LAST_WINDOW", 7)
    ids = [uuid4() for _ in range(40)]

    posts = [
        run(one, [], -number / 10, name="rare" if number in {3, 21, 22, 39} else "common")
        | {"trace_id": str(one), "session_name": "many"}
        for number, one in enumerate(ids)
    ]

    assert (await server.client.post("/runs/batch", json={"post": posts})).status_code == 202
    [project] = (await server.client.get("/sessions", params={"name": "many"})).json()
    query = {"project_ids": [project["id"]], "filter": 'eq(name, "rare")', "selects": ["ID"]}
    whole = (await server.client.post("/v2/runs/query", json=query)).json()
    assert [UUID(one["id"]) for one in whole["items"]] == [ids[number] for number in (3, 21, 22, 39)]
    assert (whole["has_more"], whole.get("searched_to")) == (False, None)
    found = []

    pages = []
    cursor = None
    while True:
        # So short that neither the first statement nor a second window is tried.
        page = {**query, "search_seconds": 1e-6, "cursor": cursor}
        answer = (await server.client.post("/v2/runs/query", json=page)).json()
        found += [UUID(one["id"]) for one in answer["items"]]
        pages.append(answer)

        cursor = answer["next_cursor"]
        assert answer["has_more"] == (cursor is not None) == ("searched_to" in answer)

        if cursor is None:
            break

    assert found == [ids[number] for number in (3, 21, 22, 39)]
    assert [len(page["items"]) for page in pages] == [1, 0, 2, 0, 1, 0]
    reached = [page["searched_to"] for page in pages[:-1]]
    assert reached == sorted(reached, reverse=True)
    quick = (await server.client.post("/v2/runs/query", json={**query, "search_seconds": 60})).json()
    assert quick == whole
    small = {**query, "search_seconds": 1e-6, "page_size": 1}

    pairs = []
    cursor = None
    while len(pairs) < 50:
        answer = (await server.client.post("/v2/runs/query", json={**small, "cursor": cursor})).json()
        pairs += [UUID(one["id"]) for one in answer["items"]]
        if (cursor := answer["next_cursor"]) is None:
            break

    assert pairs == found
