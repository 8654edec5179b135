"""One executor process: started, greeted, watched and ended.

Its log lines are added to the log of this process; other lines that it writes go to standard error as they are. A
process that does not answer is killed. When its link ends it is killed as well, so that none of its code runs any more
when its runs are tried again.
"""

import asyncio
import contextlib
import contextvars
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from portside.executor import messages
from portside.executor.link import CallFailed, Handler, Link, LinkClosed
from portside.executor.messages import LOG_LINE, ExecutorHello, Pong, ServerHello
from portside.executor.requests import GraphFacts
from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger

log = get_logger(__name__)
PING_EVERY_S = 1.0
EXIT_WITHIN_S = 5.0
LOOP_STANDS_STILL_S = 10.0
MAX_LINE_BYTES = 1024 * 1024
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})


class ExecutorFailed(Exception):
    """An executor did not start, or does not speak the protocol; the message says how it ended."""


@dataclass(frozen=True)
class Program:
    """How executors are started: the interpreter, its environment, and what they are told first."""

    python: str
    environment: Mapping[str, str]
    hello: ServerHello
    heartbeat_s: float = 30.0
    start_within_s: float = 60.0


class Caller(NamedTuple):
    """What a call to an executor is made for: its context variables, and the user."""

    context: contextvars.Context
    user: Any


