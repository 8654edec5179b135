"""Real servers in processes of their own, for tests that speak to them over HTTP."""

import asyncio
import atexit
import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.preloaded import PreloadedProcess

T = TypeVar("T")
# scripts/floors sets this to check other versions of libraries: the interpreter of servers otherwise preloaded.
AGENT_PYTHON = os.environ.get("PORTSIDE_TEST_AGENT_PYTHON")
# Settings of an agent server that has the project's code in its own process, and of one that has it in executors.
FORMS = [
    pytest.param({}, id="one process"),
    pytest.param({"EXECUTORS": "1", "EXECUTOR_START_SECS": "600"}, id="executors"),
]
PROJECTS = Path(__file__).parent / "projects"
PARITY_PROJECT = Path(__file__).parents[1] / "bench" / "parity" / "project"


def version_in_agents(library: str) -> str:
    """Return the version of a library that the agent servers of tests run with."""
    if AGENT_PYTHON is None:
        return version(library)

    code = f"from importlib.metadata import version; print(version({library!r}))"
    return subprocess.check_output([AGENT_PYTHON, "-c", code], text=True).strip()


# Sockets that are bound to the ports of this process's servers.
_reservations: list[socket.socket] = []


@atexit.register
def _release_ports() -> None:
    for reservation in _reservations:
        reservation.close()


def free_port() -> int:
    """Return a free port that stays reserved for this process, also while its server is down.

    It is outside the range from which the kernel takes the ports of outgoing connections. A bound socket that does not
    listen keeps other tests from choosing the port; with SO_REUSEADDR on both, a server can listen all the same.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        reservation = socket.socket()
        try:
            reservation.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue

        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reservations.append(reservation)
        return port


# The logs of servers that were started last, the newest at the end.
_logs: deque[Path] = deque(maxlen=6)
SHOWN_LINES = 40


def last_lines() -> list[tuple[Path, str]]:
    """Return the ends of the logs of the servers that were started last, for the report of a failure."""
    ends: list[tuple[Path, str]] = []
    for log in dict.fromkeys(_logs):
        with contextlib.suppress(OSError):
            lines = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            ends.append((log, "\n".join(lines)))

    return ends


# The agent servers that this process has started, by their databases.
_of_databases: defaultdict[str, list["ServerProcess"]] = defaultdict(list)


class ServerProcess:
    """A `portside` command that serves HTTP; a preloaded one starts with its modules imported."""

    def __init__(
        self, arguments: list[str], url: str, environment: dict[str, str], log: Path, *, is_preloaded: bool = False
    ) -> None:
        self.arguments = arguments
        self.url = url
        self.environment = environment
        self.log = log
        self.is_preloaded = is_preloaded

        # A command that starts a server that is not preloaded, for example one that sets limits.
        self.starter: list[str] = []
        self.process: subprocess.Popen[bytes] | PreloadedProcess | None = None

    def start(self, within_s: float = 300) -> None:
        # A second process could not listen, but the first one would answer, and nothing would stop it later.
        assert not self.is_running, f"{self.url} is up already"
        self._check_graphs_of_database()
        _logs.append(self.log)

        environment = {**os.environ, **self.environment}
        python = AGENT_PYTHON if self.is_preloaded and self.arguments[0] == "serve" else None
        if self.is_preloaded and python is None:
            self.process = PreloadedProcess(self.arguments, environment, self.log)
        else:
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    [*self.starter, python or sys.executable, "-P", "-m", "portside", *self.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )

        self.wait_until_ok(within_s)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _check_graphs_of_database(self) -> None:
        """Fail if a server with other graphs uses the database: each of the two would execute runs of the other."""
        database = self.environment.get("DATABASE_URI")
        if not database:
            return

        running = [other for other in _of_databases[database] if other is not self and other.is_running]
        for other in running:
            assert other.graphs == self.graphs, f"{other.url} uses {database} with other graphs"

        _of_databases[database] = [*running, self]

    @property
    def graphs(self) -> tuple[str, ...]:
        """What says which graphs a server has, and what it can read."""
        options = dict(itertools.pairwise(self.arguments))
        return options.get("--config", ""), *(
            self.environment.get(name, "") for name in ("LANGSERVE_GRAPHS", "GRAPH_AES_KEY")
        )

    def wait_until_ok(self, within_s: float = 300) -> None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            if self._is_ok():
                return

            time.sleep(0.05)

        raise AssertionError(f"{self.url} does not answer:\n{self.log.read_text()[-3000:]}")

    def _is_ok(self) -> bool:
        """Ask by the simplest client: a client of httpx2 for each look would cost as much as the server's start."""
        address = urlsplit(f"{self.url}/ok")
        connection = HTTPConnection(str(address.hostname), address.port or 80, timeout=5)
        try:
            connection.request("GET", address.path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    async def has_logged(self, text: str) -> bool:
        """Whether the log has a text, which the server may write after its response."""
        return text in self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)

        return self.wait_until_stopped()

    def wait_until_stopped(self) -> int:
        """Return the exit code. The limit is below the grace period, in which a server waits for its runs."""
        assert self.process is not None
        return self.process.wait(120)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


