"""Deployments that sleep while they are idle.

`SleepCycle` ends the servers of a deployment that nobody uses, and starts them again when somebody does. `WakeQueue`
wakes deployments one after the other, while Postgres has connections for those that are awake.
"""

import asyncio
import contextlib
import json
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol
from uuid import UUID

from portside.dataplane.compute.databases import UNREACHABLE
from portside.dataplane.compute.server_metrics import ASK_IDLE_EVERY_S, read_metrics
from portside.dataplane.compute.sockets import StableSocket
from portside.dataplane.failures import DeployFailed, NoConnectionsLeft, describe_without_output
from portside.dataplane.state import SleepRecord
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import TaskSet, cancel_and_wait
from portside.kernel.timeouts import timeout, wait_at_most

log = get_logger(__name__)
# Work that is due this soon is not worth the stop and the start.
_LEAST_SLEEP_S = 30.0
# A server takes about this long to start: wake it earlier by as much, so that due work is done in time.
_AHEAD_S = 2.0
_ASK_AT_LEAST_S = 0.5
_READ_AGAIN_S = 5.0
_LOOK_EVERY_S = 30.0
_WAKE_AGAIN_S = 5.0
_WAKE_AGAIN_LIMIT_S = 300.0
# A deployment that may sleep gives way to one that wakes after so many seconds without use, whose servers end in time.
_GIVES_WAY_AFTER_S = 5.0
_ROOM_WITHIN_S = 15.0
_ROOM_POLL_S = 0.1
# Listening again sets the backlog of the socket itself.
_BACKLOG = 2048
# Further simultaneous connections are closed, because the listener needs the descriptors.
_MAX_REFUSED = 200
_REFUSE_WITHIN_S = 5.0
_CHUNK = 65_536
_REFUSAL_HEAD = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: %d\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n"
)
_FAILED = "The agent sleeps and could not be started. The status of its deployment has the reason."
_NO_ROOM = (
    "The agent sleeps, and as many agents are awake as this machine has connections to Postgres for. Try again later."
)


class SleepingDeployment(Protocol):
    """A deployment that may sleep: what the cycle below needs of a target."""

    @property
    def socket(self) -> StableSocket:
        """The socket at which clients connect. While no server runs, connections wait in its backlog."""

    def list_ports(self) -> list[int]:
        """Return a port for each server; empty while it is unknown whether they are idle."""

    def is_stopping(self) -> bool:
        """Whether servers of the deployment still finish their work."""

    def idle_s(self) -> float | None:
        """For how many seconds nobody has used the deployment, as its servers said last, if they did."""

    async def next_due(self) -> float | None:
        """Return when the agent has something to do, in seconds since 1970, or None. Raises OSError and others."""

    async def fall_asleep(self) -> None:
        """Stop all servers; returns when none of them accepts a connection."""

    def remember(self, due_at: float | None) -> None:
        """Keep on disk that the deployment sleeps, and until when."""

    async def wake(self) -> None:
        """Start the servers; returns when they accept connections. Raises DeployFailed and OSError."""


