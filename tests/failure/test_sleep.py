"""An agent that nobody uses sleeps: it has no process, and the next request, run or cron wakes it.

No request fails because the agent sleeps, falls asleep or wakes, unless it cannot be started.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import httpx2
import pytest

from portside.kernel.embedded import EmbeddedPostgres
from tests.conftest import eventually, with_name
from tests.platforms import Platform, Repository, find_listener, find_servers, open_platform, run

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]
# The agent stays in its node while the folder has the file.
WAITING = """
import asyncio
from pathlib import Path
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    seen: int

async def answer(state):
    while Path({version!r}).exists():
        await asyncio.sleep(0.05)
    return {{"seen": state.get("seen", 0) + 1}}

graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile()
"""


@pytest.fixture
def held_file(tmp_path: Path) -> Path:
    return tmp_path / "held"


@pytest.fixture
def repository(tmp_path: Path, held_file: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    made.commit(str(held_file), agent=WAITING)
    return made


@pytest.fixture
async def deployment(platform: Platform, repository: Repository) -> str:
    made = await platform.deploy(repository)
    revision = await platform.ended(made)
    assert revision["status"] == "DEPLOYED", revision
    return made


async def sleeps(platform: Platform, deployment: str, after_s: int = 1) -> None:
    """Set after how many seconds a deployment sleeps, and wait until it does and nothing of it runs."""
    await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=after_s)
    await is_asleep(platform, deployment)


async def is_asleep(platform: Platform, deployment: str) -> None:
    async def look() -> bool:
        return (await platform.call("GET", f"/v2/deployments/{deployment}"))["is_asleep"] and not find_servers(
            platform.home
        )

    await eventually(look)


async def is_noted_asleep(platform: Platform, deployment: str) -> None:
    """Wait until the listener has kept on disk that a deployment sleeps: servers end a moment earlier."""
    [file] = platform.home.glob(f"dataplane/deployments/{deployment}/state.json")

    async def look() -> bool:
        return json.loads(file.read_text())["sleep"] is not None

    await eventually(look)


async def is_awake(platform: Platform) -> None:
    await eventually(lambda: asyncio.sleep(0, bool(find_servers(platform.home))))


def agent(platform: Platform, **options: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(timeout=300, headers=platform.headers, **options)


async def test_idle_agent_sleeps_and_many_requests_wake_it_once(platform: Platform, deployment: str):
    await sleep_and_be_woken_once(platform, deployment)


async def sleep_and_be_woken_once(platform: Platform, deployment: str) -> None:
    """Let an agent that is idle sleep; many requests at once must start one server of it, and all be answered."""
    url = await platform.url(deployment)
    await sleeps(platform, deployment)
    shown = await platform.call("GET", f"/v2/deployments/{deployment}")
    metrics = await platform.call("GET", f"/v2/deployments/{deployment}/metrics")
    assert (shown["status"], shown["status_message"], shown["sleep_after_s"]) == ("READY", None, 1)
    assert (metrics["replicas"], metrics["memory_mb"], metrics["problem"]) == (0, 0, None)

    # It stays awake now, so that one process can be found.
    await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=3600)
    assert find_servers(platform.home) == []
    async with agent(platform) as client:
        answers = await asyncio.gather(*(run(client, url) for _ in range(20)))

    assert [answer["seen"] for answer in answers] == [1] * 20
    assert len(find_servers(platform.home)) == 1

    async def is_shown_awake() -> bool:
        shown = await platform.call("GET", f"/v2/deployments/{deployment}")
        return not shown["is_asleep"] and shown["server_version"] is not None

    await eventually(is_shown_awake)


@pytest.mark.thorough
async def test_agent_with_a_run_or_a_stream_stays_awake(platform: Platform, deployment: str, held_file: Path):
    url = await platform.url(deployment)
    await asyncio.to_thread(held_file.touch)
    async with agent(platform) as client:
        thread = (await client.post(f"{url}/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "agent", "input": {}, "stream_mode": ["values"]}
        background = (await client.post(f"{url}/threads/{thread}/runs", json=body)).json()["run_id"]
        await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=1)

        servers = find_servers(platform.home)

        # The listener has asked the server twice after the time.
        for _ in range(2):
            await wait_for_report(platform, deployment)

        assert find_servers(platform.home) == servers
        shown = await platform.call("GET", f"/v2/deployments/{deployment}")
        assert not shown["is_asleep"]
        await asyncio.to_thread(held_file.unlink)
        await is_asleep(platform, deployment)

        joined = (await client.get(f"{url}/threads/{thread}/runs/{background}")).json()

    assert joined["status"] == "success"


async def wait_for_report(platform: Platform, deployment: str) -> None:
    """Wait for the next report of a listener on a deployment."""
    path = f"/v2/deployments/{deployment}/metrics"
    before = (await platform.call("GET", path))["measured_at"]

    async def look() -> bool:
        return bool((await platform.call("GET", path))["measured_at"] != before)

    await eventually(look)


async def test_clients_never_notice_that_an_agent_sleeps(platform: Platform, deployment: str):
    url = await platform.url(deployment)
    await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=1)
    async with agent(platform) as client:
        for number in range(1, 5):
            # A kept connection and new ones, at any moment of the way to sleep.
            await asyncio.sleep(0.9 * number)
            assert (await run(client, url))["seen"] == 1
            async with agent(platform) as other:
                assert (await run(other, url))["seen"] == 1

    await is_asleep(platform, deployment)


@pytest.mark.thorough
async def test_agent_sleeps_on_while_platform_and_listener_are_restarted(platform: Platform, deployment: str):
    url = await platform.url(deployment)
    await sleeps(platform, deployment)
    await is_noted_asleep(platform, deployment)
    await asyncio.to_thread(platform.server.stop)
    await asyncio.to_thread(platform.server.start)
    await wait_for_report(platform, deployment)

    shown = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert (shown["is_asleep"], shown["status"], find_servers(platform.home)) == (True, "READY", [])
    killed = find_listener(platform.server)
    os.kill(killed, signal.SIGKILL)
    await wait_for_report(platform, deployment)
    assert find_servers(platform.home) == []

    async with agent(platform) as client:
        assert (await run(client, url))["seen"] == 1

    await is_asleep(platform, deployment)


@pytest.mark.thorough
async def test_changes_reach_an_agent_that_sleeps(platform: Platform, deployment: str, repository: Repository):
    url = await platform.url(deployment)
    await sleeps(platform, deployment)
    async with agent(platform) as client:
        # A new revision serves, and sleeps in turn.
        repository.commit("1")
        await platform.redeploy(deployment)
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"
        assert (await run(client, url))["version"] == "1"
        await is_asleep(platform, deployment)
        await platform.call(
            "PATCH", f"/v2/deployments/{deployment}", secret_changes={"set": [{"name": "OTHER", "value": "new"}]}
        )

        assert (await platform.ended(deployment))["status"] == "DEPLOYED"
        assert (await run(client, url))["version"] == "1"
        await is_asleep(platform, deployment)

        # One that fails leaves the agent asleep, and it can be woken.
        repository.commit("2", agent="this is no Python")
        await platform.redeploy(deployment)
        assert "FAILED" in (await platform.ended(deployment))["status"]
        assert (await run(client, url))["version"] == "1"
        await is_asleep(platform, deployment)

    # Agents that shall not sleep any more wake.
    await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=0)
    await is_awake(platform)
    await sleeps(platform, deployment)
    await platform.delete(deployment)
    assert not (platform.home / "dataplane" / "deployments" / deployment).exists()


async def test_agent_that_cannot_be_woken_says_so_and_is_woken_later(platform: Platform, deployment: str):
    url = await platform.url(deployment)
    await sleeps(platform, deployment)

    (config,) = (platform.home / "dataplane").glob(f"deployments/{deployment}/revisions/*/source/langgraph.json")
    away = config.rename(config.with_suffix(".away"))
    async with agent(platform) as client:
        answers = await asyncio.gather(*(client.post(f"{url}/runs/wait", json={"input": {}}) for _ in range(5)))
        assert {answer.status_code for answer in answers} == {503}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
        assert "could not be started" in answers[0].json()["detail"]

        async def says_why() -> bool:
            shown = await platform.call("GET", f"/v2/deployments/{deployment}")
            words = shown["status_message"] or ""
            return shown["status"] == "UNKNOWN" and "could not be woken" in words and "langgraph.json" in words

        await eventually(says_why)
        away.rename(config)

        async def answers_again() -> bool:
            return (await client.get(f"{url}/ok")).status_code == 200

        await eventually(answers_again)

        async def is_ready() -> bool:
            shown = await platform.call("GET", f"/v2/deployments/{deployment}")
            return (shown["status"], shown["status_message"]) == ("READY", None)

        await eventually(is_ready)

    await is_asleep(platform, deployment)


async def test_server_killed_while_it_wakes_is_started_again(platform: Platform, deployment: str):
    url = await platform.url(deployment)
    await sleeps(platform, deployment)
    # It stays awake now, or it may sleep again before it is found.
    await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=3600)
    async with agent(platform) as client:
        asking = asyncio.create_task(client.get(f"{url}/ok"))
        await is_awake(platform)

        for server in find_servers(platform.home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)

        answer = await asking
        # Whether the server was killed before or after it answered `GET /ok`.
        assert answer.status_code == 200 or answer.headers["retry-after"]

        async def answers_again() -> bool:
            return (await client.get(f"{url}/ok")).status_code == 200

        await eventually(answers_again)


@pytest.fixture
async def crowded_platform(tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform whose Postgres accepts 60 connections: 39 of them are for deployments that are awake."""
    postgres = EmbeddedPostgres(tmp_path / "server", connections=60)
    url = await asyncio.to_thread(postgres.acquire)
    try:
        async with open_platform(tmp_path, url) as opened:
            yield opened
    finally:
        await asyncio.to_thread(postgres.release)


