"""Revisions that cannot be restored after a restart.

The deployment is not `READY`, its status says why, and the listener retries until the revision serves.
"""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from portside.dataplane.compute.databases import database_name
from portside.kernel.codec import load
from tests.commands import Done, run_here
from tests.conftest import eventually
from tests.platforms import AGENT, Platform, Repository, run

# A server that exits soon after its start while a file with this name exists. It looks again before it exits, so no
# server exits after the file is gone.
CRASHING = """
import os, pathlib, threading
marker = pathlib.Path({marker!r})
if marker.exists():
    threading.Timer(0.5, lambda: marker.exists() and os._exit(7)).start()
"""

pytestmark = pytest.mark.timeout(900)


async def wait_for_status(platform: Platform, deployment: str, status: str, words: str = "") -> Any:
    """Wait until a deployment shows a status and a message with these words."""

    async def look() -> Any:
        found = await platform.call("GET", f"/v2/deployments/{deployment}")
        return found if found["status"] == status and words in (found["status_message"] or "") else None

    return await eventually(look)


async def command(platform: Platform, *arguments: str) -> Done:
    key = platform.headers["X-Api-Key"]
    return await asyncio.to_thread(run_here, *arguments, "--url", platform.server.url, "--api-key", key)


async def prints(platform: Platform, *words: str, of: tuple[str, ...]) -> None:
    """Wait until a command prints all of these words."""

    async def look() -> bool:
        printed = (await command(platform, *of)).stdout
        return all(word in printed for word in words)

    await eventually(look)