class SleepCycle:
    """Puts one deployment to sleep once it is idle, and wakes it.

    It is idle when none of its servers had a request or a run for `after_s` seconds, and nothing is due soon. Its
    servers then end. The deployment's socket stays open: the first connection waits in its backlog, wakes the
    deployment, and is answered. Work wakes it shortly before it is due. If the deployment cannot be woken, connections
    get 503 with `Retry-After` for a while; the next request or the work that is due then makes another attempt.
    """

    def __init__(self, deployment: SleepingDeployment) -> None:
        self._deployment = deployment
        self._task: asyncio.Task[None] | None = None
        self._ended = TaskSet()
        self._backoff = Backoff(_WAKE_AGAIN_S, _WAKE_AGAIN_LIMIT_S)
        self._changed = asyncio.Event()
        self._after_s = 0.0

        # What `give_way` waits for: whether the deployment falls asleep for another one's sake.
        self._asked: asyncio.Future[bool] | None = None
        self.is_asleep = False

        # Why the deployment could not be woken.
        self.problem: str | None = None

    def set_after(self, after_s: float) -> None:
        """Set after how many idle seconds the deployment sleeps; 0 for never, which wakes it."""
        if after_s != self._after_s:
            self._after_s = after_s
            self._changed.set()

    def start(self, sleep: SleepRecord | None = None) -> None:
        """Begin with a deployment whose servers run or start, or with one that sleeps. Ends an earlier cycle."""
        self.stop()
        self.is_asleep = sleep is not None
        self.problem = None
        self._backoff.reset()

        watch = Supervision("sleep of a deployment").run(partial(self._run, sleep))
        self._task = asyncio.create_task(watch)

    @property
    def gives_way_after(self) -> float | None:
        """For how many seconds the deployment has been idle, if it may fall asleep now for another one's sake."""
        may_sleep = self._task is not None and self._after_s and not self.is_asleep
        idle_s = self._deployment.idle_s()
        if not may_sleep or idle_s is None or idle_s < _GIVES_WAY_AFTER_S:
            return None

        return idle_s

    @property
    def is_ending(self) -> bool:
        """Whether the deployment sleeps, and servers of it still finish their work."""
        return self.is_asleep and self._deployment.is_stopping()

    async def give_way(self) -> bool:
        """Let the deployment fall asleep if it is still idle; return whether it does."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()

        self._changed.set()
        # Several callers may wait for one answer, so a caller that is cancelled must not cancel it.
        return await asyncio.shield(self._asked)

    def _answer(self, *, is_idle: bool) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(is_idle)
        self._asked = None

    def stop(self) -> None:
        """End the cycle: the deployment stays as it is."""
        self._answer(is_idle=False)

        if self._task is not None:
            self._task.cancel()
            self._ended.add(self._task)
            self._task = None

        self.is_asleep = False

    async def close(self) -> None:
        """End the cycle; returns when nothing of it is left."""
        self.stop()
        await asyncio.gather(*self._ended, return_exceptions=True)

    async def _run(self, sleep: SleepRecord | None) -> None:
        record = sleep
        while True:
            if not self.is_asleep:
                await self._wait_until_idle()
                record = None
                self.is_asleep = True
                await self._deployment.fall_asleep()

            await self._wait_until_called(record)
            if await self._wake():
                self.is_asleep = False

    async def _wait_until_idle(self) -> None:
        while True:
            self._changed.clear()
            wait_s = None if not self._after_s else min(ASK_IDLE_EVERY_S, max(_ASK_AT_LEAST_S, self._after_s / 4))
            await wait_at_most(wait_s, self._changed.wait())

            is_asked = self._asked is not None
            least_s = min(self._after_s, _GIVES_WAY_AFTER_S) if is_asked else self._after_s
            is_idle = self._after_s > 0 and await self._is_idle(least_s)
            self._answer(is_idle=is_idle)

            if is_idle:
                return

    async def _is_idle(self, least_s: float) -> bool:
        ports = self._deployment.list_ports()
        answers = await asyncio.gather(*(read_metrics([port]) for port in ports))

        idle_times = [answer.idle_s for answer in answers if answer is not None and answer.idle_s is not None]
        has_all_answers = bool(ports) and len(idle_times) == len(ports)
        if not has_all_answers or min(idle_times) < least_s or self._deployment.is_stopping():
            return False

        try:
            due_at = await self._deployment.next_due()
        except UNREACHABLE as exc:
            log.warning("a deployment stays awake: its next due work cannot be read", error=str(exc))
            return False

        is_due_soon = due_at is not None and due_at <= time.time() + _LEAST_SLEEP_S
        # Look at the ports again: a replica may have been added meanwhile, which nobody has asked.
        return not is_due_soon and self._deployment.list_ports() == ports

    async def _wait_until_called(self, sleep: SleepRecord | None) -> None:
        """Wait for a connection, for work that is due, or until the deployment is no longer allowed to sleep."""
        loop = asyncio.get_running_loop()
        listening = self._deployment.socket.public
        called = asyncio.Event()

        def on_connection() -> None:
            loop.remove_reader(listening.fileno())
            called.set()

        loop.add_reader(listening.fileno(), on_connection)
        waits = [
            asyncio.create_task(called.wait()),
            asyncio.create_task(self._wait_until_due(sleep)),
            asyncio.create_task(self._wait_until_never()),
        ]

        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(listening.fileno())
            await cancel_and_wait(*waits)

    async def _wait_until_never(self) -> None:
        """Wait until the deployment may never sleep."""
        while self._after_s:
            self._changed.clear()
            await self._changed.wait()

    async def _wait_until_due(self, sleep: SleepRecord | None) -> None:
        """Wait until shortly before the agent has something to do: forever if it has nothing."""
        while sleep is None:
            is_stopping = self._deployment.is_stopping()
            try:
                due_at = await self._deployment.next_due()
            except UNREACHABLE as exc:
                log.warning("the next due work of a sleeping deployment cannot be read yet", error=str(exc))
                await asyncio.sleep(_READ_AGAIN_S)
                continue

            if due_at is not None and due_at <= time.time() + _AHEAD_S:
                return

            # A request that was the last one may have left work behind, until the last server has ended.
            if not is_stopping:
                sleep = SleepRecord(due_at)
                self._deployment.remember(due_at)
            else:
                await asyncio.sleep(_ASK_AT_LEAST_S)

        while sleep.due_at is None or time.time() < sleep.due_at - _AHEAD_S:
            left_s = _LOOK_EVERY_S if sleep.due_at is None else sleep.due_at - _AHEAD_S - time.time()
            # The clock may be set meanwhile.
            await asyncio.sleep(max(0.0, min(left_s, _LOOK_EVERY_S)))

    async def _wake(self) -> bool:
        """Wake the deployment and return True; or refuse connections for a while and return False."""
        try:
            await self._deployment.wake()
        except (DeployFailed, OSError) as exc:
            # A connection to Postgres may be free as soon as another deployment sleeps.
            has_room = not isinstance(exc, NoConnectionsLeft)
            delay_s = self._backoff.next() if has_room else _WAKE_AGAIN_S
            self.problem = f"The agent sleeps and could not be woken: {exc}"
            log.warning("a deployment cannot be woken", error=describe_without_output(exc), again_in_s=delay_s)

            detail = _FAILED if has_room else _NO_ROOM
            async with refuse_connections(self._deployment.socket.public, delay_s, detail):
                await asyncio.sleep(delay_s)

            return False

        self.problem = None
        self._backoff.reset()
        return True


class WakeQueue:
    """Wakes deployments one after the other, as long as Postgres has connections for them.

    `admit` raises NoConnectionsLeft if there are none. Then the queue puts the least recently used deployment to sleep,
    of those that may sleep and are idle.
    """

    admit: Callable[[UUID], Awaitable[None]]

    def __init__(self) -> None:
        self.cycles: dict[UUID, SleepCycle] = {}
        self._turn = asyncio.Lock()
        self._waking: set[UUID] = set()

    def asleep(self) -> list[UUID]:
        """Return the deployments that sleep; not those that wake."""
        return [
            deployment_id
            for deployment_id, cycle in self.cycles.items()
            if cycle.is_asleep and deployment_id not in self._waking
        ]

    @asynccontextmanager
    async def admitted(self, deployment_id: UUID) -> AsyncIterator[None]:
        """Wait for the turn of a deployment, which counts as awake during the block. Raises NoConnectionsLeft."""
        async with self._turn:
            await self.make_room(deployment_id)
            self._waking.add(deployment_id)

        try:
            yield
        finally:
            self._waking.discard(deployment_id)

    async def make_room(self, deployment_id: UUID) -> None:
        """Wait until there are connections for a deployment, and let others fall asleep. Raises NoConnectionsLeft."""
        deadline = time.monotonic() + _ROOM_WITHIN_S
        while True:
            try:
                return await self.admit(deployment_id)
            except NoConnectionsLeft:
                if time.monotonic() > deadline or not await self._let_one_sleep():
                    raise

            await asyncio.sleep(_ROOM_POLL_S)

    async def _let_one_sleep(self) -> bool:
        """Let one deployment fall asleep; return whether one does, or did so just now."""
        if any(cycle.is_ending for cycle in self.cycles.values()):
            return True

        idle_cycles = [cycle for cycle in self.cycles.values() if cycle.gives_way_after]
        for cycle in sorted(idle_cycles, key=lambda cycle: cycle.gives_way_after or 0.0, reverse=True):
            if await cycle.give_way():
                return True

        return False


@asynccontextmanager
async def refuse_connections(listening: socket.socket, for_s: float, detail: str = _FAILED) -> AsyncIterator[None]:
    """Answer every request of a socket with 503 and `Retry-After` while the block runs, which takes `for_s` seconds."""
    refusal = json.dumps({"detail": detail}).encode()
    until = time.monotonic() + for_s
    open_now = set[asyncio.StreamWriter]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        if len(open_now) <= _MAX_REFUSED:
            await answer(reader, writer)

        open_now.discard(writer)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            async with timeout(_REFUSE_WITHIN_S):
                await reader.readuntil(b"\r\n\r\n")
                retry_after = max(1, math.ceil(until - time.monotonic()))
                writer.write(_REFUSAL_HEAD % (retry_after, len(refusal)) + refusal)
                writer.write_eof()

                # Closing a connection with unread data resets it, and the client would not see the response.
                while await reader.read(_CHUNK):
                    pass

    # A duplicate, because a server that is closed closes its socket too.
    server = await asyncio.start_server(refuse, sock=listening.dup(), backlog=_BACKLOG)
    try:
        yield
    finally:
        server.close()
