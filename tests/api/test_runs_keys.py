"""Runs that are asked for twice, through the stock SDK: a key makes every way to create a run safe to repeat."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError

from tests.servers import ServerProcess

STEPS = {"done": [], "pause_s": 0}


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as opened:
        yield opened


@pytest.fixture
async def thread_id(client: LangGraphClient) -> str:
    return (await client.threads.create())["thread_id"]


@pytest.fixture
def key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid4())}


@pytest.fixture(params=["thread", "stateless"])
def where(request: pytest.FixtureRequest, thread_id: str) -> str | None:
    return thread_id if request.param == "thread" else None


async def test_creating_twice_makes_one_run(client: LangGraphClient, where: str | None, key):
    first = await client.runs.create(where, "steps", input=STEPS, headers=key)
    values = await client.runs.join(first["thread_id"], first["run_id"])
    again = await client.runs.create(where, "steps", input=STEPS, headers=key)
    assert (again["run_id"], again["thread_id"]) == (first["run_id"], first["thread_id"])
    assert again["metadata"] == first["metadata"]
    assert values["done"] == ["one", "two", "three"]
    assert await client.runs.wait(where, "steps", input=STEPS, headers=key) == values

    if where is not None:
        assert len(await client.runs.list(where)) == 1


async def test_concurrent_requests_with_one_key_wait_for_one_run(client: LangGraphClient, where: str | None, key):
    slow = {"done": [], "pause_s": 0.2}
    responses = await asyncio.gather(*(client.runs.wait(where, "steps", input=slow, headers=key) for _ in range(5)))
    assert [response["done"] for response in responses] == [["one", "two", "three"]] * 5


async def stream_parts(client: LangGraphClient, where: str | None, key: dict[str, str], **options: Any) -> list[Any]:
    slow = {"done": [], "pause_s": 0.2}
    stream = client.runs.stream(where, "steps", input=slow, stream_mode="updates", headers=key, **options)
    return [part async for part in stream]


async def test_streaming_again_joins_the_stream(client: LangGraphClient, thread_id: str, key):
    options = {"stream_resumable": True}
    first, second = await asyncio.gather(*(stream_parts(client, thread_id, key, **options) for _ in range(2)))
    later = await stream_parts(client, thread_id, key, **options)
    assert [part.event for part in first] == ["metadata", "updates", "updates", "updates"]
    assert [part.data for part in first] == [part.data for part in second] == [part.data for part in later]
    assert len(await client.runs.list(thread_id)) == 1


async def test_a_batch_is_made_once(client: LangGraphClient, http: httpx2.AsyncClient, key):
    bodies = [{"assistant_id": "steps", "input": STEPS, "metadata": {"place": place}} for place in range(3)]
    made = [(await http.post("/runs/batch", json=bodies, headers=key)).json() for _ in range(2)]
    ids = [[run["run_id"] for run in runs] for runs in made]
    assert ids[0] == ids[1]
    assert [run["metadata"]["place"] for run in made[1]] == [0, 1, 2]
    longer = [*bodies, {"assistant_id": "steps", "input": STEPS}]
    refused = await http.post("/runs/batch", json=longer, headers=key)
    assert (refused.status_code, "Idempotency-Key" in refused.text) == (422, True)


async def test_another_request_with_the_same_key_is_refused_by_name(client: LangGraphClient, thread_id: str, key):
    await client.runs.wait(thread_id, "steps", input=STEPS, headers=key)
    with pytest.raises(UnprocessableEntityError, match="Idempotency-Key"):
        await client.runs.create(thread_id, "steps", input=None, headers=key)

    other = await client.threads.create()
    assert (await client.runs.wait(other["thread_id"], "steps", input=STEPS, headers=key))["done"]


async def test_empty_and_too_long_keys_are_refused(http: httpx2.AsyncClient):
    for value in ("", "x" * 256):
        response = await http.post("/runs", json={"assistant_id": "steps"}, headers={"Idempotency-Key": value})
        assert (response.status_code, "Idempotency-Key" in response.text) == (422, True)


async def test_openapi_document_lists_the_idempotency_key(http: httpx2.AsyncClient):
    paths = (await http.get("/openapi.json")).json()["paths"]
    keyed = {
        path
        for path, operations in paths.items()
        for parameter in operations.get("post", {}).get("parameters", [])
        if parameter["name"] == "Idempotency-Key"
    }

    assert keyed == {
        "/threads/{thread_id}/runs",
        "/threads/{thread_id}/runs/wait",
        "/threads/{thread_id}/runs/stream",
        "/runs",
        "/runs/wait",
        "/runs/stream",
        "/runs/batch",
    }
