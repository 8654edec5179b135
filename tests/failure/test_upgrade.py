"""An upgrade fails no request on agents and loses nothing; it halts at an agent whose new server does not start.

The version before is a commit of this repository, or its last release, installed beside this checkout.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from portside.kernel.version import full_version
from portside.operate.machine_checks import find_lock_holder
from tests.api.test_pin_threads import ASKS, Agent
from tests.conftest import eventually
from tests.failure.test_listener import Endless, EndlessClients
from tests.failure.test_sleep import sleeps
from tests.platforms import AGENT, Platform, Repository, find_listener, find_processes, find_servers, run
from tests.servers import ServerProcess, free_port

pytestmark = [
    # An installation of the version before takes many minutes on a busy machine.
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


async def read_upgrade(platform: Platform) -> dict[str, Any]:
    return dict(await platform.call("GET", "/system/upgrade"))


async def test_platform_is_replaced_while_agents_serve(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    await replace_while_agents_serve(platform, deployment)


async def replace_while_agents_serve(platform: Platform, deployment: str) -> None:
    """The same process goes on with another program; agents, and requests to the platform, do not notice."""
    serving = find_servers(platform.home)

    listener = find_listener(platform.server)
    async with EndlessClients(await platform.url(deployment), platform.headers) as clients:
        assert platform.server.process is not None
        os.kill(platform.server.process.pid, signal.SIGUSR2)

        async def is_replaced() -> bool:
            # Requests wait meanwhile; kept connections are closed.
            await platform.call("GET", "/ok")
            try:
                return find_listener(platform.server) != listener
            except ValueError:
                return False

        await eventually(is_replaced)

        async def is_current() -> bool:
            return [agent["state"] for agent in (await read_upgrade(platform))["agents"]] == ["current"]

        await eventually(is_current)
        answered = clients.answered
        await eventually(lambda: asyncio.sleep(0, clients.answered > answered))

    assert clients.failures == []
    assert find_servers(platform.home) == serving


ROOT = Path(__file__).parents[2]
# The last commit that cannot hand a running platform over.
BEFORE = "10f922f13f559fc124edb307a1516a427e10e883"
BROKEN = "raise RuntimeError('this agent does not start')\n"


class Installation:
    """A checkout of this repository at a commit, with an environment of its own."""

    def __init__(self, folder: Path, commit: str, shown_as: str | None = None) -> None:
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        self.unpack(commit)
        (folder / "src" / "portside" / "commit.txt").write_text(f"{shown_as or commit}\n")
        self.run("sh", "scripts/setup")

    def unpack(self, commit: str) -> None:
        result = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
        if result.returncode != 0:
            pytest.skip(f"this clone does not have the commit {commit[:7]}: {result.stderr.decode().strip()}")

        with tarfile.open(fileobj=BytesIO(result.stdout)) as archive:
            archive.extractall(self.folder, filter="data")

    def run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder, check=True, timeout=3000, stdout=subprocess.DEVNULL)

    def start(self, arguments: list[str], log: Path) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(self.python), "-P", "-m", "portside", *arguments],
                start_new_session=True,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "DATABASE_URL": "", "DEPLOYMENT_START_TIMEOUT_S": "200", "RATE_LIMITS": "false"},
            )


class ReleasedInstallation(Installation):
    """An environment with the wheel of a release, and nothing else, as its users have it."""

    def __init__(self, folder: Path, tag: str) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.unpack(tag)
        self.run(sys.executable, "-m", "scripts.javascript", "build", "--strict")
        self.run(sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", "dist")

        [wheel] = folder.glob("dist/portside-*.whl")
        (folder / "src").rename(folder / "away")
        self.run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, "venv")
        install = ("-m", "uv", "pip", "install", "--quiet", "--python", str(self.python), "-c", "requirements.lock")
        self.run(sys.executable, *install, str(wheel))


def find_last_release() -> str:
    """Return the newest tag of a release that this commit follows."""
    command = ["git", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not result.stdout.strip():
        pytest.skip("there is no release before this commit: git knows no tag of one")

    return result.stdout.split()[0]


class TraceSender(Endless):
    """Sends traces to a platform all the time, and again what was not accepted, as the SDKs do."""

    def __init__(self, platform: Platform) -> None:
        super().__init__()
        self._client = platform.client
        self.accepted = list[str]()
        self._start(self._send())

    async def _send(self) -> None:
        while not self._done:
            trace = str(uuid4())
            body = {
                "id": trace,
                "name": "sent",
                "run_type": "chain",
                "inputs": {},
                "session_name": "upgrade",
                "start_time": "2026-01-01T00:00:00Z",
                "end_time": "2026-01-01T00:00:01Z",
                "outputs": {},
            }

            while trace not in self.accepted[-1:]:
                with contextlib.suppress(httpx2.TransportError):
                    if (await self._client.post("/runs", json=body)).is_success:
                        self.accepted.append(trace)

                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def run_platform(installation: Installation, folder: Path) -> AsyncIterator[Platform]:
    """Run its platform, with an embedded Postgres; at the end the one that runs then is stopped."""
    home = folder / "home"
    port = free_port()
    server = ServerProcess([], f"http://127.0.0.1:{port}", {}, folder / "up.log")
    command = ["up", "--no-example", "--no-front", "--home", str(home), "--port", str(port)]
    server.process = installation.start(command, server.log)

    await asyncio.to_thread(server.wait_until_ok)
    platform = Platform(server, home, "")
    try:
        yield platform
    finally:
        await platform.client.aclose()
        server.process.poll()
        holder = find_lock_holder(home)
        assert holder, "it runs"
        os.kill(holder, signal.SIGINT)
        await eventually(lambda: asyncio.sleep(0, find_lock_holder(home) is None))
        await asyncio.to_thread(server.process.wait, 60)

    assert find_processes(home) == []


@pytest.fixture
async def older(tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform of the version before."""
    async with run_platform(await asyncio.to_thread(Installation, tmp_path / "before", BEFORE), tmp_path) as platform:
        yield platform


