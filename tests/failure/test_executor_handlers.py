"""The project's handlers in an executor of their own: while it is away, what needs them is refused.

The server starts it again.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.conftest import eventually
from tests.javascript import guarded_in_javascript, webapp_in_javascript
from tests.servers import ServerProcess, agent_server


@pytest.fixture(scope="module", params=["Python", "TypeScript"])
def server(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("away")
    settings = {"EXECUTORS": "1", "EXECUTOR_START_SECS": "600", "EXECUTOR_HEARTBEAT_SECS": "5"}
    with (
        guarded_in_javascript(module_database, folder, **settings)
        if request.param == "TypeScript"
        else agent_server(module_database, folder, project="guarded", **settings)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def site(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("site")
    with webapp_in_javascript(module_database, folder, EXECUTOR_HEARTBEAT_SECS="5") as running:
        yield running


def handlers_pid(server: ServerProcess) -> int:
    """Return the process of the server's child that imported the handlers: the log names each when it is ready."""
    lines = [line for line in server.log.read_text().splitlines() if "executor ready" in line and "handlers" in line]
    return int(lines[-1].partition("executor=")[2].split()[0])


async def test_nobody_is_let_in_while_the_handlers_are_away(server: ServerProcess, tmp_path: Path) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:

        async def status(token: str) -> int:
            response = await client.post("/threads/search", json={}, headers={"Authorization": f"Bearer {token}"})
            if response.status_code == 503:
                assert int(response.headers["retry-after"]) > 0
            return response.status_code

        async def is_back() -> bool:
            return await status("alice") == 200

        assert await is_back()
        first = handlers_pid(server)
        os.kill(first, signal.SIGKILL)
        seen = {await status("alice"), await status("banned")}
        # Each of the two may have come after the restart.
        assert seen <= {200, 403, 503}
        await eventually(is_back)
        assert handlers_pid(server) != first
        assert (await client.get("/ok")).status_code == 200
        assert await status("banned") == 403


async def test_paused_handlers_are_killed_and_started_again(server: ServerProcess) -> None:
    paused = handlers_pid(server)
    os.kill(paused, signal.SIGSTOP)
    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:

        async def is_back() -> bool:
            response = await client.post("/threads/search", json={}, headers={"Authorization": "Bearer alice"})
            assert response.status_code in {200, 503}
            return response.status_code == 200

        await eventually(is_back)
        assert handlers_pid(server) != paused


@pytest.mark.parametrize("path", ["/killed", "/spinning"])
async def test_requests_in_flight_are_refused_when_node_ends(site: ServerProcess, path: str) -> None:
    async with httpx2.AsyncClient(base_url=site.url, timeout=120) as client:

        async def is_back() -> bool:
            return (await client.get("/info")).status_code == 200

        async def is_begun() -> bool:
            return f"began for {path}" in site.log.read_text()

        await eventually(is_back)
        first = handlers_pid(site)
        waiting = asyncio.create_task(client.get(f"/waiting{path}"))
        await eventually(is_begun)
        ending = asyncio.create_task(client.get(path))
        for response in (await ending, await waiting):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
        assert (await client.post("/threads/search", json={})).status_code in {200, 503}
        await eventually(is_back)
        assert handlers_pid(site) != first


@pytest.mark.thorough
async def test_a_handler_that_never_returns_denies(server: ServerProcess) -> None:
    headers = {"Authorization": "Bearer endless"}
    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:
        response = await client.post("/threads", json={}, headers=headers)
    assert (response.status_code, response.json()) == (500, {"detail": "Internal Server Error"})