@pytest.mark.thorough
async def test_idle_agent_gives_way_to_one_that_wakes(crowded_platform: Platform, repository: Repository):
    """With connections for one awake agent alone, the one that is called is awake, unless the other must not sleep."""
    first, second = [await crowded_platform.deploy(repository, name) for name in ("first", "second")]
    for deployment in (first, second):
        assert (await crowded_platform.ended(deployment))["status"] == "DEPLOYED"

    urls = [await crowded_platform.url(deployment) for deployment in (first, second)]
    await crowded_platform.call("PATCH", f"/v2/deployments/{second}", sleep_after_s=3600)
    await crowded_platform.call("PATCH", f"/v2/deployments/{first}", sleep_after_s=1)

    async def shows(deployment: str, *, asleep: bool) -> bool:
        return bool((await crowded_platform.call("GET", f"/v2/deployments/{deployment}"))["is_asleep"] == asleep)

    await eventually(lambda: shows(first, asleep=True))
    admin = await asyncpg.connect(crowded_platform.database_url)

    async def has_no_connections(deployment: str) -> bool:
        query = "select count(*) from pg_stat_activity where usename = $1"
        return await admin.fetchval(query, f"agent_{UUID(deployment).hex}") == 0

    # It sleeps as soon as its server accepts nothing more, which ends a moment later.
    await eventually(lambda: has_no_connections(first))
    # Another agent holds all connections but five.
    role = f"agent_{'0' * 32}"
    await admin.execute(f"create role {role} login superuser")
    await admin.execute(f"alter role {role} password 'held'")

    parts = urlsplit(crowded_platform.database_url)
    url = parts._replace(netloc=f"{role}:held@").geturl()
    held = [await asyncpg.connect(url) for _ in range(34)]

    async with agent(crowded_platform) as client:
        await crowded_platform.call("PATCH", f"/v2/deployments/{first}", sleep_after_s=3600)

        async def answers(url: str, refusal: str = "as many agents are awake") -> bool:
            answer = await client.post(f"{url}/runs/wait", json={"assistant_id": "agent", "input": {}})
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) <= 5
                assert refusal in answer.json()["detail"]

            return answer.status_code == 200

        # The second one was used a moment ago by its own start, and becomes idle. On a busy machine the platform may
        # take the connection that is left before the first one's server does, so that its start fails once.
        await eventually(lambda: answers(urls[0], "The agent sleeps"))
        await eventually(lambda: shows(second, asleep=True))
        await crowded_platform.call("PATCH", f"/v2/deployments/{first}", sleep_after_s=0)

        for _ in range(2):
            assert not await answers(urls[1])

        assert await answers(urls[0])

        for connection in held:
            await connection.close()

        await eventually(lambda: answers(urls[1]))

    await admin.execute(f"drop role {role}")
    await admin.close()


