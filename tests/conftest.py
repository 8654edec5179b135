"""Fixtures every test may use: a real Postgres and empty databases on it."""

import asyncio
import contextlib
import gc
import importlib
import inspect
import os
import random
import secrets
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import httpx2
import hypothesis.core
import pytest
import websockets.sync.client
from packaging.version import Version

from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.migrations import migrate
from tests.servers import version_in_agents

if TYPE_CHECKING:
    from tests.platforms import Platform, Repository

# Until the tests are collected: nearly nothing that is imported becomes garbage, and the search costs half of the CPU.
gc.disable()
T = TypeVar("T")
MEMORY = "/dev/shm"
AGENT = ("portside.agent",)
AGENT_SCHEMA = "portside"
# Builds of all tests share what they installed, as the homes of one platform would.
os.environ.setdefault("UV_CACHE_DIR", str(Path("~/.cache/uv").expanduser()))
# Modules that wait more than they work, by the minute.
LONG = (
    "api/test_project_shapes.py",
    "api/test_platform.py", "failure/test_agent_server.py", "failure/test_engine_crashes.py", "api/test_listener.py",
    "failure/", "api/test_langgraph_cli.py", "api/test_cli.py", "db/test_dataplane_containers.py",
    "api/test_streams_elsewhere.py", "api/test_control_deployments.py", "api/test_platform_routes.py",
    "api/test_members.py",
)  # fmt: skip


def _draw_uuid() -> uuid.UUID:
    """Draw a UUID from `random`, which pytest-randomly seeds before each test; `uuid.uuid4` reads os.urandom."""
    return uuid.UUID(int=random.getrandbits(128), version=4)


# Test modules are imported later than this one and bind this function.
uuid.uuid4 = _draw_uuid
# httpx2 waits five seconds for an answer where a call names no timeout; a server on a busy machine may need longer.
_timeout = inspect.signature(httpx2.get).parameters["timeout"].default
_timeout.connect = _timeout.read = _timeout.write = _timeout.pool = 60.0
# For the same reason: a WebSocket client gives its server ten seconds to accept.
websockets.sync.client.connect.__kwdefaults__["open_timeout"] = 60.0
with contextlib.suppress(ModuleNotFoundError):  # websockets 12, which projects may have, lacks it
    importlib.import_module("websockets.asyncio.client").connect.__init__.__kwdefaults__["open_timeout"] = 60.0
