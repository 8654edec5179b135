"""Both servers while Postgres is killed, starting, out of connections or out of disk.

Requests get 503 with `Retry-After`, the log has one line for each kind of failure in each second, and the servers
recover without help.
"""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from portside.kernel.embedded import EmbeddedPostgres
from tests.conftest import eventually
from tests.servers import KEY, ServerProcess, agent_server, free_port, platform_server
from tests.small_disk import SmallDisk, needs_small_disk, small_disk

pytestmark = pytest.mark.timeout(600)
QUIET = {"LOG_LEVEL": "WARNING", "LOG_JSON": "true"}


@dataclass
class Postgres:
    """A Postgres of this module's own, and what is done to it."""

    engine: EmbeddedPostgres

    def kill(self) -> None:
        """End the postmaster as the system does when memory runs out."""
        pid = int((self.engine.data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)

    async def answers(self) -> bool:
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection = await asyncpg.connect(self.engine.url("portside"), timeout=300)
            await connection.close()
            return True

        return False


@pytest.fixture(scope="module")
def postgres_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def disk(postgres_folder: Path) -> Iterator[SmallDisk | None]:
    """The disk of the database: a small one where this user may mount it."""
    if os.geteuid() != 0:
        yield None
        return

    with small_disk(postgres_folder / "disk", 400) as disk:
        yield disk


@pytest.fixture(scope="module")
def postgres_server(postgres_folder: Path, disk: SmallDisk | None) -> Iterator[Postgres]:
    home = (disk.path if disk else postgres_folder) / "home"
    engine = EmbeddedPostgres(home, connections=40)
    engine.acquire()
    engine.release()

    with (engine.data / "postgresql.conf").open("a") as file:
        file.write("\nmax_wal_size = '64MB'\n")

    engine.acquire()
    yield Postgres(engine)
    engine.release()


@dataclass
class Asked:
    """A server, and the responses to all requests to it."""

    server: ServerProcess
    method: str
    path: str
    body: dict[str, Any]
    client: httpx2.AsyncClient
    responses: list[httpx2.Response] = field(default_factory=list)

    async def ask(self, **more: Any) -> httpx2.Response:
        """Write something. Every response is a success, or a 503 that says when to retry."""
        unique = {"name": f"p{time.monotonic_ns()}"} if "name" in self.body else {}
        response = await self.client.request(self.method, self.path, json={**self.body, **unique, **more})
        assert response.status_code in {200, 201, 503}, (response.status_code, response.text)

        if response.status_code == 503:
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["detail"]

        self.responses.append(response)
        return response

    async def is_well(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            is_ok = (await self.client.get("/ok")).status_code == 200
            return is_ok and (await self.ask()).status_code != 503

        return False

    @property
    def refused(self) -> int:
        return sum(response.status_code == 503 for response in self.responses)

    def failures(self) -> list[dict[str, Any]]:
        """Return the log lines of failed requests."""
        # A line that is being written has no end yet.
        lines = self.server.log.read_text().split("\n")[:-1]
        assert not [line for line in lines if line.startswith("Traceback")]
        found = [json.loads(line) for line in lines if line.startswith("{")]
        assert not [line for line in found if "exception" in line], "an outage needs no traceback"
        return [line for line in found if line["event"] == "request failed"]


@asynccontextmanager
async def open_client(server: ServerProcess, kind: str) -> AsyncIterator[Asked]:
    limits = httpx2.Limits(max_connections=60)
    headers = {"x-api-key": KEY}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=300, limits=limits) as client:
        if kind == "agent":
            yield Asked(server, "POST", "/threads", {"metadata": {}}, client)
        else:
            yield Asked(server, "POST", "/api/v1/sessions", {"name": ""}, client)


@pytest.fixture(params=["agent", "platform"])
async def server(request: pytest.FixtureRequest, postgres_server: Postgres, tmp_path: Path) -> AsyncIterator[Asked]:
    kind = request.param
    url = await asyncio.to_thread(postgres_server.engine.create_database, f"{kind}_{time.monotonic_ns()}")
    with contextlib.ExitStack() as running:
        if kind == "agent":
            process = running.enter_context(agent_server(url, tmp_path, **QUIET))
        else:
            environment = {"DATABASE_URL": url, "PORTSIDE_OWN_LISTENER": "false", **QUIET}
            process = running.enter_context(platform_server(tmp_path / "home", **environment))

        async with open_client(process, kind) as found:
            assert (await found.ask()).status_code in {200, 201}
            yield found


async def test_killed_postgres_gives_503_until_it_is_back(server: Asked, postgres_server: Postgres):
    """Sixty clients send requests all the time while Postgres is killed, stays away for a while, and recovers."""
    going = True
    began = time.monotonic()

    async def client() -> None:
        while going:
            if (await server.ask()).status_code == 503:
                await asyncio.sleep(0.005)

    clients = [asyncio.create_task(client()) for _ in range(60)]
    try:
        await eventually(lambda: asyncio.sleep(0, len(server.responses) > 100))
        with postgres_server.engine._start_lock():
            postgres_server.kill()
            await eventually(lambda: asyncio.sleep(0, server.refused > 500))

        await eventually(postgres_server.answers)
        await eventually(server.is_well)
    finally:
        going = False
        await asyncio.gather(*clients)

    async def are_all_logged() -> bool:
        return sum(line["times"] for line in server.failures()) == server.refused

    await eventually(are_all_logged)
    kinds = Counter(line["error"].partition(":")[0] for line in server.failures())
    lasted_s = time.monotonic() - began
    assert max(kinds.values()) <= lasted_s / 0.9 + 2, "a line of each kind in a second"


async def test_postgres_without_free_connections_gives_503(server: Asked, postgres_server: Postgres):
    """A server goes on with the connections it has, and answers 503 only when it has none."""
    taken: list[asyncpg.Connection[Any]] = []

    async def take_all() -> None:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await asyncpg.connect(postgres_server.engine.url("portside")))

    try:
        await take_all()

        for _ in range(3):
            await asyncio.gather(*(server.ask() for _ in range(60)))

        assert server.refused == 0

        async def is_refused() -> bool:
            others = "select pg_terminate_backend(pid) from pg_stat_activity where datname ~ '^(agent|platform)_'"
            await taken[0].execute(others)
            await take_all()
            await asyncio.gather(*(server.ask() for _ in range(60)))
            return server.refused > 0

        await eventually(is_refused)
    finally:
        for connection in taken:
            await connection.close()

    await eventually(server.is_well)


