"""Real servers in processes of their own, for tests that speak to them over HTTP."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.warm import WarmProcess

PROJECTS = Path(__file__).parent / "projects"
PARITY_PROJECT = Path(__file__).parents[1] / "bench" / "parity" / "project"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServerProcess:
    """A `portside` command that serves HTTP; a warm one is as it is a second after its start."""

    def __init__(
        self, arguments: list[str], url: str, environment: dict[str, str], log: Path, *, is_warm: bool = False
    ) -> None:
        self.arguments, self.url, self.environment, self.log = arguments, url, environment, log
        self.is_warm = is_warm
        self.process: subprocess.Popen[bytes] | WarmProcess | None = None

    def start(self, within_s: float = 60) -> None:
        environment = {**os.environ, **self.environment}
        if self.is_warm:
            self.process = WarmProcess(self.arguments, environment, self.log)
        else:
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "portside", *self.arguments], stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, env=environment, start_new_session=True,
                )  # fmt: skip
        self.wait_until_ok(within_s)

    def wait_until_ok(self, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/ok", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.url} does not answer:\n{self.log.read_text()[-3000:]}")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


@contextlib.contextmanager
def agent_server(
    database_url: str, folder: Path, *, project: str = "graphs", **environment: str
) -> Iterator[ServerProcess]:
    """A stand-alone agent server on a database."""
    port = free_port()
    settings = {"DATABASE_URI": database_url, "LANGSMITH_TRACING": "false", **environment}
    arguments = ["serve", "--config", str(PROJECTS / project / "langgraph.json"), "--port", str(port)]
    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, folder / "server.log", is_warm=True)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def platform_server(home: Path, *arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """A whole platform with its listener and an embedded Postgres."""
    port = free_port()
    command = ["up", "--home", str(home), "--port", str(port), *(arguments or ("--no-example",))]
    home.mkdir(parents=True, exist_ok=True)
    settings = {"DATABASE_URL": "", "PORTSIDE_API_KEY": KEY, "LOG_LEVEL": "INFO", **environment}
    server = ServerProcess(command, f"http://127.0.0.1:{port}", settings, home / "up.log")
    server.start()
    try:
        yield server
    finally:
        server.stop()


KEY = "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789"
