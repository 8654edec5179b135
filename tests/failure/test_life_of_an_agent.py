"""One agent of a platform, from its build to its deletion: the platform may lose each of its parts meanwhile.

It is what the modules on each of these parts show apart, on one platform: starting and building take most of the time.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.conftest import eventually
from tests.failure.test_listener import (
    delete_deployments,
    hold_builds,
    kill_listener_during_build,
    says_that_it_starts_again,
    truly_ended,
)
from tests.failure.test_sleep import sleep_and_be_woken_once
from tests.failure.test_upgrade import replace_while_agents_serve
from tests.platforms import Platform, Repository, find_listener, find_servers

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]
SECRET = "mint & salt"


async def test_agent_outlives_deaths_and_an_upgrade_and_sleeps(platform: Platform, repository: Repository):
    missing = Repository(repository.folder.with_name("missing"))
    missing.commit("one")
    lost = await platform.deploy(missing, "lost", config="deep/langgraph.json")
    gate = hold_builds(repository)
    with listener_paused(platform):
        deployment = await platform.deploy(repository, secrets={"FLAVOUR": SECRET})
        shown = await platform.call("GET", f"/v2/deployments/{deployment}")
        assert (shown["status"], shown["active_revision_id"]) == ("AWAITING_DATABASE", None)

    await fails_with_its_reason(platform, lost)
    await kill_listener_during_build(platform, deployment, gate)
    await truly_ended(platform, deployment)
    await is_what_was_committed(platform, deployment, repository)
    await is_reached_with_a_key_alone(platform, deployment)
    await is_traced_and_billed(platform, deployment)
    await says_that_it_starts_again(platform, deployment)

    await replace_while_agents_serve(platform, deployment)
    await sleep_and_be_woken_once(platform, deployment)
    await platform.delete(lost)
    await delete_deployments(platform, [deployment])


@contextmanager
def listener_paused(platform: Platform) -> Iterator[None]:
    listener = find_listener(platform.server)
    os.kill(listener, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(listener, signal.SIGCONT)


async def fails_with_its_reason(platform: Platform, deployment: str) -> None:
    revision = await platform.ended(deployment)
    assert revision["status"] == "BUILD_FAILED"
    assert "deep/langgraph.json" in revision["status_message"]


async def is_what_was_committed(platform: Platform, deployment: str, repository: Repository) -> None:
    """The deployment is ready, and its revision and processes have what its owner gave them."""
    shown = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert (shown["status"], shown["active_revision_id"]) == ("READY", shown["latest_revision_id"])

    revision = await platform.ended(deployment)
    source = revision["source_revision_config"]
    assert source["repo_commit_sha"] == repository.read_head()
    assert (source["repo_commit_author"], source["repo_commit_subject"]) == ("t", "one")

    logged = await platform.logs(deployment, revision["id"], "build")
    assert "Building commit" in logged
    assert SECRET not in logged + await platform.logs(deployment, revision["id"], "deploy")
    [server] = find_servers(platform.home)
    assert f"FLAVOUR={SECRET}" in read_environment(server)

    async with httpx2.AsyncClient() as client:
        info = (await client.get(f"{await platform.url(deployment)}/info")).json()["host"]

    assert (info["project_id"], info["host_revision_id"]) == (deployment, revision["id"])


def read_environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


async def is_reached_with_a_key_alone(platform: Platform, deployment: str) -> None:
    threads = f"{await platform.url(deployment)}/threads"
    refused: tuple[dict[str, str], ...] = (
        {},
        {"X-Api-Key": "lsv2_pt_wrong"},
        {"Authorization": "Bearer wrong"},
        {"X-Auth-Scheme": "langsmith"},
    )

    async with httpx2.AsyncClient(timeout=300) as client:
        statuses = [(await client.post(threads, json={}, headers=headers)).status_code for headers in refused]
        bearer = {"Authorization": f"Bearer {platform.headers['X-Api-Key']}"}
        assert (statuses, (await client.post(threads, json={}, headers=bearer)).status_code) == ([401] * 4, 200)


async def is_traced_and_billed(platform: Platform, deployment: str) -> None:
    """Each run becomes one trace that counts, whether it is streamed or awaited: `truly_ended` had one as well."""
    async with get_client(url=await platform.url(deployment), api_key=platform.headers["X-Api-Key"]) as client:
        thread = (await client.threads.create())["thread_id"]
        modes: Any = ["values", "updates", "messages-tuple"]
        events = [part.event async for part in client.runs.stream(thread, "agent", input={}, stream_mode=modes)]
        assert {"metadata", "values", "updates"} <= set(events)
        assert await client.runs.wait(thread, "agent", input={}) == {"seen": 2, "version": "one"}
        assert (await client.threads.get_state(thread))["values"] == {"seen": 2, "version": "one"}
        assert len(await client.threads.get_history(thread, limit=10)) == 6

    async def are_counted() -> bool:
        return await count_traces(platform) == 3

    await eventually(are_counted)


async def count_traces(platform: Platform) -> int:
    workspace = (await platform.call("GET", "/auth"))["tenant_id"]
    response = await platform.client.get(
        "/api/v1/orgs/current/billing/granular-usage",
        params={
            "start_time": "2026-01-01T00:00:00Z",
            "end_time": "2099-01-01T00:00:00Z",
            "workspace_ids": [workspace],
            "group_by": "project",
        },
    )

    assert response.status_code == 200, response.text
    rows = response.json()["usage"]
    return sum(row["traces"] for row in rows if row["dimensions"]["project_name"] == "my-agent")