@pytest.mark.thorough
async def test_delayed_run_wakes_agent(platform: Platform, deployment: str):
    url = await platform.url(deployment)
    async with agent(platform) as client:
        thread = (await client.post(f"{url}/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "agent", "input": {}, "after_seconds": 60}
        await client.post(f"{url}/threads/{thread}/runs", json=body)
        await sleeps(platform, deployment)

        # A restart does not forget what is due.
        await asyncio.to_thread(platform.server.stop)
        await asyncio.to_thread(platform.server.start)
        database_url = with_name(platform.database_url, f"agent_{UUID(deployment).hex}")

        async def has_run() -> bool:
            # A request to the agent would wake it.
            connection = await asyncpg.connect(database_url)
            try:
                return bool(await connection.fetchval("select status from portside.runs") == "success")
            finally:
                await connection.close()

        await eventually(has_run)
        await is_asleep(platform, deployment)
        (found,) = (await client.get(f"{url}/threads/{thread}/runs")).json()

    assert found["status"] == "success"


@pytest.mark.thorough
async def test_cron_wakes_agent_again_and_again(platform: Platform, deployment: str):
    url = await platform.url(deployment)
    async with agent(platform) as client:
        thread = (await client.post(f"{url}/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "agent", "input": {}, "schedule": "* * * * *"}
        response = await client.post(f"{url}/threads/{thread}/runs/crons", json=body)
        assert response.status_code == 200, response.text

        for _ in range(2):
            await sleeps(platform, deployment)
            await is_awake(platform)

        await is_asleep(platform, deployment)
        runs = (await client.get(f"{url}/threads/{thread}/runs")).json()
        await client.delete(f"{url}/runs/crons/{response.json()['cron_id']}")

    assert len(runs) >= 2
    assert {found["status"] for found in runs} == {"success"}
