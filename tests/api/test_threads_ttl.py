"""Lifetimes from the configuration file: each new thread gets one, and expired threads are swept."""

import json
from collections.abc import Iterator

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError

from tests.conftest import eventually
from tests.servers import PROJECTS, ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
TTL = {"default_ttl": 0.02, "strategy": "delete", "sweep_interval_minutes": 0.002}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("project")
    graphs = {"echo": f"{PROJECTS / 'graphs' / 'graphs.py'}:echo"}
    config = {"dependencies": ["."], "graphs": graphs, "checkpointer": {"ttl": TTL}}
    (folder / "langgraph.json").write_text(json.dumps(config))

    with agent_server(module_database, folder, project=str(folder)) as running:
        yield running


async def is_gone(client: LangGraphClient, thread_id: str) -> bool:
    try:
        await client.threads.get(thread_id)
    except NotFoundError:
        return True

    return False


async def test_threads_expire_after_the_configured_lifetime(client):
    thread = await client.threads.create()
    by_run = (await client.runs.create(None, "echo", input=HI, on_completion="keep"))["thread_id"]
    kept = await client.threads.create(ttl=60)

    for thread_id in (thread["thread_id"], by_run):
        await eventually(lambda thread_id=thread_id: is_gone(client, thread_id))

    ttl = (await client.threads.get(kept["thread_id"], include=["ttl"]))["ttl"]
    assert (ttl["ttl_minutes"], ttl["strategy"]) == (60, "delete")


async def test_keep_latest_strategy_keeps_the_latest_state(client):
    thread_id = (await client.threads.create(ttl={"ttl": 0.005, "strategy": "keep_latest"}))["thread_id"]
    await client.runs.wait(thread_id, "echo", input=HI)

    async def is_pruned() -> bool:
        return len(await client.threads.get_history(thread_id, limit=10)) == 1

    await eventually(is_pruned)
    assert len((await client.threads.get_state(thread_id))["values"]["messages"]) == 2
    assert len((await client.runs.wait(thread_id, "echo", input=HI))["messages"]) == 4