async def upgrade(
    platform: Platform, *options: str, python: Path | str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    port = platform.server.url.rpartition(":")[2]
    command = [str(python), "-P", "-m", "portside", "upgrade", "--home", str(platform.home), "--port", port, *options]
    environment = {**os.environ, "DATABASE_URL": "", "PORTSIDE_BACKUP_PASSPHRASE": "correct horse battery"}

    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False, timeout=3000
    )


async def versions(platform: Platform) -> dict[str, str | None]:
    found = (await platform.call("GET", "/v2/deployments"))["resources"]
    return {each["name"]: each["server_version"] for each in found}


def kill_executors(pids: set[int], folder: str) -> None:
    """Kill those that run from a folder, of which there must be some."""
    killed = [pid for pid in pids if folder.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.thorough
async def test_upgrade_under_load_fails_no_request_and_loses_nothing(older: Platform, tmp_path: Path):
    deployments = {}
    for name in ("first", "second"):
        repository = Repository(tmp_path / name)
        repository.commit(name)
        deployments[name] = await older.deploy(repository, name)

    for deployment in deployments.values():
        assert (await older.ended(deployment))["status"] == "DEPLOYED"

    urls = {name: await older.url(deployment) for name, deployment in deployments.items()}
    async with httpx2.AsyncClient(timeout=300, headers=older.headers) as client:
        thread = (await client.post(f"{urls['second']}/threads", json={})).json()["thread_id"]
        assert (await run(client, urls["second"], thread))["seen"] == 1

        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(EndlessClients(url, older.headers)) for url in urls.values()]
            traces = await stack.enter_async_context(TraceSender(older))
            checked = await upgrade(older, "--check")
            assert checked.returncode == 0, checked.stdout + checked.stderr
            assert "0.1.0+g10f922f" in checked.stdout
            assert "control/0005_server_rollouts.sql" in checked.stdout
            assert (await older.call("GET", "/info"))["portside_version"] == "0.1.0+g10f922f"

            # Its executor runs already, so only a new one reads this.
            (source,) = (older.home / "dataplane" / "deployments" / deployments["second"]).glob(
                "revisions/*/source/agent.py"
            )
            source.write_text(BROKEN)

            halted = await upgrade(older, "--backup-to", str(tmp_path / "before.backup"))
            assert halted.returncode == 1, halted.stdout + halted.stderr
            assert "halted: the new server of second does not start" in halted.stderr
            state = await read_upgrade(older)

            assert [(each["name"], each["state"]) for each in state["agents"]] == [
                ("first", "current"),
                ("second", "failed"),
            ]

            assert state["rollout"]["status"] == "halted"
            assert "this agent does not start" in state["rollout"]["reason"]
            assert state["last"]["backup"] == str(tmp_path / "before.backup")
            shown = {each["name"]: each["version"] for each in state["agents"]}
            assert shown == {"first": full_version(), "second": "0.1.0+g10f922f"}

            # The earlier server starts executors of its own version.
            source.write_text(AGENT.format(version="second"))
            servers = set(find_servers(older.home))
            folder = str(older.home / "dataplane" / "deployments" / deployments["second"])
            kill_executors(set(find_processes(older.home)) - servers, folder)
            assert (await run(client, urls["second"], thread))["seen"] == 2

            resumed = await upgrade(older, "--resume")
            assert resumed.returncode == 0, resumed.stdout + resumed.stderr
            assert set((await versions(older)).values()) == {full_version()}
            answered = [each.answered for each in clients]

        assert [each.failures for each in clients] == [[], []]
        assert min(answered) > 0
        assert (await run(client, urls["second"], thread))["seen"] == 3

    assert traces.accepted

    for trace in traces.accepted:
        assert (await older.call("GET", f"/runs/{trace}"))["id"] == trace


