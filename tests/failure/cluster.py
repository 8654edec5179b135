"""Several servers on one database, what can be done to them, and the ledger of what their graphs did."""

import asyncio
import contextlib
import json
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import UUID

import asyncpg
import httpx2
import msgspec

from tests.conftest import eventually
from tests.servers import PROJECTS, ServerProcess, free_port
from tests.warm_executors import list_children

LEASE_S = 5.0
OVER = ("success", "error", "timeout", "interrupted")


class Entry(NamedTuple):
    """One line of the ledger; `at` is in seconds of the clock that Postgres on this machine has as well."""

    event: str
    step: int
    at: float
    pid: int
    run: str
    thread: str
    attempt: int


class Pause(msgspec.Struct):
    """When a process was stopped and went on, in seconds of the ledger's clock."""

    pid: int
    began: float
    ended: float = math.inf


class Ledger:
    """What the graphs of all servers wrote down, in the order in which they did."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, run: str | None = None) -> list[Entry]:
        # A line that is being written has no end yet.
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        entries = [Entry(**json.loads(line)) for line in lines]
        return [entry for entry in entries if run is None or entry.run == run]

    async def begun(self, run: str, step: int, attempt: int = 1) -> Entry:
        """Wait until a step of a run was begun."""

        async def look() -> Entry | None:
            found = (e for e in self.entries(run) if (e.event, e.step, e.attempt) == ("begin", step, attempt))
            return next(found, None)

        return await eventually(look)


class Cluster:
    """Servers on one database."""

    def __init__(self, url: str, folder: Path, **environment: str) -> None:
        self.url = url
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")

        self.environment = {
            "DATABASE_URI": url,
            "LANGSMITH_TRACING": "false",
            "ENGINE_LEDGER": str(self.ledger.path),
            **environment,
        }

        self.servers: list[ServerProcess] = []
        self._log_offsets: dict[Path, int] = {}
        self.pauses: list[Pause] = []

    def add(self, *arguments: str) -> ServerProcess:
        """Make one more server, not started yet; `arguments` are added to its command."""
        port = free_port()
        config = str(PROJECTS / "engine" / "langgraph.json")
        command = ["serve", "--config", config, "--port", str(port), *arguments]
        log = self.folder / f"server-{len(self.servers)}.log"
        server = ServerProcess(command, f"http://127.0.0.1:{port}", self.environment, log, is_preloaded=True)

        self.servers.append(server)
        return server

    async def start(self, *servers: ServerProcess) -> None:
        """Start servers, all that are down where none is named, and wait until they answer."""
        down = servers or [server for server in self.servers if not is_up(server)]
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in down))

    def start_all(self) -> None:
        """Do as `start` where there is no event loop."""
        with ThreadPoolExecutor(max(1, len(self.servers))) as pool:
            list(pool.map(lambda server: server.start(), self.servers))

    def close(self) -> None:
        """Kill every server."""
        for server in self.servers:
            if server.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.process.pid, signal.SIGKILL)
                server.process.wait()

    def skip_logs(self) -> None:
        """Return only later lines from `logs`."""
        self._log_offsets = {server.log: len(server.log.read_text()) for server in self.servers if server.log.exists()}

    def logs(self) -> list[str]:
        """Return what each server has logged since `skip_logs`."""
        return [
            server.log.read_text()[self._log_offsets.get(server.log, 0) :]
            for server in self.servers
            if server.log.exists()
        ]

    def pause(self, server: ServerProcess) -> None:
        """Stop a server. Its executors go on with the step that they have begun, as if they were paused, too."""
        assert server.process is not None
        self.pauses += [Pause(pid, time.time()) for pid in (server.process.pid, *self.find_executors(server))]
        server.send(signal.SIGSTOP)

    def resume(self, server: ServerProcess) -> None:
        assert server.process is not None
        self._end_pauses({server.process.pid, *self.find_executors(server)})
        server.send(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self, pid: int) -> Iterator[None]:
        """Stop an executor. It may have been killed at the end."""
        self.pauses.append(Pause(pid, time.time()))
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self._end_pauses({pid})
            os.kill(pid, signal.SIGCONT)

    def _end_pauses(self, pids: set[int]) -> None:
        for pause in self.pauses:
            if pause.pid in pids and pause.ended == math.inf:
                pause.ended = time.time()

    def find_executors(self, server: ServerProcess) -> list[int]:
        """Return the processes that execute the graphs of a server; none if it executes them itself, or is down."""
        return list_children(server.process.pid) if server.process else []

    def by_pid(self, pid: int) -> ServerProcess:
        """Find the server of a process: its own, or that of its executor."""
        own = {s.process.pid: s for s in self.servers if s.process is not None}
        if pid in own:
            return own[pid]

        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return own[int(fields[1])]

    def other(self, server: ServerProcess) -> ServerProcess:
        return next(s for s in self.servers if s is not server and is_up(s))

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.url, server_settings={"search_path": "portside,public"})
        try:
            yield connection
        finally:
            await connection.close()

    async def fetch(self, query: str, *values: Any) -> list[asyncpg.Record]:
        async with self.database() as connection:
            return await connection.fetch(query, *values)

    async def run_row(self, run: str) -> dict[str, Any]:
        rows = await self.fetch("select * from runs where run_id = $1", UUID(run))
        return dict(rows[0]) if rows else {}

    async def thread_row(self, thread: str) -> dict[str, Any]:
        rows = await self.fetch("select * from threads where thread_id = $1", UUID(thread))
        found = dict(rows[0]) if rows else {}
        return {**found, "values": json.loads(found["values"])} if found.get("values") else found

    async def over(self, *runs: str, within_s: float = 300) -> list[str]:
        """Wait until runs are over; return their statuses."""
        query = "select status from runs where run_id = any($1::uuid[]) order by number"

        async def look() -> list[str] | None:
            statuses = [row["status"] for row in await self.fetch(query, runs)]
            return statuses if len(statuses) == len(runs) and all(one in OVER for one in statuses) else None

        return await patiently(look, within_s)

    async def quiet(self) -> None:
        """Wait until no run is pending or running."""

        async def look() -> bool:
            return not await self.fetch("select 1 from runs where status in ('pending', 'running') limit 1")

        await patiently(look)


def is_up(server: ServerProcess) -> bool:
    return server.process is not None and server.process.poll() is None


async def is_closed(server: ServerProcess) -> bool:
    """Whether a server accepts no more connections."""
    try:
        async with httpx2.AsyncClient() as http:
            await http.get(f"{server.url}/ok")
    except httpx2.TransportError:
        return True

    return False


async def patiently(look: Callable[[], Awaitable[Any]], within_s: float = 300) -> Any:
    """Ask until the answer is true, but not often: the servers need the processor more."""
    answer: Any = None

    async def asking() -> Any:
        nonlocal answer
        if not (answer := await look()):
            await asyncio.sleep(0.1)

        return answer

    return await eventually(asking, within_s)


@contextlib.contextmanager
def start_cluster(count: int, url: str, folder: Path, **environment: str):
    """Start a cluster of equal servers; they are killed at the end."""
    cluster = Cluster(url, folder, **environment)
    for _ in range(count):
        cluster.add()

    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.close()


class Client:
    """What the tests ask of one server over HTTP."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.http = httpx2.AsyncClient(base_url=server.url, timeout=300)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.http.aclose()

    async def thread(self) -> str:
        return str((await self.http.post("/threads", json={})).json()["thread_id"])

    async def run(self, thread: str | None, **body: Any) -> str:
        """Start a run in the background; return its id."""
        response = await self.http.post(f"/threads/{thread}/runs" if thread else "/runs", json=work(**body))
        assert response.status_code == 200, response.text
        return str(response.json()["run_id"])