# A busy machine is no bug, so examples have no time limit. pytest-timeout bounds the test.
hypothesis.settings.register_profile(
    "portside", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("portside")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fail-on-skip`, which `make thorough` uses: a program that is missing must not hide a test."""
    parser.addoption("--fail-on-skip", action="store_true", help="end with status 1 if a test was skipped")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Seed hypothesis, and print the seed of the run; pytest prints no header with -q."""
    if hypothesis.core.global_force_seed is None:
        hypothesis.core.global_force_seed = session.config.getoption("randomly_seed", None)
    _print_seed(session.config)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With `--fail-on-skip`, fail a run that skipped tests; in a run of several workers the controller counts them."""
    reporter: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter is not None and reporter.stats.get("skipped")
    if session.config.getoption("fail_on_skip") and skipped and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Print the seed again below the failures."""
    _print_seed(config)


def _print_seed(config: pytest.Config) -> None:
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (seed := config.getoption("randomly_seed", None)) is not None:
        reporter.write_line(f"Repeat this run with: --randomly-seed={seed}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Leave modules and tests out of the garbage collections during the tests."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that take longest; otherwise keep the random order of pytest-randomly."""
    folder = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(folder).as_posix()
        return next((number for number, start in enumerate(LONG) if path.startswith(start)), len(LONG))

    items.sort(key=rank)
    for item in items:
        for needed in item.iter_markers("needs"):
            _skip_below(item, *needed.args)


def _skip_below(item: pytest.Item, library: str, since: str) -> None:
    """Skip a test of what older versions of a library do not have (scripts/floors)."""
    installed = _version(library)
    if Version(installed) < Version(since):
        item.add_marker(pytest.mark.skip(reason=f"needs {library} {since}, here is {installed}"))


@cache
def _version(library: str) -> str:
    return version_in_agents(library)


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
        return with_name(postgres, name)

    yield create
    for name in names:
        await admin.execute(f'drop database if exists "{name}" with (force)')
    await admin.close()


class MigratedDatabases:
    """Databases to copy, by the packages whose tables they have."""

    def __init__(self, postgres: str) -> None:
        self._postgres = postgres
        self._names: dict[tuple[str, ...], str] = {}

    async def copy_of(self, packages: tuple[str, ...]) -> str:
        """Make a database that has the tables of these packages; return its name."""
        if packages not in self._names:
            self._names[packages] = await self._migrated(packages)
        return await self._create(f'template "{self._names[packages]}"')

    async def _migrated(self, packages: tuple[str, ...]) -> str:
        name = await self._create()
        db = await Database.connect(with_name(self._postgres, name), max_size=1, schema=schema_of(packages))
        await migrate(db, list(packages), schema=schema_of(packages))
        await db.close()
        return name

    async def _create(self, options: str = "") -> str:
        name = f"test_{secrets.token_hex(6)}"
        await self._execute(f'create database "{name}" {options}')
        return name

    async def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        await self._execute(f'drop database if exists "{name}" with (force)')

    async def drop_all(self) -> None:
        """Drop the databases that were copied."""
        for name in self._names.values():
            await self.drop(name)

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self._postgres)
        await connection.execute(statement)
        await connection.close()


def schema_of(packages: tuple[str, ...]) -> str | None:
    """Return the schema of the tables of these packages; None for that of Postgres."""
    return AGENT_SCHEMA if packages == AGENT else None


@pytest.fixture(scope="session")
def migrated(postgres: str) -> Iterator[MigratedDatabases]:
    """The databases to copy."""
    databases = MigratedDatabases(postgres)
    yield databases
    asyncio.run(databases.drop_all())


def databases_of(packages: Sequence[str]) -> Any:
    """Make a fixture like `fresh_database` whose databases have the tables of these packages."""

    @pytest.fixture
    async def databases(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        names: list[str] = []

        async def create() -> str:
            names.append(await migrated.copy_of(tuple(packages)))
            return with_name(postgres, names[-1])

        yield create
        for name in names:
            await migrated.drop(name)

    return databases


agent_databases = databases_of(AGENT)


@pytest.fixture(scope="module")
def module_database(postgres: str) -> Iterator[str]:
    """The URL of an empty database that the tests of one module share."""
    with _database(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def agent_database(postgres: str) -> Iterator[str]:
    """The URL of another one, for an agent server beside a platform."""
    with _database(postgres) as url:
        yield url


@contextlib.contextmanager
def _database(postgres: str) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    asyncio.run(_administer(postgres, f'create database "{name}"'))
    yield with_name(postgres, name)
    asyncio.run(_administer(postgres, f'drop database if exists "{name}" with (force)'))


async def _administer(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


def with_name(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    base, _, query = url.partition("?")
    return f"{base.rsplit('/', 1)[0]}/{name}{'?' + query if query else ''}"


@pytest.fixture
async def platform(fresh_database: Callable[[], Awaitable[str]], tmp_path: Path) -> AsyncIterator["Platform"]:
    """A platform with its listener and a database of its own."""
    # Imported here, because that module imports this one.
    from tests.platforms import open_platform

    async with open_platform(tmp_path, await fresh_database()) as opened:
        yield opened


@pytest.fixture
def repository(tmp_path: Path) -> "Repository":
    """A repository with the version "one" of an agent, to deploy on `platform`."""
    from tests.platforms import Repository

    made = Repository(tmp_path / "repository")
    made.commit("one")
    return made


async def eventually(probe: Callable[[], Awaitable[T]], within_s: float = 300.0) -> T:
    """Call `probe` until it returns something true, or fail at the deadline, which no busy machine should reach."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(ConnectionError):
            if found := await probe():
                return found
        if time.monotonic() > deadline:
            pytest.fail(f"not reached within {within_s} s")
        await asyncio.sleep(0.02)
