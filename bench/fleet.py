"""Drills many deployments on one machine. `python -m bench.fleet [COUNT] [PART ...]`.

A platform with its own Postgres gets COUNT deployments of the example agent. The parts, all by default in this order:
`idle` (what awake deployments use), `reboot` (kill -9 of everything, then the start of all), `storm` (runs wake all of
them at once), `sleep` (what sleeping ones use, how one wakes by a request, a delayed run and a cron, and a start while
all sleep). With `BENCH_FOLDER` the home stays for the next run. CPU is user and system time from /proc, so it holds on
a busy machine; times do not.
"""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import httpx2

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.client import TICK  # noqa: E402
from bench.traces import open_folder  # noqa: E402
from tests.conftest import eventually  # noqa: E402
from tests.platforms import Platform, find_listener, find_processes, find_servers  # noqa: E402
from tests.servers import ServerProcess, free_port  # noqa: E402

from portside.dataplane.compute.databases import database_name  # noqa: E402
from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402
from portside.platform.home import make_repository  # noqa: E402

COUNT = 100
PARTS = ("idle", "reboot", "storm", "sleep")
WINDOW_S = float(os.environ.get("BENCH_SECONDS", "60"))
WITHIN_S = 3600
SETTLE_S = 20.0
# More than are built at once, so that the listener always has the next one while it is not yet looked at.
BUILDS = 8
LOOK_AT_BUILD_EVERY_S = 2.0
LOOK_EVERY_S = 0.25
WAKE = 8
HELLO = {"assistant_id": "agent", "input": {"messages": "hello"}}
LAST_END = """
select extract(epoch from updated_at)::float8 from runs where status = 'success' and updated_at >= to_timestamp($1)
order by updated_at limit 1
"""
CONNECTIONS = """
select count(*) filter (where usename like 'agent_%') as agents, count(*) filter (where backend_type = 'client backend')
from pg_stat_activity
"""


class Source(NamedTuple):
    """The folder of a repository."""

    folder: Path


class Usage(NamedTuple):
    """CPU seconds so far by kind of process, and how many processes were counted."""

    servers: float
    listener: float
    platform: float
    postgres: float
    number: int