@pytest.mark.thorough
async def test_last_release_is_upgraded_under_load_and_taken_back(tmp_path: Path):
    """If one of the migrations refuses older versions, the way back is the backup that the upgrade took."""
    released = await asyncio.to_thread(ReleasedInstallation, tmp_path / "released", find_last_release())
    repository = Repository(tmp_path / "repository")
    backup = tmp_path / "before.backup"
    repository.commit("one")

    async with run_platform(released, tmp_path) as platform:
        version = (await platform.call("GET", "/info"))["portside_version"]
        deployment = await platform.deploy(repository)
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"
        url = await platform.url(deployment)

        async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as client:
            thread = (await client.post(f"{url}/threads", json={})).json()["thread_id"]
            assert (await run(client, url, thread))["seen"] == 1

            async with EndlessClients(url, platform.headers) as clients, TraceSender(platform) as traces:
                checked = await upgrade(platform, "--check", "--json")
                assert checked.returncode == 0, checked.stdout + checked.stderr
                plan = json.loads(checked.stdout)
                assert plan["before"] == version
                has_way_back = {each["level"] for each in plan["findings"] if each["check"] == "way-back"} == {"ok"}

                forward = await upgrade(platform, "--backup-to", str(backup))
                assert forward.returncode == 0, forward.stdout + forward.stderr
                assert await versions(platform) == {"my-agent": full_version()}
                assert (await run(client, url, thread))["seen"] == 2

                if has_way_back:
                    back = await upgrade(platform, "--no-backup", python=released.python)
                    assert back.returncode == 0, back.stdout + back.stderr
                    assert await versions(platform) == {"my-agent": version}
                    assert (await run(client, url, thread))["seen"] == 3

                answered = clients.answered
                await eventually(lambda: asyncio.sleep(0, clients.answered > answered))

        assert clients.failures == []
        assert traces.accepted
        for trace in traces.accepted:
            assert (await platform.call("GET", f"/runs/{trace}"))["id"] == trace

    restore = [str(released.python), "-P", "-m", "portside", "backup", "restore", str(backup)]
    restored = await asyncio.to_thread(
        subprocess.run,
        [*restore, "--home", str(tmp_path / "restored")],
        env={**os.environ, "DATABASE_URL": "", "PORTSIDE_BACKUP_PASSPHRASE": "correct horse battery"},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    # The version before cannot read a backup of a newer database: this one was taken before its migration.
    assert restored.returncode == 0, restored.stdout + restored.stderr


@pytest.mark.thorough
async def test_threads_keep_their_revision_when_the_server_is_upgraded(tmp_path: Path):
    """Their builds have executors of the version before, also while the agent sleeps."""
    before = await asyncio.to_thread(Installation, tmp_path / "before", "HEAD", "feedfac")
    repository = Repository(tmp_path / "repository")
    repository.commit("one", agent=ASKS)

    async with run_platform(before, tmp_path) as platform:
        deployment = await platform.deploy(repository)
        await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=24)
        agent = Agent(platform, repository, deployment)
        one = await agent.wait_until_deployed()
        threads = [await agent.ask_thread() for _ in range(3)]
        two = await agent.deploy("two")
        of_two = await agent.ask_thread()

        await agent.uses(**{one: 3, two: 1})
        assert await agent.answer(threads[0]) == "one!"

        upgraded = await upgrade(platform, "--no-backup")
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        assert await versions(platform) == {"my-agent": full_version()}
        assert await agent.answer(threads[1]) == "one!"
        await agent.uses(**{one: 1, two: 1})

        await sleeps(platform, deployment)
        again = await upgrade(platform, "--no-backup", python=before.python)
        assert again.returncode == 0, again.stdout + again.stderr
        assert await agent.answer(threads[2]) == "one!"
        assert await agent.answer(of_two) == "two!"
        assert await agent.answer(await agent.ask_thread()) == "two!"
        assert await versions(platform) == {"my-agent": "0.1.0+gfeedfac"}


