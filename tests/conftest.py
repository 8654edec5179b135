"""Fixtures every test may use: a real Postgres and empty databases on it."""

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import asyncpg
import pytest

from portside.kernel.embedded import EmbeddedPostgres

T = TypeVar("T")
MEMORY = "/dev/shm"
# Modules that wait more than they work, by the minute.
LONG = (
    "api/test_platform.py", "failure/test_agent_server.py", "failure/test_engine_crashes.py", "api/test_listener.py",
    "failure/", "api/test_langgraph_cli.py", "api/test_cli.py", "db/test_dataplane_containers.py",
    "api/test_streams_elsewhere.py", "api/test_control_deployments.py", "api/test_doors.py", "api/test_members.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that take longest."""
    folder = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(folder).as_posix()
        return next((number for number, start in enumerate(LONG) if path.startswith(start)), len(LONG))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server: DATABASE_URL where it is set, else the embedded one."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        server = EmbeddedPostgres(Path(folder))
        yield server.acquire()
        server.release()


def _memory() -> str | None:
    """A folder in memory, if there is plenty: each database is hundreds of small files, made and dropped at once."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available_kb = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        space = os.statvfs(MEMORY)
        if min(available_kb * 1024, space.f_bavail * space.f_frsize) >= 8 * 2**30 and os.access(MEMORY, os.W_OK):
            return MEMORY
    return None


@pytest.fixture
async def fresh_database(postgres: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Make empty databases; they are dropped after the test."""
    names: list[str] = []
    admin = await asyncpg.connect(postgres)

    async def create() -> str:
        name = f"test_{secrets.token_hex(6)}"
        await admin.execute(f'create database "{name}"')
        names.append(name)
        return _with_name(postgres, name)

    yield create
    for name in names:
        await admin.execute(f'drop database if exists "{name}" with (force)')
    await admin.close()


@pytest.fixture(scope="module")
def module_database(postgres: str) -> Iterator[str]:
    """The URL of an empty database that the tests of one module share."""
    name = f"test_{secrets.token_hex(6)}"
    asyncio.run(_administer(postgres, f'create database "{name}"'))
    yield _with_name(postgres, name)
    asyncio.run(_administer(postgres, f'drop database if exists "{name}" with (force)'))


async def _administer(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


def _with_name(url: str, name: str) -> str:
    base, _, query = url.partition("?")
    return f"{base.rsplit('/', 1)[0]}/{name}{'?' + query if query else ''}"


async def eventually(probe: Callable[[], Awaitable[T]], within_s: float = 30.0) -> T:
    """Call `probe` until it returns something true, or fail at the deadline."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(ConnectionError):
            if found := await probe():
                return found
        if time.monotonic() > deadline:
            pytest.fail(f"not reached within {within_s} s")
        await asyncio.sleep(0.02)
