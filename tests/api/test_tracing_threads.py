"""What pages of traces read: the runs of one trace, usage of whole traces, values in parts, and conversations.

A value is never read as a whole for its beginning, and the usage of a run contains that of all runs below it.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from langsmith import Client

from portside.tracing import threads_v2
from tests.api.hosted import Hosted, open_hosted

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
]
NOW = datetime.now(UTC).replace(microsecond=0)
SPANS = 1_200
LARGE = "x" * 200_000


def run(run_id: UUID, above: list[UUID], started: float, **fields: Any) -> dict[str, Any]:
    start = NOW - timedelta(seconds=3600 - started)
    place = ".".join(f"20260101T000000{level:06d}Z{one}" for level, one in enumerate([*above, run_id]))
    times = {"start_time": start.isoformat(), "end_time": (start + timedelta(seconds=2)).isoformat()}
    parent = {"parent_run_id": str(above[-1])} if above else {}
    known = {"id": str(run_id), "trace_id": str((above or [run_id])[0]), "dotted_order": place, "session_name": "talks"}

    return {**known, "name": "run", "run_type": "chain", "inputs": {}, **times, **parent, **fields}


def model(above: list[UUID], started: float, tokens: int, cost: float) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 1, "total_cost": cost}
    return run(uuid4(), above, started, name="model", run_type="llm", extra={"metadata": {"usage_metadata": usage}})


def turn(thread: str, started: float, key: str = "thread_id", **fields: Any) -> list[dict[str, Any]]:
    root = uuid4()
    node = uuid4()
    metadata = {"metadata": {key: thread}}

    return [
        run(root, [], started, name="turn", extra=metadata, inputs={"text": f"question {started}"}, **fields),
        run(node, [root], started, name="node", extra=metadata),
        model([root, node], started, 10, 0.5),
        model([root, node], started + 1, 5, 0.25),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        talks = [*turn("a", 1), *turn("a", 10, error="broken"), *turn("b", 5, "session_id"), *turn("c", 3)]
        assert (await running.client.post("/runs/batch", json={"post": talks})).status_code == 202
        yield running


async def find_project_id(server: Hosted) -> str:
    return str((await server.client.get("/sessions", params={"name": "talks"})).json()[0]["id"])


async def stock_client(server: Hosted) -> Client:
    client = Client(api_url=server.url, api_key=server.key)
    await asyncio.to_thread(lambda: client.info)
    return client


async def test_stock_client_finds_threads_and_their_turns(server: Hosted) -> None:
    client = await stock_client(server)
    project = await find_project_id(server)
    listed = await asyncio.to_thread(lambda: list(client.list_threads(project_id=project)))
    assert [(one["thread_id"], one["count"]) for one in listed] == [("a", 2), ("b", 1), ("c", 1)]
    turns = await asyncio.to_thread(lambda: list(client.read_thread(thread_id="a", project_id=project)))
    assert [one.name for one in turns] == ["turn", "turn"]
    page = await client.threads.query(project_id=project, page_size=2)
    found = [thread async for thread in page]
    assert [thread.thread_id for thread in found] == ["a", "b", "c"]

    first = found[0]
    assert (first.count, first.num_errored_turns, first.last_error) == (2, 1, "broken")
    assert (first.total_tokens, first.total_cost) == (34, 1.5)
    assert first.first_inputs == '{"text":"question 1"}'
    assert first.first_trace_id != first.last_trace_id == first.trace_id


async def test_pages_of_threads_are_the_same_however_few_turns_are_searched(
    server: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"project_id": await find_project_id(server), "min_start_time": "1970-01-01T00:00:00Z"}

    async def pages(size: int) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        cursor = None
        while True:
            page = (
                await server.client.post("/v2/threads/query", json={**body, "page_size": size, "cursor": cursor})
            ).json()

            found += page["items"]
            if not (cursor := page["next_cursor"]):
                return found

    whole = await pages(100)
    assert [thread["thread_id"] for thread in whole] == ["a", "b", "c"]

    for near in (1, 2, 3, 4):
        monkeypatch.setattr(threads_v2, "NEAR_TURNS", near)
        for size in (1, 2, 3):
            assert await pages(size) == whole, (near, size)


async def test_threads_are_filtered_and_refuse_what_is_not_supported(server: Hosted) -> None:
    project = await find_project_id(server)

    async def query(**body: Any) -> tuple[int, Any]:
        response = await server.client.post("/v2/threads/query", json={"project_id": project, **body})
        return response.status_code, response.json()

    status, body = await query(filter="neq(error, null)")
    assert (status, [(one["thread_id"], one["count"]) for one in body["items"]]) == (200, [("a", 1)])
    assert (await query(max_start_time=(NOW - timedelta(days=2)).isoformat()))[1] == {"items": [], "next_cursor": None}

    assert [(await query(**wrong))[0] for wrong in ({"ai_search": "x"}, {"cursor": "x"}, {"filter": "x"})] == [
        422,
        400,
        400,
    ]


async def test_usage_of_runs_contains_that_of_runs_below(server: Hosted) -> None:
    project = await find_project_id(server)
    body = {"project_ids": [project], "filter": 'eq(thread_id, "b")', "selects": ["TRACE_ID"]}
    (root,) = (await server.client.post("/v2/runs/query", json=body)).json()["items"]
    selects = ["NAME", "TOTAL_TOKENS", "TOTAL_COST"]
    below = {"project_ids": [project], "trace_id": root["trace_id"], "selects": selects, "include_subtree_usage": True}
    found = (await server.client.post("/v2/runs/query", json=below)).json()["items"]
    used = sorted((one["name"], one["total_tokens"], one["total_cost"]) for one in found)
    assert used == [("model", 6, 0.25), ("model", 11, 0.5), ("node", 17, 0.75), ("turn", 17, 0.75)]


async def test_trace_without_a_model_used_nothing(server: Hosted) -> None:
    run_id = uuid4()
    assert (await server.client.post("/runs", json=run(run_id, [], 30, session_name="plain"))).status_code == 202
    found = (await server.client.get(f"/runs/{run_id}")).json()
    assert (found["prompt_tokens"], found["total_tokens"], found["total_cost"]) == (0, 0, None)


async def test_filters_compare_costs_and_usage_of_whole_traces(server: Hosted) -> None:
    project = await find_project_id(server)

    async def count(text: str, **more: Any) -> int:
        body = {"project_ids": [project], "filter": text, **more}
        return len((await server.client.post("/v2/runs/query", json=body)).json()["items"])

    assert await count("gt(total_cost, 0.3)") == 4
    assert await count("gt(trace_cost, 0.7)", is_root=True) == 4
    assert await count("gt(trace_cost, 0.8)", is_root=True) == 0
    assert await count("and(gte(trace_tokens, 17), lt(trace_tokens, 18))", is_root=True) == 4
    assert await count('in(thread_id, ["b", "c"])') == 2


async def test_runs_of_a_large_trace_are_one_response(server: Hosted) -> None:
    root = uuid4()
    runs = [run(root, [], 0, name="large", session_name="large")]
    runs += [run(uuid4(), [root], 1 + n / SPANS, name=f"span {n}", session_name="large") for n in range(SPANS)]
    for first in range(0, len(runs), 500):
        assert (await server.client.post("/runs/batch", json={"post": runs[first : first + 500]})).status_code == 202

    project = (await server.client.get("/sessions", params={"name": "large"})).json()[0]["id"]
    client = await stock_client(server)
    slim = await client.traces.list_runs(
        str(root), project_id=project, selects=["ID", "NAME", "STATUS", "LATENCY_SECONDS", "IS_ROOT", "TOTAL_COST"]
    )
    assert slim.items is not None
    assert [one.name for one in slim.items] == ["large", *(f"span {n}" for n in range(SPANS))]

    assert (slim.items[0].is_root, slim.items[1].is_root, slim.items[1].latency_seconds) == (True, False, 2.0)
    full = await client.traces.list_runs(
        str(root), project_id=project, filter='eq(name, "span 7")', selects=["NAME", "INPUTS"]
    )
    assert [(one.name, one.inputs) for one in full.items or []] == [("span 7", {})]
    missing = await server.client.get(f"/v2/traces/{uuid4()}/runs", params={"project_id": project})
    assert missing.status_code == 404


async def test_values_are_read_in_parts_and_downloaded_whole(server: Hosted) -> None:
    run_id = uuid4()
    stored = run(run_id, [], 20, name="ü/large", inputs={"text": LARGE}, error="äöü broken", session_name="large")
    assert (await server.client.post("/runs/batch", json={"post": [stored]})).status_code == 202
    found = (await server.client.get(f"/runs/{run_id}/values", params={"chars": 100})).json()
    values = {value["name"]: value for value in found["values"]}

    assert (values["inputs"]["bytes"], len(values["inputs"]["text"]), values["inputs"]["is_whole"]) == (
        len(LARGE) + 11,
        100,
        False,
    )

    assert (values["error"]["text"], values["error"]["is_whole"]) == ("äöü broken", True)
    whole = await server.client.get(f"/runs/{run_id}/values/inputs")
    assert whole.json() == {"text": LARGE}
    assert whole.headers["content-disposition"].startswith("attachment")
    assert whole.headers["content-security-policy"] == "default-src 'none'; sandbox"
    paths = (f"/runs/{run_id}/values/events", f"/runs/{run_id}/values/nothing", f"/runs/{uuid4()}/values")
    refused = [await server.client.get(path) for path in paths]
    assert [one.status_code for one in refused] == [404, 404, 404]

    assert "GET /runs/{run_id}/values" in refused[0].text
