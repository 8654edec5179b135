"""When processes die, a listener answers all requests, ends all revisions and leaves nothing behind.

PORTSIDE_SWITCHES says through how many switches requests are sent, PORTSIDE_CHAOS_SEEDS for how many seeds the control
plane, the listener, agents and their executors are killed at random while revisions are built and switched.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import asyncpg
import httpx2
import pytest

from portside.dataplane.compute.databases import database_name
from portside.dataplane.compute.interface import STARTING
from tests.conftest import eventually
from tests.platforms import Platform, Repository, find_listener, find_processes, find_servers, run

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]
SWITCHES = int(os.environ.get("PORTSIDE_SWITCHES", "4"))
SEEDS = range(int(os.environ.get("PORTSIDE_CHAOS_SEEDS", "1")))
# How a project says that its own module installs it, and that module: it waits until a file exists.
OURS = """
[build-system]
requires = []
build-backend = "installs"
backend-path = ["."]

[project]
name = "held"
version = "1"
"""
INSTALLS = """
import pathlib, time, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.02)

    files = {{
        "held-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: held\\nVersion: 1\\n",
        "held-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "held-1.dist-info/RECORD": "",
    }}

    with zipfile.ZipFile(pathlib.Path(wheel_directory, "held-1-py3-none-any.whl"), "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)

    return "held-1-py3-none-any.whl"

build_editable = build_wheel
"""
AT_THE_END = {"DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED"}


class Endless:
    """Sends requests in the background within a block; then it ends those in flight, or drops them at a failure."""

    def __init__(self) -> None:
        self._done = False
        self._tasks = list[asyncio.Task[None]]()

    def _start(self, *work: Coroutine[Any, Any, None]) -> None:
        self._tasks += [asyncio.create_task(each) for each in work]

    async def leave(self) -> None:
        """Stop after the requests in flight."""
        self._done = True
        await asyncio.gather(*self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            await self.leave()

        # After a failure the platform may never answer.
        for task in self._tasks:
            task.cancel()

        await asyncio.gather(*self._tasks, return_exceptions=True)


class EndlessClients(Endless):
    """Endless clients: some keep their connection, some open one for each run. Failures are collected."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__()
        self._url = url
        self._headers = headers
        self.answered = 0
        self.failures = list[str]()

        self._start(*(self._visit(keeps=keeps) for keeps in (True, False)))

    async def _visit(self, *, keeps: bool) -> None:
        limits = httpx2.Limits(max_keepalive_connections=None if keeps else 0)
        async with httpx2.AsyncClient(timeout=300, limits=limits, headers=self._headers) as client:
            while not self._done:
                try:
                    await run(client, self._url)
                    self.answered += 1
                    # Requests without a pause would take most of a core from what they watch.
                    await asyncio.sleep(0.2)
                except (httpx2.HTTPError, AssertionError) as exc:
                    self.failures.append(repr(exc))


@pytest.mark.thorough
async def test_switches_and_dead_listener_lose_no_request(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    first = await platform.ended(deployment)
    assert first["status"] == "DEPLOYED", first

    async with EndlessClients(await platform.url(deployment), platform.headers) as clients:
        for number in range(SWITCHES):
            if number == SWITCHES // 2:
                await kill_listener(platform)

            await platform.call("POST", f"/v2/deployments/{deployment}/revisions/{first['id']}/redeploy")
            assert (await platform.ended(deployment))["status"] == "DEPLOYED"

    assert clients.failures == []
    assert clients.answered > SWITCHES


async def kill_listener(platform: Platform) -> None:
    """Kill the listener while a replica serves; the next listener must keep that replica."""
    serving = set(find_servers(platform.home))
    killed = find_listener(platform.server)
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: asyncio.sleep(0, find_listener_or_none(platform) not in {None, killed}))
    assert serving & set(find_servers(platform.home)), "a replica that serves is adopted"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
async def test_kills_leave_no_unfinished_revision_or_process(platform: Platform, repository: Repository, seed: int):
    chance = random.Random(seed)
    deployments = [await platform.deploy(repository, f"agent-{number}") for number in range(3)]
    for deployment in deployments:
        # A revision whose server is killed before it answers fails, and nothing deploys the first one again.
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"

    for step in range(8):
        await asyncio.sleep(chance.uniform(0.1, 4))
        await _kill_something(platform, chance)
        if chance.random() < 0.6:
            repository.commit(f"step-{step}")
            await platform.redeploy(chance.choice(deployments))

    for deployment in deployments:
        await truly_ended(platform, deployment)

    await delete_deployments(platform, deployments)


async def test_listener_killed_during_build_rebuilds(platform: Platform, repository: Repository):
    gate = hold_builds(repository)
    deployment = await platform.deploy(repository)
    await kill_listener_during_build(platform, deployment, gate)
    await truly_ended(platform, deployment)
    await says_that_it_starts_again(platform, deployment)
    await delete_deployments(platform, [deployment])


def hold_builds(repository: Repository) -> Path:
    """Let each build of a repository's newest commit wait until a file exists, which is returned."""
    gate = repository.folder.with_name("builds go on")
    (repository.folder / "pyproject.toml").write_text(OURS)
    (repository.folder / "installs.py").write_text(INSTALLS.format(gate=str(gate)))
    repository.commit("one")
    return gate


async def kill_listener_during_build(platform: Platform, deployment: str, gate: Path) -> None:
    """Kill the listener in a build that waits, and let that of the next listener go on."""
    await eventually(lambda: at_work(platform, deployment, "BUILDING"))
    await asyncio.to_thread(os.kill, find_listener(platform.server), signal.SIGKILL)
    await asyncio.to_thread(gate.touch)


async def says_that_it_starts_again(platform: Platform, deployment: str) -> None:
    """After the listener and all servers have died, a deployment is not READY before a server answers again."""
    connection = await asyncpg.connect(platform.database_url)
    try:
        await connection.execute("""
            create table reported (status text, message text);
            create function keep_report() returns trigger language plpgsql as $$
            begin
                insert into reported values (new.status, new.status_message);
                return new;
            end $$;
            create trigger keep_report after update on deployments for each row execute function keep_report();
        """)

        # While it stands still, it does not start the servers again. Nor does another, which would adopt them.
        listener = find_listener(platform.server)
        os.kill(listener, signal.SIGSTOP)
        for process in (*find_servers(platform.home), listener):
            os.kill(process, signal.SIGKILL)

        async def is_ready_again() -> bool:
            rows = await connection.fetch("select * from reported")
            return bool(rows) and rows[-1]["status"] == "READY"

        await eventually(is_ready_again, 300)
        reports = [tuple(row) for row in await connection.fetch("select * from reported")]
        assert reports[0] == ("UNKNOWN", STARTING), reports
        await connection.execute("drop trigger keep_report on deployments; drop function keep_report")
    finally:
        await connection.close()

    assert (await platform.call("GET", f"/v2/deployments/{deployment}"))["status"] == "READY"


async def at_work(platform: Platform, deployment: str, status: str) -> bool:
    revisions = (await platform.call("GET", f"/v2/deployments/{deployment}/revisions"))["resources"]
    return bool(revisions[0]["status"] == status)


async def _kill_something(platform: Platform, chance: random.Random) -> None:
    """Kill the platform, its listener, one of the agents or one of their executors."""
    what = chance.choice(["platform", "listener", "listener", "agent", "executor"])
    if what == "platform":
        await asyncio.to_thread(platform.server.kill)
        await asyncio.to_thread(platform.server.start)
        return

    listener = find_listener_or_none(platform)
    if what == "executor":
        running = sorted(set(find_processes(platform.home)) - set(find_servers(platform.home)))
    else:
        running = find_servers(platform.home) if what == "agent" else [listener] * (listener is not None)

    if running and (chosen := chance.choice(running)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGKILL)


def find_listener_or_none(platform: Platform) -> int | None:
    try:
        return find_listener(platform.server)
    except ValueError:
        return None


async def truly_ended(platform: Platform, deployment: str) -> None:
    """Wait until no revision is in progress; then the active one must answer and be the newest deployed one."""

    async def all_ended() -> Any:
        found = (await platform.call("GET", f"/v2/deployments/{deployment}/revisions", limit=100))["resources"]
        return found if {revision["status"] for revision in found} <= AT_THE_END else None

    revisions = await eventually(all_ended)
    deployed = [revision["id"] for revision in revisions if revision["status"] == "DEPLOYED"]
    active = (await platform.call("GET", f"/v2/deployments/{deployment}"))["active_revision_id"]
    assert active == (deployed[0] if deployed else None), revisions
    assert deployed, revisions

    url = await platform.url(deployment)
    async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as client:

        async def answers() -> bool:
            try:
                found = (await client.get(f"{url}/info")).json()
            except httpx2.TransportError:
                return False

            return bool(found["host"]["revision_id"] == active)

        await eventually(answers)
        await run(client, url)


async def delete_deployments(platform: Platform, deployments: list[str]) -> None:
    """Delete deployments; no process, folder, route or database of them may remain."""
    urls = [await platform.url(deployment) for deployment in deployments]
    for deployment in deployments:
        await platform.delete(deployment)

    assert find_processes(platform.home) == []
    assert list((platform.home / "dataplane" / "deployments").iterdir()) == []
    async with httpx2.AsyncClient(headers=platform.headers) as client:
        for url in urls:
            assert (await client.get(f"{url}/ok")).status_code == 404

    connection = await asyncpg.connect(platform.database_url)
    try:
        names = {row["datname"] for row in await connection.fetch("select datname from pg_database")}
        roles = {row["rolname"] for row in await connection.fetch("select rolname from pg_roles")}
    finally:
        await connection.close()

    assert names.isdisjoint(map(get_database_name, deployments))
    assert roles.isdisjoint(map(get_database_name, deployments))


def get_database_name(deployment: str) -> str:
    return database_name(UUID(deployment))