def peak_mb(pid: int) -> int:
    """Return the most memory that a process has used so far, in MB; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0

    peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(peak.split()[1]) // 1000


@contextlib.asynccontextmanager
async def in_thread(serving: contextlib.AbstractContextManager[T]) -> AsyncIterator[T]:
    """Start and stop a server in a thread, while the loop serves what the server talks to."""
    server = await asyncio.to_thread(serving.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(serving.__exit__, None, None, None)


@contextlib.contextmanager
def agent_server(
    database_url: str, folder: Path, *, project: str = "graphs", **environment: str
) -> Iterator[ServerProcess]:
    """A stand-alone agent server on a database.

    With CORE_API_EXECUTORS set for the tests it is an orchestrator with a server of tier executor beside it.
    """
    if "CORE_API_EXECUTORS" in os.environ:
        with start_orchestrated(database_url, folder, project=project, **environment) as tiers:
            yield tiers.orchestrator
        return

    port = free_port()
    settings = {"DATABASE_URI": database_url, "LANGSMITH_TRACING": "false", **environment}
    arguments = ["serve", "--config", str(PROJECTS / project / "langgraph.json"), "--port", str(port)]

    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, folder / "server.log", is_preloaded=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Tiers(NamedTuple):
    """An orchestrator, and the servers that execute its runs."""

    orchestrator: ServerProcess
    executors: list[ServerProcess]


@contextlib.contextmanager
def start_orchestrated(
    database_url: str, folder: Path, *, project: str = "graphs", config: str = "", count: int = 1, **environment: str
) -> Iterator[Tiers]:
    """An orchestrator on a database, and servers of tier executor with a key."""
    config = config or str(PROJECTS / project / "langgraph.json")
    port = free_port()
    shared = {"CORE_API_KEY": secrets.token_hex(32), "LANGSMITH_TRACING": "false", **environment}
    core_port = int(shared.get("CORE_API_PORT") or free_port())
    own = {**shared, "DATABASE_URI": database_url, "CORE_API_PORT": str(core_port), "FF_USE_CORE_API": "true"}
    command = ["serve", "--config", config, "--port"]
    url = f"http://127.0.0.1:{port}"

    orchestrator = ServerProcess(
        [*command, str(port)],
        url,
        {"PORTSIDE_TIER": "orchestrator", **own, "EXECUTORS": "0"},
        folder / "server.log",
        is_preloaded=True,
    )

    executors = [
        executor_server(config, f"127.0.0.1:{core_port}", folder / f"executors{number}.log", **shared)
        for number in range(count)
    ]

    try:
        orchestrator.start()
        for executor in executors:
            executor.start()

        yield Tiers(orchestrator, executors)
    finally:
        # The orchestrator first: its runs are handed back while there are executors.
        if orchestrator.process is not None:
            orchestrator.stop()

        for executor in executors:
            if executor.process is not None:
                executor.stop()


def executor_server(config: str, core_api: str, log: Path, **environment: str) -> ServerProcess:
    """A server of tier executor, not started yet."""
    port = free_port()
    command = ["serve", "--config", config, "--port", str(port), "--tier", "executor", "--core-api", core_api]
    own = {**environment, "EXECUTOR_GRPC_PORT": str(free_port()), "EXECUTOR_START_SECS": "600"}
    return ServerProcess(command, f"http://127.0.0.1:{port}", own, log, is_preloaded=True)


@contextlib.contextmanager
def platform_server(home: Path, *arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """A whole platform with its listener and an embedded Postgres."""
    port = free_port()
    command = ["up", "--home", str(home), "--port", str(port), *(arguments or ("--no-example",))]
    home.mkdir(parents=True, exist_ok=True)
    settings = {"DATABASE_URL": "", "PORTSIDE_API_KEY": KEY, "LOG_LEVEL": "INFO", **environment}

    server = ServerProcess(command, f"http://127.0.0.1:{port}", settings, home / "up.log", is_preloaded=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()


KEY = "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789"