async def deploy(
    platform: Platform, repository: Repository, secrets: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Deploy, write to a thread, and return the ids of both."""
    deployment = await platform.deploy(repository, secrets=secrets)
    revision = await platform.ended(deployment)
    assert revision["status"] == "DEPLOYED", revision

    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
        url = await platform.url(deployment)
        thread = (await agent.post(f"{url}/threads", json={})).json()["thread_id"]
        assert (await run(agent, url, thread))["seen"] == 1

    return deployment, thread


async def goes_on(platform: Platform, deployment: str, thread: str) -> None:
    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as agent:
        assert (await run(agent, await platform.url(deployment), thread))["seen"] == 2


async def answers(platform: Platform, deployment: str) -> bool:
    """Whether a deployment answers; a server that is about to exit, or a taken port, may accept the connection."""
    with contextlib.suppress(httpx2.TransportError):
        async with httpx2.AsyncClient(timeout=5, headers=platform.headers) as agent:
            return (await agent.get(f"{await platform.url(deployment)}/ok")).status_code == 200

    return False


async def test_lost_build_is_reported_and_rebuilt_later(
    platform: Platform, repository: Repository, tmp_path: Path
) -> None:
    deployment, thread = await deploy(platform, repository)
    await asyncio.to_thread(platform.server.stop)
    shutil.rmtree(platform.home / "dataplane")
    away = repository.folder.rename(tmp_path / "away")

    await asyncio.to_thread(platform.server.start)

    # The message is another one during each attempt, so whoever reads it may have to read it again.
    down = await wait_for_status(platform, deployment, "UNKNOWN", "The next attempt is in")
    assert str(repository.folder) in down["status_message"]
    path = f"/v2/deployments/{deployment}/revisions/{down['active_revision_id']}"

    async def revision_says_so() -> bool:
        revision = await platform.call("GET", path)
        assert revision["status"] == "DEPLOYED"
        return "Nothing of this deployment runs." in revision["status_message"]

    await eventually(revision_says_so)
    await prints(platform, "UNKNOWN", "Nothing of this deployment runs.", of=("deployments", "list"))
    await prints(platform, str(repository.folder), "DEPLOYED (active)", of=("deployments", "show", deployment))

    away.rename(repository.folder)
    up = await wait_for_status(platform, deployment, "READY")
    assert up["active_revision_id"] == down["active_revision_id"]
    await goes_on(platform, deployment, thread)

    up = await wait_for_status(platform, deployment, "READY")
    assert up["status_message"] is None


async def is_dropped(admin: "asyncpg.Connection[asyncpg.Record]", database: str) -> bool:
    with contextlib.suppress(asyncpg.ObjectInUseError):
        await admin.execute(f"drop database {database}")
        return True

    return False


@pytest.mark.parametrize("forgot", ["database", "folder too"])
async def test_lost_database_is_reported_and_not_replaced(
    platform: Platform, repository: Repository, forgot: str
) -> None:
    deployment, _thread = await deploy(platform, repository)
    await asyncio.to_thread(platform.server.stop)

    # The restore of a backup forgot the dump of the deployment's database.
    if forgot == "folder too":
        shutil.rmtree(platform.home / "dataplane")

    name = database_name(UUID(deployment))
    admin = await asyncpg.connect(platform.database_url)
    try:
        # The connections of servers that have ended may end later, and the database is in use until then.
        await eventually(lambda: is_dropped(admin, name))
        await asyncio.to_thread(platform.server.start)
        down = await wait_for_status(
            platform, deployment, "UNKNOWN", f"its database {name} is not on this Postgres server"
        )
        assert "Restore the database from its dump." in down["status_message"]
        listed = await command(platform, "deployments", "show", deployment)
        assert f"create database {name}" in listed.stdout
        assert not await admin.fetchval("select count(*) from pg_database where datname = $1", name)

        await admin.execute(f"create database {name}")
        await wait_for_status(platform, deployment, "READY")
    finally:
        await admin.close()


async def test_new_revision_replaces_one_that_cannot_be_restored(
    platform: Platform, repository: Repository, tmp_path: Path
) -> None:
    deployment, thread = await deploy(platform, repository)
    await asyncio.to_thread(platform.server.stop)
    folder = platform.home / "dataplane" / "deployments" / deployment
    shutil.rmtree(folder / "revisions")

    # What the revision was built from is lost too: it could be built again without the repository.
    shutil.rmtree(folder / "sources")
    shutil.rmtree(repository.folder)
    await asyncio.to_thread(platform.server.start)
    await wait_for_status(platform, deployment, "UNKNOWN", "Nothing of this deployment runs.")

    # Another repository at the same path: the commit of the active revision is lost for good.
    Repository(repository.folder).commit("two")
    await platform.redeploy(deployment)
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    await wait_for_status(platform, deployment, "READY")
    await goes_on(platform, deployment, thread)


async def test_crash_loop_is_reported_and_retried(platform: Platform, repository: Repository, tmp_path: Path) -> None:
    marker = tmp_path / "crash"
    agent = CRASHING.format(marker=str(marker)) + AGENT.format(version="one")
    repository.commit("one", agent=agent.replace("{", "{{").replace("}", "}}"))

    # An executor that exits is started again by its server.
    deployment, thread = await deploy(platform, repository, {"EXECUTORS": "0"})
    marker.touch()
    await asyncio.to_thread(platform.server.stop)
    await asyncio.to_thread(platform.server.start)
    await wait_for_status(platform, deployment, "UNKNOWN", "starting another in")
    marker.unlink()
    await eventually(lambda: answers(platform, deployment))

    await wait_for_status(platform, deployment, "READY")
    await goes_on(platform, deployment, thread)


@pytest.mark.thorough
async def test_executors_that_do_not_start_are_in_the_status(
    platform: Platform, repository: Repository, tmp_path: Path
) -> None:
    """Its server answers, so the deployment is ready, and says why its graphs cannot run. It recovers by itself."""
    marker = tmp_path / "crash"
    agent = f"import os, pathlib\nif pathlib.Path({str(marker)!r}).exists():\n    os._exit(7)\n"
    agent += AGENT.format(version="one")
    repository.commit("one", agent=agent.replace("{", "{{").replace("}", "}}"))

    deployment, thread = await deploy(platform, repository)
    marker.touch()
    await asyncio.to_thread(platform.server.stop)
    await asyncio.to_thread(platform.server.start)
    await eventually(lambda: answers(platform, deployment))

    # Without work no executor starts.
    async with httpx2.AsyncClient(base_url=await platform.url(deployment), headers=platform.headers) as agent_api:
        body = {"assistant_id": "agent", "input": {}}
        assert (await agent_api.post("/runs", json=body, timeout=300)).status_code == 200

    await wait_for_status(platform, deployment, "READY", "exited with code 7 while it imported the project")
    marker.unlink()
    await goes_on(platform, deployment, thread)

    async def is_well() -> bool:
        found = await platform.call("GET", f"/v2/deployments/{deployment}")
        return found["status"] == "READY" and not found["status_message"]

    await eventually(is_well)


async def test_deployment_moves_from_taken_port(platform: Platform, repository: Repository) -> None:
    deployment, thread = await deploy(platform, repository)
    address = await platform.url(deployment)
    await asyncio.to_thread(platform.server.stop)

    state = platform.home / "dataplane" / "deployments" / deployment / "state.json"
    port = load(state.read_bytes())["port"]
    with socket.socket() as taken:
        # A connection that has ended may keep the port for a minute.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        await asyncio.to_thread(platform.server.start)

        async def moved() -> bool:
            return bool(load(state.read_bytes())["port"] != port)

        await eventually(moved)
        await eventually(lambda: answers(platform, deployment))
        await goes_on(platform, deployment, thread)

    assert await platform.url(deployment) == address
