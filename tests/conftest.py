"""Fixtures every test may use, and how a run of the tests begins, is shown and ends."""

import asyncio
import contextlib
import gc
import importlib
import inspect
import os
import random
import signal
import sys
import time
import tomllib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import hypothesis.core
import pytest
import structlog
import websockets.sync.client
from packaging.version import Version

from portside.kernel import db
from tests import certificates, databases, guard, preloaded, servers, sql_functions
from tests.copied_postgres import copy_data_folders
from tests.databases import AGENT, AGENT_SCHEMA, MigratedDatabases, RunPostgres, get_schema, with_name
from tests.progress import Progress
from tests.servers import version_in_agents

if TYPE_CHECKING:
    from tests.platforms import Platform, Repository

# Until the tests are collected: nearly nothing that is imported becomes garbage, and the search costs half of the CPU.
gc.disable()
T = TypeVar("T")
GUARD = pytest.StashKey[guard.Guard]()
POSTGRES = pytest.StashKey[RunPostgres]()
WORKERS = pytest.StashKey[Any]()
__all__ = [
    "AGENT",
    "AGENT_SCHEMA",
    "MigratedDatabases",
    "build_databases_fixture",
    "build_shared_database_fixture",
    "eventually",
    "get_schema",
    "with_name",
]
# Builds of all tests share what they installed, as the homes of one platform would.
os.environ.setdefault("UV_CACHE_DIR", str(Path("~/.cache/uv").expanduser()))
# Modules that take longest, by their starts: they go first, so that none of them is left alone at the end.
LONG = (
    "failure/",
    "api/test_project_shapes.py",
    "api/test_platform.py",
    "api/test_listener.py",
    "db/test_executor_pool.py",
    "db/test_backup",
    "db/test_dataplane_compute.py",
    "api/test_kubernetes_listener.py",
    "db/test_kernel_embedded.py",
    "db/test_javascript_parts.py",
    "db/test_builds_",
    "db/test_dataplane_builds.py",
    "api/test_encryption_attacks.py",
    "api/test_response_budgets.py",
    "api/test_langgraph_cli.py",
    "api/test_cli",
    "db/test_dataplane_containers.py",
    "api/test_javascript",
    "api/test_platform_routes.py",
    "api/test_costs.py",
    "api/test_ingest_sdk.py",
    "api/test_parity.py",
    "api/test_agent_access.py",
    "db/test_webhooks.py",
)


# A shell lets its background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _draw_uuid() -> uuid.UUID:
    """Draw a UUID from `random`, which pytest-randomly seeds before each test; `uuid.uuid4` reads os.urandom."""
    return uuid.UUID(int=random.getrandbits(128), version=4)


# Test modules are imported later than this one and bind this function.
uuid.uuid4 = _draw_uuid
# httpx2 waits five seconds for an answer where a call names no timeout; a server on a busy machine may need longer.
_timeout = inspect.signature(httpx2.get).parameters["timeout"].default
_timeout.connect = _timeout.read = _timeout.write = _timeout.pool = 60.0
# For the same reason: a pool gives Postgres ten seconds to accept a connection.
db.CONNECT_TIMEOUT_S = 60.0
# For the same reason: a WebSocket client gives its server ten seconds to accept.
websockets.sync.client.connect.__kwdefaults__["open_timeout"] = 60.0
with contextlib.suppress(ModuleNotFoundError):  # websockets 12, which projects may have, lacks it
    importlib.import_module("websockets.asyncio.client").connect.__init__.__kwdefaults__["open_timeout"] = 60.0


certificates.share()
# Plain tracebacks, as the servers write them: structlog's default shows local variables, which takes two CPU-seconds.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
# Passwords of tests are hashed at the least cost; tests/unit/test_passwords.py knows the real one. An environment for
# agents alone has no passwords, and no backups.
PASSWORD_COST: dict[str, int] = {}
with contextlib.suppress(ModuleNotFoundError):
    _passwords = importlib.import_module("portside.identity.passwords")
    PASSWORD_COST.update(_passwords._COST)
    _passwords._COST["n"] = 2
    importlib.import_module("tests.cheap_backups").derive_keys_cheaply()