@pytest.mark.thorough
async def test_upgrade_starts_executors_only_if_they_have_changed(tmp_path: Path):
    """A server that starts one finds that the project does not load any more."""
    before = await asyncio.to_thread(Installation, tmp_path / "before", "HEAD", "feedfac")
    package = before.folder / "src" / "portside"

    # HEAD may have another one.
    shutil.copytree(ROOT / "src" / "portside" / "executor", package / "executor", dirs_exist_ok=True)
    repository = Repository(tmp_path / "repository")
    repository.commit("one")

    async with run_platform(before, tmp_path) as platform:
        deployment = await platform.deploy(repository)
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"
        folder = platform.home / "dataplane" / "deployments" / deployment
        (source,) = folder.glob("revisions/*/source/agent.py")

        source.write_text(BROKEN)
        upgraded = await upgrade(platform, "--no-backup")
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        assert await versions(platform) == {"my-agent": full_version()}

        with (package / "executor" / "load.py").open("a") as changed:
            changed.write("\n")

        halted = await upgrade(platform, "--no-backup", python=before.python)
        assert halted.returncode == 1, halted.stdout + halted.stderr
        assert "this agent does not start" in halted.stderr
        source.write_text(AGENT.format(version="one"))

        resumed = await upgrade(platform, "--resume", python=before.python)
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        assert await versions(platform) == {"my-agent": "0.1.0+gfeedfac"}


@pytest.mark.thorough
async def test_agent_that_sleeps_stays_asleep_and_wakes_with_the_new_server(tmp_path: Path):
    before = await asyncio.to_thread(Installation, tmp_path / "before", "HEAD", "feedfac")
    async with run_platform(before, tmp_path) as platform:
        deployments = {}
        for name in ("asleep", "awake"):
            repository = Repository(tmp_path / name)
            repository.commit(name)
            deployments[name] = await platform.deploy(repository, name)
            assert (await platform.ended(deployments[name]))["status"] == "DEPLOYED"

        path = f"/v2/deployments/{deployments['asleep']}"
        await platform.call("PATCH", path, sleep_after_s=1)

        async def is_asleep() -> bool:
            return bool((await platform.call("GET", path))["is_asleep"]) and len(find_servers(platform.home)) == 1

        await eventually(is_asleep)
        upgraded = await upgrade(platform, "--no-backup")
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        assert await is_asleep(), "only the server that was awake was replaced"

        # Of the one that sleeps, that is the server that would be started.
        assert await versions(platform) == {"asleep": full_version(), "awake": full_version()}
        assert {agent["state"] for agent in (await read_upgrade(platform))["agents"]} == {"current"}
        await platform.call("PATCH", path, sleep_after_s=3600)

        async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as client:
            url = await platform.url(deployments["asleep"])
            assert (await run(client, url))["seen"] == 1
            assert (await client.get(f"{url}/info")).json()["version"] == full_version()


@pytest.mark.thorough
async def test_version_before_runs_until_a_migration_refuses_it(tmp_path: Path):
    newer = await asyncio.to_thread(Installation, tmp_path / "newer", "HEAD", "feedfac")
    control, agent = (newer.folder / "src" / "portside" / name / "migrations" for name in ("control", "agent"))
    for migrations in (control, agent):
        (migrations / "0900_more.sql").write_text(
            "-- Older versions run: it is new.\ncreate table newer_things (id int);\n"
        )

    repository = Repository(tmp_path / "repository")
    backup = tmp_path / "before.backup"
    repository.commit("one")

    async with run_platform(newer, tmp_path) as platform:
        deployment = await platform.deploy(repository)
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"
        async with httpx2.AsyncClient(timeout=300, headers=platform.headers) as client:
            url = await platform.url(deployment)
            thread = (await client.post(f"{url}/threads", json={})).json()["thread_id"]
            assert (await run(client, url, thread))["seen"] == 1

            async with EndlessClients(url, platform.headers) as clients:
                back = await upgrade(platform, "--no-backup")
                assert back.returncode == 0, back.stdout + back.stderr
                assert "from 0.1.0+gfeedfac to" in back.stdout
                assert await versions(platform) == {"my-agent": full_version()}
                assert (await run(client, url, thread))["seen"] == 2
                (control / "0901_less.sql").write_text(
                    "-- Older versions are refused: it is gone.\ndrop table newer_things;\n"
                )

                forward = await upgrade(platform, "--backup-to", str(backup), python=newer.python)
                assert forward.returncode == 0, forward.stdout + forward.stderr
                assert "control/0901_less.sql (it is gone)" in forward.stdout
                assert await versions(platform) == {"my-agent": "0.1.0+gfeedfac"}
                assert (await run(client, url, thread))["seen"] == 3

            assert clients.failures == []

        refused = await upgrade(platform, "--check")
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert "0901_less.sql, and older versions do not run on that (it is gone)" in refused.stdout

    command = [sys.executable, "-P", "-m", "portside", "up", "--no-front", "--home", str(platform.home)]
    started = await asyncio.to_thread(
        subprocess.run,
        command,
        env={**os.environ, "DATABASE_URL": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert started.returncode == 1
    assert "restore the backup that was taken before the upgrade" in started.stderr
    assert str(backup) in started.stderr
