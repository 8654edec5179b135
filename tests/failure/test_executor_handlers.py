"""The project's handlers run in an executor of their own: while it is away, requests that need them are refused.

The server starts it again.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.conftest import eventually
from tests.failure.cuttable_executor import CUT, interpreter
from tests.javascript import start_guarded_server, webapp_in_javascript
from tests.servers import ServerProcess, agent_server


@pytest.fixture(scope="module", params=["Python", "TypeScript"])
def server(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("away")
    settings = {"EXECUTORS": "1", "EXECUTOR_START_SECS": "600", "EXECUTOR_HEARTBEAT_SECS": "5"}
    with (
        start_guarded_server(module_database, folder, **settings)
        if request.param == "TypeScript"
        else agent_server(module_database, folder, project="guarded", **settings)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def site(module_databases: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("site")
    with webapp_in_javascript(module_databases(), folder, EXECUTOR_HEARTBEAT_SECS="5") as running:
        yield running


def handlers_pid(server: ServerProcess, of: str = "handlers") -> int:
    """Return the process of the server's child that imported the handlers: the log names each when it is ready."""
    lines = [line for line in server.log.read_text().splitlines() if "executor ready" in line and f"of={of}" in line]
    return int(lines[-1].partition("executor=")[2].split()[0])


async def test_nobody_is_let_in_while_the_handlers_are_away(server: ServerProcess, tmp_path: Path) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:

        async def status(token: str) -> int:
            response = await client.post("/threads/search", json={}, headers={"Authorization": f"Bearer {token}"})
            if response.status_code == 503:
                assert int(response.headers["retry-after"]) > 0

            return response.status_code

        async def is_back() -> bool:
            return await status("alice") == 200

        async def is_refused() -> bool:
            # The next handlers may be away as well, if they do not answer for some seconds.
            code = await status("banned")
            assert code in {403, 503}
            return code == 403

        await eventually(is_back)
        first = handlers_pid(server)
        os.kill(first, signal.SIGKILL)
        seen = {await status("alice"), await status("banned")}

        # Each of the two may have come after the restart.
        assert seen <= {200, 403, 503}
        await eventually(is_back)
        assert handlers_pid(server) != first
        assert (await client.get("/ok")).status_code == 200
        await eventually(is_refused)


async def test_paused_handlers_are_killed_and_started_again(server: ServerProcess) -> None:
    paused = handlers_pid(server)
    os.kill(paused, signal.SIGSTOP)
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:

        async def is_back() -> bool:
            response = await client.post("/threads/search", json={}, headers={"Authorization": "Bearer alice"})
            assert response.status_code in {200, 503}
            return response.status_code == 200

        await eventually(is_back)
        assert handlers_pid(server) != paused


@pytest.mark.parametrize("path", ["/killed", "/spinning"])
async def test_requests_in_flight_are_refused_when_node_ends(site: ServerProcess, path: str) -> None:
    async with httpx2.AsyncClient(base_url=site.url, timeout=300) as client:

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
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        response = await client.post("/threads", json={}, headers=headers)

    assert (response.status_code, response.json()) == (500, {"detail": "Internal Server Error"})


class Visitors:
    """People who start runs behind authentication, one after the other, and look at what is not theirs."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.accepted: dict[str, tuple[str, str]] = {}
        """The thread and the owner of each run."""
        self.statuses: set[int] = set()
        self.intruded: list[str] = []
        self._http = httpx2.AsyncClient(base_url=server.url, timeout=300)
        self._tasks = [asyncio.create_task(self._visit(f"person{number}")) for number in range(count)]

    async def send(self, person: str, method: str, path: str, **body: Any) -> httpx2.Response | None:
        """Send a request; None if the server refused it because an executor is away."""
        headers = {"Authorization": f"Bearer {person}"}
        response = await self._http.request(method, path, headers=headers, json=body or None)
        self.statuses.add(response.status_code)
        return None if response.status_code == 503 else response

    async def _visit(self, person: str) -> None:
        while True:
            thread = await self.send(person, "POST", "/threads", metadata={"note": "mine"})
            if thread is not None:
                thread_id = thread.json()["thread_id"]
                run = await self.send(person, "POST", f"/threads/{thread_id}/runs", assistant_id="echo", input={})
                if run is not None:
                    self.accepted[run.json()["run_id"]] = thread_id, person

                seen = await self.send("somebody", "GET", f"/threads/{thread_id}")
                if seen is not None and seen.status_code != 404:
                    self.intruded.append(thread_id)

            await asyncio.sleep(0.05)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        await self._http.aclose()

    async def status(self, run_id: str) -> str | None:
        """Return how a run ended; None if it has not, or nobody may look."""
        thread_id, person = self.accepted[run_id]
        found = await self.send(person, "GET", f"/threads/{thread_id}/runs/{run_id}")
        status = None if found is None else found.json()["status"]
        return None if status in {"pending", "running"} else status


@pytest.mark.thorough
@pytest.mark.timeout(1200)
async def test_every_run_ends_once_while_executors_are_killed_paused_and_cut_off(agent_databases, tmp_path) -> None:
    settings = {"EXECUTORS": "1", "EXECUTOR_START_SECS": "600", "EXECUTOR_HEARTBEAT_SECS": "4"}
    settings |= {"EXECUTOR_PYTHON": str(interpreter(tmp_path)), "BG_JOB_MAX_RETRIES": "100"}
    settings["EXECUTOR_SPARES"] = "0"

    with agent_server(await agent_databases(), tmp_path, project="guarded", **settings) as server:
        visitors = Visitors(server, 6)

        async def goes_on(before: int) -> None:
            async def has_more() -> bool:
                return len(visitors.accepted) >= before + 12

            await eventually(has_more)

        await goes_on(0)

        for harm in (signal.SIGKILL, signal.SIGSTOP, CUT):
            for of in ("handlers", "graphs"):
                harmed = handlers_pid(server, of)
                os.kill(harmed, harm)

                async def is_replaced(of: str = of, harmed: int = harmed) -> bool:
                    return handlers_pid(server, of) != harmed

                await eventually(is_replaced)
                await goes_on(len(visitors.accepted))

        await visitors.leave()

        for run_id in visitors.accepted:
            assert await eventually(lambda run_id=run_id: visitors.status(run_id)) == "success"

        await visitors.close()
        assert visitors.intruded == []
        assert visitors.statuses <= {200, 404, 503}
        rows = await run_rows(server)
        assert {row["status"] for row in rows} == {"success"}
        assert {str(row["run_id"]) for row in rows} >= visitors.accepted.keys()


async def run_rows(server: ServerProcess) -> list[Any]:
    connection = await asyncpg.connect(server.environment["DATABASE_URI"], server_settings={"search_path": "portside"})
    try:
        return await connection.fetch("select run_id, status from runs")
    finally:
        await connection.close()
