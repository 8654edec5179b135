"""Deployments from end to end: a real platform with its listener, real repositories, builds and agent servers."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import eventually
from tests.platforms import CONFIG, Platform, Repository, find_listener, find_processes, find_servers, run

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


async def test_switch_loses_no_request_and_failures_keep_serving(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    first = await platform.ended(deployment)
    assert first["status"] == "DEPLOYED", first
    url = await platform.url(deployment)
    answers: list[str] = []
    done = False

    async def client() -> None:
        async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
            thread = (await agent.post(f"{url}/threads", json={})).json()["thread_id"]
            while not done:
                answers.append((await run(agent, url, thread))["version"])

    clients = [asyncio.create_task(client()) for _ in range(2)]

    async def is_answered(version: str) -> bool:
        return version in answers or any(task.done() for task in clients)

    await eventually(lambda: is_answered("one"))
    commit = repository.commit("two")
    await platform.redeploy(deployment)
    second = await platform.ended(deployment)
    assert (second["status"], second["source_revision_config"]["repo_commit_sha"]) == ("DEPLOYED", commit)
    assert second["source_revision_config"]["repo_commit_author"] == "t"
    assert second["source_revision_config"]["repo_commit_subject"] == "two"

    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
        assert (await run(agent, url))["version"] == "two"

    # A client's request in flight may still be the earlier server's.
    await eventually(lambda: is_answered("two"))
    done = True
    await asyncio.gather(*clients)
    assert set(answers) == {"one", "two"}
    await fails(platform, deployment, repository, "BUILD_FAILED", "langgraph.json", config="{")
    await fails(platform, deployment, repository, "DEPLOY_FAILED", "no_such_module", agent="import no_such_module\n")

    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
        assert (await run(agent, url))["version"] == "two"

    found = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert found["active_revision_id"] == second["id"]
    assert "Building commit" in await platform.logs(deployment, second["id"], "build")
    await eventually(lambda: has_logged(platform, deployment, second["id"], "answering on the deployment's address"))


async def fails(
    platform: Platform, deployment: str, repository: Repository, status: str, words: str, **files: str
) -> None:
    """Deploy a commit that fails, and check the reason on the revision and in its log."""
    repository.commit("broken", **files)
    await platform.redeploy(deployment)
    revision = await platform.ended(deployment)
    assert revision["status"] == status, revision
    assert words in revision["status_message"]

    # The listener reports the end of a revision also if the platform has not taken its last lines yet.
    kind = "build" if status == "BUILD_FAILED" else "deploy"
    await eventually(lambda: has_logged(platform, deployment, revision["id"], words, kind=kind))


async def has_logged(platform: Platform, deployment: str, revision: str, words: str, *, kind: str = "deploy") -> bool:
    return words in await platform.logs(deployment, revision, kind)


async def test_deployment_survives_every_kind_of_death_without_rebuild(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    revision = await platform.ended(deployment)
    assert revision["status"] == "DEPLOYED", revision
    url = await platform.url(deployment)
    built = next(platform.home.glob("dataplane/deployments/*/revisions/*/built.json"))
    before = built.stat().st_mtime_ns

    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
        thread = (await agent.post(f"{url}/threads", json={})).json()["thread_id"]
        assert (await run(agent, url, thread))["seen"] == 1

    (replica,) = find_servers(platform.home)
    os.kill(replica, signal.SIGKILL)
    await serves_again(platform, url, thread, 2, replica)

    (replica,) = find_servers(platform.home)
    before_at = (await wait_for_metrics(platform, deployment))["measured_at"]
    os.kill(find_listener(platform.server), signal.SIGKILL)
    await eventually(lambda: is_measured_after(platform, deployment, before_at))
    assert find_servers(platform.home) == [replica], "the next listener adopts what serves"

    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
        assert (await run(agent, url, thread))["seen"] == 3

    (replica,) = find_servers(platform.home)
    await asyncio.to_thread(platform.server.kill)
    await asyncio.to_thread(platform.server.start)
    await serves_again(platform, url, thread, 4, replica)
    assert await platform.url(deployment) == url
    assert built.stat().st_mtime_ns == before
    found = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert found["latest_revision_id"] == found["active_revision_id"] == revision["id"]


async def wait_for_metrics(platform: Platform, deployment: str) -> Any:
    """Wait for the metrics of a deployment, and return them."""

    async def look() -> Any:
        found = await platform.call("GET", f"/v2/deployments/{deployment}/metrics")
        return found if found["replicas"] else None

    return await eventually(look)


async def is_measured_after(platform: Platform, deployment: str, moment: str) -> bool:
    found = await wait_for_metrics(platform, deployment)
    return bool(found["measured_at"] > moment and found["replicas"] == 1 and found["restarts"] == 0)


async def serves_again(platform: Platform, url: str, thread: str, seen: int, gone: int) -> None:
    """Wait until only the other replica serves, and continue the thread on it."""

    async def has_successor() -> bool:
        found = find_servers(platform.home)
        return len(found) == 1 and found != [gone]

    await eventually(has_successor)
    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:

        async def answers() -> Any:
            with contextlib.suppress(httpx2.TransportError):
                return (await agent.get(f"{url}/threads/{thread}/state")).json()["values"]
            return None

        assert (await eventually(answers))["seen"] == seen - 1
        assert (await run(agent, url, thread))["seen"] == seen


async def test_deletion_during_build_leaves_nothing(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    url = await platform.url(deployment)
    repository.commit("two", config=CONFIG.replace('"."', '".", "orjson"'))
    await platform.redeploy(deployment)
    await platform.delete(deployment)
    assert find_processes(platform.home) == []

    assert list((platform.home / "dataplane" / "deployments").iterdir()) == []
    async with httpx2.AsyncClient(headers=platform.headers) as agent:
        assert (await agent.get(f"{url}/ok")).status_code == 404


async def test_unknown_repository_fails_with_git_error(platform: Platform, repository: Repository):
    repository.folder.rename(repository.folder.with_name("moved"))
    deployment = await platform.deploy(repository)
    revision = await platform.ended(deployment)
    assert revision["status"] == "BUILD_FAILED"
    assert "does not appear to be a git repository" in revision["status_message"]