class Fleet:
    """A platform with many deployments in a home of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self.home = folder / "home"
        self.count = count
        self.folder = folder
        port_file = folder / "port"
        port = int(port_file.read_text()) if port_file.exists() else free_port()

        port_file.write_text(str(port))
        command = ["up", "--no-example", "--home", str(self.home), "--port", str(port)]
        self.server = ServerProcess(command, f"http://127.0.0.1:{port}", {"LANGSMITH_TRACING": "false"}, folder / "log")

        # The rest of the machine has the right of way.
        self.server.starter = ["nice", "-n", "5"]
        self.platform: Platform

    def start(self) -> None:
        """Start the platform; returns when it answers."""
        self.server.start()
        self.platform = Platform(self.server, self.home, EmbeddedPostgres(self.home).url("portside"))

    async def deployments(self) -> list[Any]:
        """Return all deployments."""
        found: list[Any] = []
        while True:
            page = await self.platform.call("GET", f"/v2/deployments?limit=100&offset={len(found)}")
            found += page["resources"]
            if len(page["resources"]) < 100:
                return found

    async def fill(self) -> None:
        """Deploy what is missing, a few at a time, and wait until every deployment has an agent."""
        source = Source(make_repository(self.folder / "hello-agent"))
        missing = self.count - len(await self.deployments())
        slots = asyncio.Semaphore(BUILDS)

        async def deploy(number: int) -> None:
            async with slots:
                made = await self.platform.deploy(source, f"agent-{time.time_ns()}", secrets={"NUMBER": str(number)})
                await self.deployed(made)

        began = time.monotonic()
        await asyncio.gather(*map(deploy, range(missing)))

        if missing > 0:
            print(
                f"{missing} deployments built and started: {(time.monotonic() - began) / missing:.1f} s each",
                flush=True,
            )

    async def deployed(self, deployment: str) -> None:
        """Wait until a new deployment serves. Tests look ten times as often, which two cores would feel here."""
        path = f"/v2/deployments/{deployment}"
        revision_id = (await self.platform.call("GET", path))["latest_revision_id"]
        deadline = time.monotonic() + WITHIN_S

        while True:
            revision = await self.platform.call("GET", f"{path}/revisions/{revision_id}")
            if revision["status"] == "DEPLOYED":
                return

            assert "FAILED" not in revision["status"], revision
            assert time.monotonic() < deadline, revision
            await asyncio.sleep(LOOK_AT_BUILD_EVERY_S)

    async def set_sleep(self, after_s: int) -> None:
        """Set after which time all deployments sleep."""
        for deployment in await self.deployments():
            if deployment["sleep_after_s"] != after_s:
                await self.platform.call("PATCH", f"/v2/deployments/{deployment['id']}", sleep_after_s=after_s)

    async def has_only_servers(self) -> bool:
        """Whether no executor is left: those that a new deployment needed end after five idle minutes."""
        return len(find_processes(self.home)) == len(find_servers(self.home))

    async def are_asleep(self) -> None:
        """Wait until every deployment sleeps and no server is left."""

        async def look() -> bool:
            return not find_servers(self.home) and all(each["is_asleep"] for each in await self.deployments())

        await eventually(look, WITHIN_S)

    def postmaster(self) -> int:
        """The main process of Postgres."""
        return int((self.home / "postgres" / "data" / "postmaster.pid").read_text().split()[0])

    def usage(self) -> Usage:
        """Return what has been used so far."""
        assert self.server.process is not None
        agents = find_processes(self.home)
        postgres = self.postmaster()

        return Usage(
            sum(map(cpu_s, agents)),
            cpu_s(find_listener(self.server)),
            cpu_s(self.server.process.pid),
            sum(map(cpu_s, [*children(postgres), postgres])),
            len(agents),
        )

    def kill_all(self) -> None:
        """End every process at once, as a loss of power does."""
        assert self.server.process is not None
        postgres = self.postmaster()
        first = [self.server.process.pid, find_listener(self.server), postgres]
        for pid in [*first, *children(postgres), *find_processes(self.home)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        self.server.process.wait()

        while find_processes(self.home):
            for pid in find_processes(self.home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        """Stop everything."""
        await self.platform.client.aclose()
        await asyncio.to_thread(self.server.stop)


class Starts:
    """Watches the servers of all deployments start, at their private ports: a request would make one more urgent."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._began = time.monotonic()
        self._files = list((fleet.home / "dataplane" / "deployments").glob("*/state.json"))
        self.seen: dict[Path, float] = {}
        self.serving: dict[Path, float] = {}
        self.most_at_once = 0

    async def watch(self) -> None:
        """Look until every deployment serves."""
        async with httpx2.AsyncClient(timeout=2) as client:
            deadline = time.monotonic() + WITHIN_S
            while len(self.serving) < len(self._files):
                assert time.monotonic() < deadline, f"only {len(self.serving)} of {len(self._files)} serve"
                await self._look(client)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, client: httpx2.AsyncClient) -> None:
        now = time.monotonic() - self._began
        for file in self._files:
            if file in self.serving or not (port := read_port(file)):
                continue

            self.seen.setdefault(file, now)
            with contextlib.suppress(httpx2.HTTPError):
                if (await client.get(f"http://127.0.0.1:{port}/ok?serving=1")).status_code == 200:
                    self.serving[file] = now

        self.most_at_once = max(self.most_at_once, len(self.seen) - len(self.serving))


def read_port(state: Path) -> int | None:
    """The private port of a deployment's server, if it runs."""
    with contextlib.suppress(OSError, ValueError):
        for replica in json.loads(state.read_bytes()).get("replicas", []):
            if Path(f"/proc/{replica['process']['pid']}").exists():
                return int(replica["port"])

    return None


def cpu_s(pid: int) -> float:
    """User and system time of a process and of its children that ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / TICK

    return 0.0


def memory_mb(pid: int) -> float:
    """The share of a process in the machine's memory: pages of several processes are divided between them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024

    return 0.0


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


async def measure_idle(fleet: Fleet, what: str) -> None:
    """Print what all processes use while nobody uses the agents."""
    before = fleet.usage()
    began = time.monotonic()
    await asyncio.sleep(WINDOW_S)
    after = fleet.usage()
    took_s = time.monotonic() - began
    percent = [100 * (now - then) / took_s for now, then in zip(after[:4], before[:4], strict=True)]
    servers = find_servers(fleet.home)

    database = await asyncpg.connect(fleet.platform.database_url)
    found = await database.fetchrow(CONNECTIONS)
    assert found is not None
    agents, clients = found

    await database.close()
    postgres = [*children(fleet.postmaster()), fleet.postmaster()]
    print(f"{what}: {len(servers)} servers, load {os.getloadavg()[0]:.1f}, over {took_s:.0f} s")
    each = len(servers) or 1

    print(f"  memory of a server {sum(map(memory_mb, find_processes(fleet.home))) / each:.1f} MB")
    print(
        f"  CPU of a server {percent[0] / each:.3f} % of a core, with Postgres {(percent[0] + percent[3]) / each:.3f} %"
    )
    print(
        f"  CPU of all servers {percent[0]:.1f} %, listener {percent[1]:.1f} %, platform {percent[2]:.1f} %, ", end=""
    )

    print(f"Postgres {percent[3]:.1f} %")
    print(f"  connections of agents {agents} ({agents / each:.2f} each), of all {clients}; ", end="")
    print(f"memory of Postgres {sum(map(memory_mb, postgres)):.0f} MB, ", end="")
    print(f"listener {memory_mb(find_listener(fleet.server)):.0f} MB, ", end="")
    assert fleet.server.process is not None
    print(f"platform {memory_mb(fleet.server.process.pid):.0f} MB", flush=True)