class ExecutorProcess:
    """A started executor. `runs` are the attempts of the runs that it executes, by the ids of the runs."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, link: Link, hello: ExecutorHello) -> None:
        self.link, self.hello, self.process = link, hello, process
        self.runs: dict[UUID, int] = {}
        self.calls = 0
        """Runs and other calls that it serves."""
        self.runs_begun = 0
        self.memory_bytes = 0
        self.is_retiring = False
        """Whether it gets no more work, and ends after its last call."""
        self.is_reserved = False
        """Whether it gets no more runs until one run has had it for itself."""
        self._program = program
        self.callers: dict[int, Caller] = {}
        """Whom it works for, by the numbers that it is given with calls."""
        self._lost_runs: frozenset[UUID] | None = None
        self._killed_because: str | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    @classmethod
    async def start(cls, program: Program, handlers: Mapping[str, Handler]) -> "ExecutorProcess":
        """Start a process and wait until it has imported the project.

        Raises UserMistake if the project does not load, and ExecutorFailed if the process fails.
        """
        folder = tempfile.mkdtemp(prefix="portside-")
        try:
            return await _started(cls, program, handlers, str(Path(folder, "link")))
        finally:
            # The socket is used once. Nothing else can connect to it.
            shutil.rmtree(folder, ignore_errors=True)

    def watch(self, on_end: Callable[["ExecutorProcess", str], None]) -> None:
        """Watch the process. `on_end` is called once, when it has ended, with the reason."""
        beats = asyncio.create_task(self._beat())
        self._tasks = [beats, asyncio.create_task(self._wait(beats, on_end))]

    def retire(self) -> None:
        """Give it no more work, and end it after its last call."""
        self.is_retiring = True
        self.end_if_idle()

    def end_if_idle(self) -> None:
        """End a retiring process that has nothing left to do."""
        if self.is_retiring and not self.calls:
            self.link.close("retired")

    def kill(self, reason: str) -> None:
        """End the process at once."""
        self._killed_because = self._killed_because or reason
        self.link.abort(reason)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def lost_runs(self) -> frozenset[UUID]:
        """Return the runs that it executed when its link ended; call this only then."""
        if self._lost_runs is None:
            self._lost_runs = frozenset(self.runs)
        return self._lost_runs

    async def wait_ended(self) -> str:
        """Wait until the process has ended, and return why."""
        if self.process.returncode is None:
            await self.process.wait()
        return self._killed_because or _ending(self.process.returncode)

    async def close(self) -> None:
        """End the process: it may close what it has open, within a few seconds."""
        self.is_retiring = True
        self.link.close("the server stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WITHIN_S):
                await self.process.wait()
        self.kill("the server stops")
        await self.process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, beats: asyncio.Task[None], on_end: Callable[["ExecutorProcess", str], None]) -> None:
        await self.link.wait_closed()
        self.lost_runs()
        if self.is_retiring:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_WITHIN_S):
                    await self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            if self.process.returncode is None:
                # It may be on its way out: a process that crashes closes its link first.
                await asyncio.wait([asyncio.create_task(self.process.wait())], timeout=1.0)
                self.process.kill()
        await self.process.wait()
        beats.cancel()
        on_end(self, await self.wait_ended())

    async def _beat(self) -> None:
        """Ping the process, and kill it when it does not answer. Seconds are counted by turns of this loop.

        So a pause of this process does not look like a silent executor.
        """
        while not self.link.is_closed:
            silent, ping = 0.0, asyncio.ensure_future(self.link.ping())
            while not (await asyncio.wait([ping], timeout=PING_EVERY_S))[0]:
                silent += PING_EVERY_S
                if silent >= self._program.heartbeat_s:
                    ping.cancel()
                    self.kill(f"it did not answer for {silent:g} s")
                    return
            try:
                pong = messages.read(Pong, ping.result())
            except (LinkClosed, CallFailed):
                return
            self.memory_bytes = pong.memory_bytes
            if LOOP_STANDS_STILL_S <= pong.still_s < LOOP_STANDS_STILL_S + 2 * PING_EVERY_S:
                log.warning("a node blocks the graph loop of an executor", executor=self.process.pid, s=pong.still_s)
            await asyncio.sleep(PING_EVERY_S)


async def _started(
    cls: type[ExecutorProcess], program: Program, handlers: Mapping[str, Handler], path: str
) -> ExecutorProcess:
    loop = asyncio.get_running_loop()
    greeting: asyncio.Future[Any] = loop.create_future()
    links: list[Link] = []

    def greet(body: Any) -> None:
        if not greeting.done():
            greeting.set_result(body)

    def connected() -> asyncio.Protocol:
        if links:
            return _Refused()
        links.append(Link(handlers, on_hello=greet))
        loop.call_soon(links[0].hello, program.hello)
        return links[0]

    previous = os.umask(0o177)
    try:
        server = await loop.create_unix_server(connected, path)
    finally:
        os.umask(previous)
    try:
        process = await _spawn(program, path)
        try:
            hello = await _greeted(process, greeting, program.start_within_s)
            server.close()
            return cls(program, process, links[0], hello)
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
        program.python,
        "-m",
        "portside.executor",
        "--socket",
        path,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=dict(program.environment),
        limit=MAX_LINE_BYTES,
    )
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    # Ends with the process, and with what else holds its standard error.
    task = asyncio.create_task(_pass_lines_on(process.stderr, process.pid))
    _readers.add(task)
    task.add_done_callback(_readers.discard)
    return process


_readers: set[asyncio.Task[None]] = set()


async def _greeted(
    process: asyncio.subprocess.Process, greeting: asyncio.Future[Any], within_s: float
) -> ExecutorHello:
    """Wait for the executor's hello.

    Raises UserMistake if the project does not load, and ExecutorFailed if the process ends or takes too long.
    """
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([greeting, ended], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if not greeting.done():
            raise ExecutorFailed(
                f"an executor {_ending(process.returncode)} while it imported the project"
                if ended.done()
                else f"an executor did not import the project within EXECUTOR_START_SECS ({within_s:g} s)"
            )
    finally:
        ended.cancel()
    try:
        messages.checked_protocol(greeting.result())
        hello = messages.read(ExecutorHello, greeting.result())
        hello.graphs = {name: messages.read(GraphFacts, facts) for name, facts in hello.graphs.items()}
    except (CallFailed, AttributeError) as exc:
        raise ExecutorFailed(f"an executor cannot be used: {exc}") from exc
    if hello.failure is not None:
        raise UserMistake(hello.failure)
    return hello


class _Refused(asyncio.Protocol):
    """A second connection to the socket of an executor."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _pass_lines_on(stream: asyncio.StreamReader, pid: int) -> None:
    """Pass what an executor writes to standard error on, until it ends."""
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
    """Log a record of an executor; return whether the line was one."""
    try:
        record = orjson.loads(line)
        level, event, given = record["level"], str(record["event"]), record.get("fields") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    fields = {str(name): value for name, value in given.items()} if isinstance(given, dict) else {}
    if isinstance(text := record.get("exception"), str):
        fields["exception"] = text
    reserved = {"event", "level", "timestamp", "exc_info", "executor"}
    fields = {name: value for name, value in fields.items() if name not in reserved}
    write = getattr(log, level if level in _LEVELS else "info")
    write(event, executor=pid, **fields)
    return True


def _ending(code: int | None) -> str:
    """Say how a process ended."""
    if code is None:
        return "ended"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
