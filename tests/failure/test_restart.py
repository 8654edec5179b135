"""After a crash of a platform with several agents each is as before: awake ones serve, and sleeping ones sleep on.

Clients that send requests meanwhile get no connection, or 503 with `Retry-After`; no request is lost before an agent.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import httpx2
import pytest

from tests.conftest import eventually
from tests.platforms import Platform, Repository, find_listener, find_processes, find_servers, run

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]
NAMES = ("asleep", "broken", "first", "second")


class Client:
    """Somebody who asks an agent again and again until it answers."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = headers
        self.refused: list[tuple[int, str | None]] = []

    async def waits(self) -> None:
        async with httpx2.AsyncClient(timeout=300, headers=self._headers) as client:
            await eventually(lambda: self._is_served(client), 300)

    async def _is_served(self, client: httpx2.AsyncClient) -> bool:
        try:
            answer = await client.post(f"{self._url}/runs/wait", json={"assistant_id": "agent", "input": {}})
        except httpx2.TransportError:
            return False

        if answer.status_code == 200:
            assert answer.json()["seen"] == 1
            return True

        self.refused.append((answer.status_code, answer.headers.get("retry-after")))
        return False


def crash(platform: Platform) -> None:
    """Kill the platform, its listener, all agents and their executors at once."""
    processes = [find_listener(platform.server), *find_processes(platform.home)]
    platform.server.kill()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def servers_at(platform: Platform, deployment: str) -> list[int]:
    found = []
    for server in find_servers(platform.home):
        with contextlib.suppress(OSError):
            found += [server] if deployment in Path(f"/proc/{server}/cmdline").read_text() else []

    return found


async def test_agents_are_as_before_after_a_crash_and_none_holds_up_the_others(platform: Platform, tmp_path: Path):
    repository = Repository(tmp_path / "repository")
    repository.commit("1")

    made = {name: await platform.deploy(repository, name) for name in NAMES}
    for deployment in made.values():
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"

    urls = {name: await platform.url(deployment) for name, deployment in made.items()}
    await platform.call("PATCH", f"/v2/deployments/{made['asleep']}", sleep_after_s=1)

    async def shows(name: str, status: str, *, is_asleep: bool) -> bool:
        found = await platform.call("GET", f"/v2/deployments/{made[name]}")
        return (found["status"], found["is_asleep"]) == (status, is_asleep)

    async def sleeps_alone() -> bool:
        is_asleep = await shows("asleep", "READY", is_asleep=True)
        return is_asleep and not servers_at(platform, made["asleep"])

    await eventually(sleeps_alone)
    # The third agent can no longer be started.
    folder = platform.home / "dataplane" / "deployments" / made["broken"]
    (config,) = folder.glob("revisions/*/source/langgraph.json")
    away = config.rename(config.with_name("away.json"))

    await asyncio.to_thread(crash, platform)
    clients = [Client(urls[name], platform.headers) for name in ("first", "second")]
    waiting = asyncio.gather(*(client.waits() for client in clients))
    await asyncio.to_thread(platform.server.start)
    await waiting
    assert {refused for client in clients for refused in client.refused} <= {(503, "1")}
    await eventually(lambda: shows("broken", "UNKNOWN", is_asleep=False))

    # The agents answer before the listener says so.
    await eventually(lambda: shows("first", "READY", is_asleep=False))
    await eventually(lambda: shows("asleep", "READY", is_asleep=True))
    assert servers_at(platform, made["asleep"]) == []

    away.rename(config)
    await eventually(lambda: shows("broken", "READY", is_asleep=False), 300)
    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as client:
        for name in NAMES:
            assert (await run(client, urls[name]))["seen"] == 1