async def measure_reboot(fleet: Fleet) -> None:
    """Print how a machine comes back on which all deployments were awake."""
    fleet.kill_all()
    began = time.monotonic()
    await asyncio.to_thread(fleet.start)
    answered = time.monotonic() - began
    starts = Starts(fleet)
    page = await fleet.platform.client.get("/console/")
    listed = len(await fleet.deployments())

    listed_after = time.monotonic() - began
    slowest = 0.0

    async def ask_platform() -> None:
        nonlocal slowest

        while True:
            asked = time.monotonic()
            await fleet.platform.call("GET", "/v2/deployments?limit=100")
            slowest = max(slowest, time.monotonic() - asked)
            await asyncio.sleep(1)

    asking = asyncio.create_task(ask_platform())
    await starts.watch()
    asking.cancel()
    took_s = time.monotonic() - began
    used = fleet.usage()
    times = sorted(starts.serving.values())

    print(
        f"after kill -9 of everything, load {os.getloadavg()[0]:.1f}: platform answers after {answered:.1f} s, ", end=""
    )
    print(f"console {page.status_code} and the list of {listed} deployments after {listed_after:.1f} s; ", end="")
    print(f"slowest list during the start {slowest:.2f} s")
    print(f"  servers answer after {times[0]:.1f} s (first), {statistics.median(times):.1f} (median), ", end="")
    print(f"{times[-1]:.1f} (last of {len(times)}); at most {starts.most_at_once} start at a time")

    print(f"  CPU: {sum(used[:4]) / len(times):.2f} s for each deployment; servers {used.servers:.1f}, ", end="")
    print(
        f"listener {used.listener:.1f}, platform {used.platform:.1f}, Postgres {used.postgres:.1f}; all {took_s:.0f} s"
    )

    order = [
        json.loads(file.read_bytes()).get("used_at", 0.0) for file in sorted(starts.seen, key=starts.seen.__getitem__)
    ]
    later = sum(first < second for first, second in pairwise(order))

    print(f"  order: {later} of {len(order) - 1} started before one that was used later", flush=True)


async def measure_storm(fleet: Fleet) -> None:
    """Print what it takes when runs wake all deployments at once."""
    await fleet.set_sleep(1)
    await fleet.are_asleep()

    # What an agent has used is counted while it is awake.
    await fleet.set_sleep(WITHIN_S)
    deployments = await fleet.deployments()
    assert all(each["is_asleep"] for each in deployments)

    before = fleet.usage()
    began = time.monotonic()
    times = sorted(await asyncio.gather(*(by_request(fleet, deployment) for deployment in deployments)))
    took_s = time.monotonic() - began
    after = fleet.usage()

    used = [(now - then) / len(times) for now, then in zip(after[:4], before[:4], strict=True)]
    print(
        f"runs wake {len(times)} at once, load {os.getloadavg()[0]:.1f}: ended after {times[0]:.1f} s (first), "
        f"{statistics.median(times):.1f} (median), {times[-1]:.1f} (last); all {took_s:.1f} s"
    )

    print(
        f"  CPU: {sum(used):.2f} s for each; server and executor {used[0]:.2f}, listener {used[1]:.2f}, "
        f"platform {used[2]:.2f}, Postgres {used[3]:.2f}",
        flush=True,
    )


async def measure_sleep(fleet: Fleet) -> None:
    """Print what sleeping deployments use, and how fast one wakes."""
    began = time.monotonic()
    await fleet.set_sleep(1)
    await fleet.are_asleep()
    print(f"all asleep {time.monotonic() - began:.0f} s after the setting")
    await measure_idle(fleet, "asleep")

    deployments = await fleet.deployments()
    print_times("a request", [await by_request(fleet, deployment) for deployment in deployments[:WAKE]])
    for name, wake, number in (("a delayed run", by_delayed_run, WAKE), ("a cron", by_cron, 3)):
        woken = [wake(fleet, deployment, place) for place, deployment in enumerate(deployments[:number])]
        print_times(name, await asyncio.gather(*woken))

    await fleet.are_asleep()
    fleet.kill_all()
    began = time.monotonic()
    await asyncio.to_thread(fleet.start)

    answered = time.monotonic() - began
    await asyncio.sleep(20)
    used = fleet.usage()

    print(
        f"after kill -9 with all asleep: platform answers after {answered:.1f} s, {used.number} servers, CPU of the ",
        end="",
    )

    print(f"listener {used.listener:.1f} s, platform {used.platform:.1f}, Postgres {used.postgres:.1f}", flush=True)