@needs_small_disk
async def test_full_disk_gives_503_until_there_is_space(server: Asked, disk: SmallDisk):
    """Heap or journal, whichever cannot grow first: a statement is refused, or Postgres ends and cannot start."""
    disk.fill()
    try:

        async def is_refused() -> bool:
            # Postgres may have given space back, for example that of a journal that it needs no more.
            disk.fill()
            large = {"metadata": {"text": "x" * 100_000}} if "metadata" in server.body else {"description": "x" * 9_000}
            await asyncio.gather(*(server.ask(**large) for _ in range(20)))
            return server.refused > 100

        await eventually(is_refused)
    finally:
        disk.empty()

    await eventually(server.is_well)

    async def are_all_logged() -> bool:
        return sum(line["times"] for line in server.failures()) == server.refused

    await eventually(are_all_logged)


async def test_idle_connections_leave_the_platform_its_descriptors(tmp_path: Path):
    """With more idle connections than descriptors, Postgres is still restarted, and other clients get 503."""
    port = free_port()
    home = tmp_path / "home"
    environment = {"DATABASE_URL": "", "PORTSIDE_API_KEY": KEY, "PORTSIDE_OWN_LISTENER": "false", **QUIET}
    command = ["up", "--home", str(home), "--port", str(port), "--no-example", "--no-front"]
    server = ServerProcess(command, f"http://127.0.0.1:{port}", environment, tmp_path / "up.log")
    server.starter = ["sh", "-c", 'ulimit -S -n 200; ulimit -H -n 400; exec "$@"', "sh"]

    await asyncio.to_thread(server.start)
    idle: list[asyncio.StreamWriter] = []
    try:
        postgres = Postgres(EmbeddedPostgres(home))

        for _ in range(600):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            idle.append(writer)

        async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:

            async def is_crowded() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    response = await client.get("/info")
                    return response.status_code == 503 and int(response.headers["retry-after"]) > 0

                return False

            await eventually(is_crowded)
            before = (postgres.engine.data / "postmaster.pid").read_text()
            postgres.kill()

            async def is_started_again() -> bool:
                with contextlib.suppress(FileNotFoundError):
                    is_another = (postgres.engine.data / "postmaster.pid").read_text() != before
                    return is_another and await postgres.answers()

                return False

            await eventually(is_started_again)

            for writer in idle:
                writer.close()

            async def is_well() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    response = await client.get("/ok")
                    return (response.status_code, response.json()) == (
                        200,
                        {"ok": True, "services": {"postgres": True}},
                    )

                return False

            await eventually(is_well)
    finally:
        await asyncio.to_thread(server.stop)


async def test_postgres_that_ran_well_since_its_restart_is_restarted_at_once(postgres_server: Postgres):
    backoff = postgres_server.engine._backoff
    for _ in range(6):
        backoff.next()

    async def is_forgotten() -> bool:
        return backoff._next_s == backoff._first_s

    await eventually(is_forgotten)


async def test_ok_reports_that_postgres_cannot_be_restarted(tmp_path: Path):
    """The data folder is damaged while the platform runs, and put right later."""
    environment = {"PORTSIDE_OWN_LISTENER": "false", **QUIET}
    with platform_server(tmp_path / "home", **environment) as server:
        postgres = Postgres(EmbeddedPostgres(tmp_path / "home"))
        control = postgres.engine.data / "global" / "pg_control"
        away = control.with_suffix(".away")
        control.rename(away)
        postgres.kill()

        async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:

            async def is_reported() -> bool:
                response = await client.get("/ok")
                problem = response.json().get("problems", {}).get("postgres", "")
                return response.status_code == 500 and "cannot be kept running" in problem

            await eventually(is_reported)
            away.rename(control)

            async def is_well() -> bool:
                response = await client.get("/ok")
                return response.json() == {"ok": True, "services": {"postgres": True}}

            await eventually(is_well)