def work(
    *, steps: int = 3, pause_s: float = 0, gates: dict[int, Path] | None = None, graph: str = "ledger", **rest: Any
) -> dict[str, Any]:
    """Return the body of a run of the ledger's graphs; `ask_at`, `fail_at` and `kill_at` go into its input."""
    given: dict[str, Any] = {"at": 0, "steps": steps, "pause_s": pause_s, "done": []}
    given["gates"] = {str(step): str(path) for step, path in (gates or {}).items()}
    for name in ("ask_at", "fail_at", "kill_at"):
        given[name] = rest.pop(name, -1)

    return {"assistant_id": graph, "input": given, "durability": "sync", **rest}


def list_steps(values: dict[str, Any], run: str) -> list[tuple[int, int]]:
    """Return the steps, with their attempts, that a run left in its thread's state."""
    return [(step, attempt) for by, step, attempt in values["done"] if by == run]


def begun_twice_after_its_end(entries: list[Entry]) -> list[Entry]:
    """Return steps that were begun although a later step of the same run had been begun before: a lost checkpoint."""
    furthest: dict[str, int] = {}
    wrong = []
    for entry in entries:
        if entry.event == "begin":
            if entry.step < furthest.get(entry.run, 0):
                wrong.append(entry)
            furthest[entry.run] = max(furthest.get(entry.run, 0), entry.step)

    return wrong