def print_times(name: str, times: list[float]) -> None:
    """Print how long sleeping agents took to answer."""
    print(
        f"  {name} wakes: run ended after {min(times):.2f} s (least), {statistics.median(times):.2f} (median), ", end=""
    )
    print(f"{max(times):.2f} (most of {len(times)}), load {os.getloadavg()[0]:.1f}", flush=True)


def agent(fleet: Fleet, deployment: Any) -> httpx2.AsyncClient:
    """A client of one agent."""
    url = deployment["source_config"]["custom_url"]
    return httpx2.AsyncClient(base_url=url, headers=fleet.platform.headers, timeout=WITHIN_S)


async def by_request(fleet: Fleet, deployment: Any) -> float:
    """Seconds from sending a run to a sleeping agent until it has answered."""
    async with agent(fleet, deployment) as client:
        began = time.monotonic()
        response = await client.post("/runs/wait", json=HELLO)
        assert response.status_code == 200, response.text
        return time.monotonic() - began


async def by_delayed_run(fleet: Fleet, deployment: Any, place: int) -> float:
    """Seconds from the time for which a run was requested, at which the agent sleeps, until it has ended."""
    delay_s = 60 + 10 * place
    async with agent(fleet, deployment) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        response = await client.post(f"/threads/{thread}/runs", json={**HELLO, "after_seconds": delay_s})
        assert response.status_code == 200, response.text

    return await end_of_last_run(fleet, deployment, time.time() + delay_s)


async def by_cron(fleet: Fleet, deployment: Any, place: int) -> float:
    """Seconds from the time of a cron, at which the agent sleeps, until its run has ended."""
    due_at = (time.time() // 60 + 2 + place) * 60
    schedule = {"schedule": time.strftime("%M %H * * *", time.gmtime(due_at)), "on_run_completed": "keep"}
    async with agent(fleet, deployment) as client:
        response = await client.post("/runs/crons", json={**HELLO, **schedule})
        assert response.status_code == 200, response.text
        took_s = await end_of_last_run(fleet, deployment, due_at)
        await client.delete(f"/runs/crons/{response.json()['cron_id']}")

    return took_s


async def end_of_last_run(fleet: Fleet, deployment: Any, due_at: float) -> float:
    """Wait until the agent sleeps, and until the run that is due has ended; return how late that is."""
    await one_sleeps(fleet, deployment)
    assert time.time() < due_at - 5, "it fell asleep too late"
    database = await asyncpg.connect(fleet.platform.database_url, database=database_name(UUID(deployment["id"])))

    async def look() -> float | None:
        ended: float | None = await database.fetchval(LAST_END, due_at)
        return ended

    ended_at = await eventually(look, WITHIN_S)
    await database.close()
    assert ended_at is not None

    return ended_at - due_at


async def one_sleeps(fleet: Fleet, deployment: Any) -> None:
    """Wait until a deployment sleeps."""

    async def look() -> bool:
        return bool((await fleet.platform.call("GET", f"/v2/deployments/{deployment['id']}"))["is_asleep"])

    await eventually(look, WITHIN_S)


async def main(count: int, parts: Sequence[str]) -> None:
    """Run the parts."""
    with open_folder() as folder:
        fleet = Fleet(folder, count)
        fleet.start()
        try:
            await fleet.fill()
            if "idle" in parts or "reboot" in parts:
                await fleet.set_sleep(0)
                await Starts(fleet).watch()

            if "idle" in parts:
                await eventually(fleet.has_only_servers, WITHIN_S)
                await asyncio.sleep(SETTLE_S)
                await measure_idle(fleet, "awake")

            if "reboot" in parts:
                await measure_reboot(fleet)

            if "storm" in parts:
                await measure_storm(fleet)

            if "sleep" in parts:
                await measure_sleep(fleet)
        finally:
            await fleet.close()


if __name__ == "__main__":
    chosen = [argument for argument in sys.argv[1:] if not argument.isdecimal()]
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdecimal()]
    asyncio.run(main(numbers[0] if numbers else COUNT, chosen or PARTS))