# A busy machine is no bug, so examples have no time limit. pytest-timeout bounds the test.
hypothesis.settings.register_profile(
    "portside", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("portside")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fail-on-skip`, which `make thorough` uses: a program that is missing must not hide a test."""
    parser.addoption("--fail-on-skip", action="store_true", help="end with status 1 if a test was skipped")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin a run, in the process that starts the others if there are several."""
    if hasattr(config, "workerinput") or preloaded.IMPORTS_TESTS in os.environ:
        copy_data_folders()
        return

    config.stash[GUARD] = guard.begin()
    copy_data_folders()

    if config.getoption("numprocesses", None):
        config.pluginmanager.register(Progress(config), "portside-progress")
        if "DATABASE_URL" not in os.environ and not config.option.collectonly:
            config.stash[POSTGRES] = server = RunPostgres()
            os.environ[databases.SERVER] = server.url

        # What `make coverage` measures begins with an interpreter.
        if preloaded.can_fork() and not config.option.collectonly and not sql_functions.is_measured():
            # Imported here: an environment for agents alone may lack what it imports.
            from tests.warm_workers import WarmWorkers

            config.stash[WORKERS] = WarmWorkers(config.args)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run. What tests left running is killed and named."""
    if preloaded.IMPORTS_TESTS in os.environ:
        return

    if WORKERS in config.stash:
        config.stash[WORKERS].stop()

    if POSTGRES in config.stash:
        config.stash[POSTGRES].stop()

    preloaded.stop_forking()
    if GUARD in config.stash and (left := config.stash[GUARD].end()):
        sys.stdout.write(f"{left}\n")


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
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:  # type: ignore[misc]
    """Add the last lines of the servers of a failed test to its report."""
    report = yield
    if report.failed:
        report.sections += [(f"last lines of {log}", text) for log, text in servers.last_lines()]

    return report


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
    modules = {path: path.relative_to(folder).as_posix() for path in {item.path for item in items}}
    ranks = {path: _rank(module) for path, module in modules.items()}
    items.sort(key=lambda item: ranks[item.path])
    costly = tomllib.loads((folder / "extended.toml").read_text())
    for item in items:
        for needed in item.iter_markers("needs"):
            _skip_below(item, *needed.args)

        names = costly.get(modules[item.path], {})
        if any(_is_named(item, name) for name in names):
            item.add_marker(pytest.mark.extended)


def _rank(module: str) -> int:
    return next((number for number, start in enumerate(LONG) if module.startswith(start)), len(LONG))


def _is_named(item: pytest.Item, name: str) -> bool:
    """Whether an entry of tests/extended.toml is about this test: by its name, or by how its parameters begin."""
    if name.startswith("*"):
        return name.removeprefix("*") in item.name
    return item.name.startswith(name) if "[" in name else item.name.partition("[")[0] == name


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
    """The URL of a Postgres server: DATABASE_URL where it is set, else that of the run."""
    if url := os.environ.get("DATABASE_URL") or os.environ.get(databases.SERVER):
        yield url
        return

    server = RunPostgres()
    yield server.url
    server.stop()


@pytest.fixture
async def fresh_database(postgres: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Make empty databases; they are dropped after the test."""
    names: list[str] = []

    async def create() -> str:
        names.append(databases.new_name())
        await databases.execute(postgres, f'create database "{names[-1]}"')
        return with_name(postgres, names[-1])

    yield create

    for name in names:
        await databases.drop(postgres, name)


@pytest.fixture(scope="session")
def migrated(postgres: str) -> Iterator[MigratedDatabases]:
    """The databases to copy."""
    made = MigratedDatabases(postgres)
    yield made
    made.close()


def build_databases_fixture(packages: Sequence[str]) -> Any:
    """Make a fixture like `fresh_database` whose databases have the tables of these packages."""

    @pytest.fixture
    async def copies(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        names: list[str] = []

        async def create() -> str:
            names.append(migrated.copy(packages))
            return with_name(postgres, names[-1])

        yield create

        for name in names:
            migrated.give_back(name)

    return copies


agent_databases = build_databases_fixture(AGENT)
platform_databases = build_databases_fixture(databases.PLATFORM)


@pytest.fixture(scope="module")
def module_databases(postgres: str, migrated: MigratedDatabases) -> Iterator[Callable[[], str]]:
    """Make databases for agent servers with different graphs, which the tests of one module share."""
    names: list[str] = []

    def create() -> str:
        names.append(migrated.copy(AGENT))
        return with_name(postgres, names[-1])

    yield create

    for name in names:
        migrated.give_back(name)


def build_shared_database_fixture(packages: Sequence[str]) -> Any:
    """Make a fixture: the URL of a database with the tables of these packages that the tests of one module share."""

    @pytest.fixture(scope="module")
    def database(postgres: str, migrated: MigratedDatabases) -> Iterator[str]:
        name = migrated.copy(packages)
        yield with_name(postgres, name)
        migrated.give_back(name)

    return database


# For an agent server; `agent_database` is another one, for an agent server beside it or beside a platform.
module_database = build_shared_database_fixture(AGENT)
agent_database = build_shared_database_fixture(AGENT)
platform_database = build_shared_database_fixture(databases.PLATFORM)


@pytest.fixture(scope="session")
def forking_executors() -> Iterator[None]:
    """Fork the executors that this process starts, from one that has imported what they need."""
    # Imported here: an environment for agents alone may lack what it imports.
    from tests import warm_executors

    with warm_executors.forking_executors():
        yield


@pytest.fixture
async def platform(platform_databases: Callable[[], Awaitable[str]], tmp_path: Path) -> AsyncIterator["Platform"]:
    """A platform with its listener and a database of its own."""
    # Imported here, because that module imports this one.
    from tests.platforms import open_platform

    async with open_platform(tmp_path, await platform_databases()) as opened:
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
    began = time.monotonic()
    deadline = began + within_s
    last: object = None
    while True:
        try:
            result = await probe()
        except ConnectionError as exc:
            last = exc
        else:
            if result:
                return result
            last = result

        if time.monotonic() > deadline:
            pytest.fail(f"waited {within_s:.0f} s for {_describe(probe)}; it last returned {last!r}")

        # What takes long is looked at less often: the looks of all tests together would take minutes.
        await asyncio.sleep(min(max(0.02, (time.monotonic() - began) / 10), 0.2))


def _describe(probe: Callable[[], Awaitable[object]]) -> str:
    """Name a condition, and where it is written."""
    code = getattr(probe, "__code__", None)
    name = getattr(probe, "__qualname__", repr(probe))
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else name
