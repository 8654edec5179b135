"""Starts and ends one executor process, and forwards its log.

Its log lines are added to the log of this process; other lines that it writes go to standard error unchanged. A process
that does not answer is killed. When its link ends it is killed as well, so that none of its code still runs when its
runs are tried again.
"""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from portside.agent.executors.member import Executor, ExecutorFailed, read_hello
from portside.executor.link import Handlers, Link
from portside.executor.memory import measure_memory
from portside.executor.messages import LOG_LINE, ExecutorHello, ServerHello
from portside.kernel.logs import get_logger
from portside.kernel.supervision import describe_exit
from portside.kernel.tasks import TaskSet
from portside.kernel.timeouts import wait_at_most

log = get_logger(__name__)
EXIT_WITHIN_S = 5.0
OOM_SCORE_ADJUSTMENT = 500
MAX_LINE_BYTES = 1024 * 1024
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})
# Fields that this process sets, and `self`, which a method of the logger cannot take as a field.
_RESERVED_FIELDS = frozenset({"event", "level", "timestamp", "exc_info", "executor", "self"})
# The tasks that forward the logs of processes: asyncio itself keeps no strong reference to a task.
_readers = TaskSet()


@dataclass(frozen=True)
class Program:
    """How executors are started: their command, its environment and folder, and the first message to them.

    `--socket PATH` is added to the command.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    hello: ServerHello
    heartbeat_s: float = 30.0
    start_within_s: float = 60.0
    folder: Path | None = None


class SpawnedExecutor(Executor):
    """An executor that this process has started on this machine."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, link: Link, hello: ExecutorHello) -> None:
        super().__init__(link, hello, name=str(process.pid), heartbeat_s=program.heartbeat_s)
        self.process = process

    @classmethod
    async def start(cls, program: Program, handlers: Handlers) -> "SpawnedExecutor":
        """Start a process and wait until it has imported the project.

        Raises UserMistake if the project does not load, and ExecutorFailed if the process fails.
        """
        try:
            # Only this user may enter the folder, and so connect to the socket in it.
            folder = tempfile.mkdtemp(prefix="portside-")
            try:
                return await _start_process(program, handlers, str(Path(folder, "link")))
            finally:
                # The socket is used once.
                shutil.rmtree(folder, ignore_errors=True)
        except OSError as exc:
            raise ExecutorFailed(f"an executor process cannot be started: {exc}") from exc

    def measure(self) -> None:
        """Update `memory_bytes` with the operating system's figure: a process that is busy answers no ping."""
        self.memory_bytes = measure_memory(self.process.pid) or self.memory_bytes

    def kill(self, reason: str) -> None:
        """End the process at once."""
        super().kill(reason)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def wait_ended(self) -> str:
        """Wait until the process has ended, and return why."""
        await self.link.wait_closed()

        if self.is_retiring:
            await wait_at_most(EXIT_WITHIN_S, self.process.wait())

        with contextlib.suppress(ProcessLookupError):
            if self.process.returncode is None:
                # A process that crashes closes its link first: wait a moment for the real exit code.
                await asyncio.wait([asyncio.create_task(self.process.wait())], timeout=1.0)
                self.process.kill()

        await self.process.wait()
        return self._killed_because or _describe_end(self.process.returncode)

    @property
    def has_ended_on_purpose(self) -> bool:
        """Whether this server stopped it. One that retires goes on with its runs, and a run may still end it."""
        return self._is_closed

    async def close(self) -> None:
        """Ask the process to exit, and kill it after EXIT_WITHIN_S seconds."""
        self._is_closed = not self.link.is_closed
        self.retiring.set()
        self.link.close("the server stops")

        await wait_at_most(EXIT_WITHIN_S, self.process.wait())

        self.kill("the server stops")
        await self.process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _start_process(program: Program, handlers: Handlers, path: str) -> SpawnedExecutor:
    loop = asyncio.get_running_loop()
    greeting: asyncio.Future[Any] = loop.create_future()
    links: list[Link] = []

    def on_hello(body: Any) -> None:
        if not greeting.done():
            greeting.set_result(body)

    def accept() -> asyncio.Protocol:
        if links:
            return _Refused()

        links.append(Link(handlers, on_hello=on_hello))
        loop.call_soon(links[0].hello, program.hello)
        return links[0]

    server = await loop.create_unix_server(accept, path)
    try:
        process = await _spawn(program, path)
        try:
            hello = await _wait_for_hello(process, greeting, program.start_within_s)
            server.close()
            return SpawnedExecutor(program, process, link=links[0], hello=hello)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

            for link in links:
                link.abort("the executor did not start")

            await process.wait()
            raise
    finally:
        server.close()


async def _spawn(program: Program, path: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *program.command,
        "--socket",
        path,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=dict(program.environment),
        cwd=program.folder,
        limit=MAX_LINE_BYTES,
    )

    assert process.stderr is not None  # noqa: S101 - it is a pipe
    _prefer_for_oom_killer(process.pid)

    # It ends when the process, and any child that inherited its standard error, has closed that.
    _readers.spawn(_forward_lines(process.stderr, process.pid))

    return process


def _prefer_for_oom_killer(pid: int) -> None:
    """Make Linux's OOM killer choose the executor before the server. Other systems have no such setting."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE_ADJUSTMENT), encoding="ascii")


async def _wait_for_hello(
    process: asyncio.subprocess.Process, greeting: asyncio.Future[Any], within_s: float
) -> ExecutorHello:
    """Wait for the executor's hello.

    Raises UserMistake if the project does not load, and ExecutorFailed if the process ends or takes too long.
    """
    process_end = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([greeting, process_end], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)

        if not greeting.done():
            raise ExecutorFailed(
                f"an executor {_describe_end(process.returncode)} while it imported the project"
                if process_end.done()
                else f"an executor did not import the project within EXECUTOR_START_SECS ({within_s:g} s)"
            )
    finally:
        process_end.cancel()

    return read_hello(greeting.result())


class _Refused(asyncio.Protocol):
    """A second connection to the socket of an executor. It is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _forward_lines(stream: asyncio.StreamReader, pid: int) -> None:
    """Forward the lines that an executor writes to standard error, until the stream ends."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            # Longer than the limit: its beginning was dropped.
            continue

        if not line:
            return

        text = line.decode(errors="replace").rstrip("\n")
        if not (text.startswith(LOG_LINE) and _log_record(text[len(LOG_LINE) :], pid)):
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text + "\n")
                sys.stderr.flush()


def _log_record(line: str, pid: int) -> bool:
    """Log a line of an executor if it is a log record; return whether it is one."""
    try:
        record = orjson.loads(line)
        level = str(record["level"])
        event = str(record["event"])
        record_fields = record.get("fields") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return False

    fields = dict(record_fields) if isinstance(record_fields, dict) else {}
    if isinstance(text := record.get("exception"), str):
        fields["exception"] = text

    fields = {name: value for name, value in fields.items() if name not in _RESERVED_FIELDS}
    write = getattr(log, level if level in _LEVELS else "info")
    write(event, executor=pid, **fields)

    return True


def _describe_end(code: int | None) -> str:
    """Describe how a process ended, by its exit code."""
    if code is None:
        return "ended"

    # The server did not send it: it gives its own reason when it kills an executor.
    hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
    return describe_exit(code) + hint
