"""One agent server process: its sockets, its signals, and the hand-over from a previous replica.

A replica of a deployment first listens on a private socket. When the data plane writes a byte into the hand-over pipe,
the replica listens on the deployment's public socket too, and the data plane stops the previous replica.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from portside.agent.access.authentication import refuse_open_address
from portside.agent.app import open_app
from portside.agent.config import AgentConfig
from portside.agent.http.services import Traffic
from portside.agent.log_reports import forwarded_logs
from portside.agent.settings import AgentSettings
from portside.agent.wiring import AgentApp
from portside.executor.versions import list_missing_features
from portside.kernel import interruption
from portside.kernel.http.server import Server, listen
from portside.kernel.http.shared_listeners import ConnectionShare
from portside.kernel.logs import get_logger
from portside.kernel.metrics import Siblings
from portside.kernel.startup import tune_garbage_collection
from portside.kernel.tasks import TaskSet
from portside.kernel.worker_processes import RETIRE, WorkerProcess

if TYPE_CHECKING:
    from portside.executor.load import Graphs

log = get_logger(__name__)
# How long responses may still take after the runs have ended or were handed back.
STREAMS_LEFT_S = 5.0
EXIT_TIMEOUT_S = 10.0


class Sockets(msgspec.Struct, frozen=True):
    """Inherited descriptors: the private socket, the deployment's public socket, and the hand-over pipe.

    When the data plane that has the public socket has died, its successor requests the socket at `heir_fd`. A server
    that is no replica may inherit the socket of its configured address, which `portside dev` keeps open.
    """

    listening_fd: int | None = None
    private_fd: int | None = None
    public_fd: int | None = None
    handover_fd: int | None = None
    heir_fd: int | None = None


class WorkerContext(msgspec.Struct, frozen=True):
    """What one of several worker processes needs to serve the same address as the others."""

    process: WorkerProcess
    listening: socket.socket
    share: ConnectionShare
    siblings: Siblings


class ServedAgent(msgspec.Struct, frozen=True):
    """The agent to serve, its settings and its database."""

    config: AgentConfig
    graphs: "Graphs | None"
    """The graphs of this process; None if executors have them."""
    settings: AgentSettings
    database_url: str
    wrap: Callable[[Any], Any] = lambda app: app
    """Wraps the whole application: `portside dev` adds its pages so."""


async def serve(
    served: ServedAgent,
    sockets: Sockets,
    *,
    context: WorkerContext | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM (runs may end within the grace period) or SIGINT (runs are handed back at once).

    A second signal of either kind ends the grace period, and the next one the process. With a `context`, this process
    is one of several that serve together. Raises DependencyUnavailable when the port or the database is not available,
    and UserMistake when the server would accept unauthenticated requests from other machines.
    """
    with forwarded_logs(served.settings):
        await _serve(served, sockets, context, on_ready)


async def _serve(
    served: ServedAgent, sockets: Sockets, context: WorkerContext | None, on_ready: Callable[[], None]
) -> None:
    settings = served.settings
    if sockets.private_fd is None:
        refuse_open_address(served.config, settings)

    listening = open_first_socket(settings, sockets) if context is None else context.listening
    siblings = None if context is None else context.siblings
    opening = open_app(served.config, served.graphs, settings, served.database_url, siblings)
    async with opening as app, nullcontext() if siblings is None else siblings.describing(app.describe_worker):
        server = Server(
            served.wrap(app.asgi),
            draining=app.draining,
            grace_s=STREAMS_LEFT_S,
            body_within_s=settings.http_request_body_timeout_seconds,
            speaks_websocket=True,
        )

        takeovers = TaskSet()
        stopping = _Stopping(server, app, settings)
        stopping.follow_signals(context, is_alone=context is None and sockets.private_fd is None)
        await server.open([listening])
        address = str(listening.getsockname())

        log.info("agent server ready", address=address, tier=settings.tier, graphs=list(served.config.graphs))
        if lacks := list_missing_features(app.libraries):
            log.info("some features are off, because the project's libraries are too old for them", features=lacks)

        tune_garbage_collection()
        on_ready()

        if sockets.public_fd is not None and sockets.handover_fd is not None:
            app.traffic.is_served = False
            _await_handover(server, app.traffic, takeovers, public_fd=sockets.public_fd, pipe=sockets.handover_fd)
            if sockets.heir_fd is not None:
                _await_heir(sockets.public_fd, sockets.heir_fd)

        await server.serve_until(stopping.requested, stopping.drain)

    log.info("agent server stopped")


class _Stopping:
    """How one server stops: gracefully, at once, or, as one of several processes, when the load does not need it."""

    def __init__(self, server: Server, app: AgentApp, settings: AgentSettings) -> None:
        self.requested = asyncio.Event()
        self._server = server
        self._app = app
        self._hurry = asyncio.Event()
        self._grace_s = settings.bg_job_shutdown_grace_period_secs
        self._run_s = settings.bg_job_timeout_secs
        self._retirement: asyncio.Task[None] | None = None

        # Whether no other program supervises this process, which would kill it.
        self._is_alone = False
        self._loop = asyncio.get_running_loop()

    def follow_signals(self, context: WorkerContext | None, *, is_alone: bool) -> None:
        """Stop when a signal asks for it, or when the supervisor of this process is gone. Call it before `open`.

        A server that is alone ends at once, without handing its runs back, if it is asked again while it does that.
        """
        self._is_alone = is_alone
        self._loop.add_signal_handler(signal.SIGINT, self._at_once)
        self._loop.add_signal_handler(signal.SIGTERM, self._gracefully if context is None else self._with_others)

        if context is not None:
            self._loop.add_signal_handler(RETIRE, self._retire)
            self._server.share_connections(context.share, context.process.number)
            _stop_with_supervisor(context.process, self._at_once)

    async def drain(self) -> None:
        """End the runs, within the time that they have, and then the streams."""
        # A retiring process was not asked to stop soon, so its runs get their whole time.
        grace_s = self._grace_s if self._retirement is None else max(self._grace_s, self._run_s)
        await self._app.worker.drain(grace_s, self._hurry)
        self._app.hub.stop()
        _exit_after_timeout()

    def _at_once(self) -> None:
        if self._hurry.is_set() and self._is_alone:
            interruption.leave(interruption.EXIT_CODE)

        self._server.idle_drain_s = 0.0
        self._hurry.set()
        self.requested.set()

    def _gracefully(self) -> None:
        if self.requested.is_set():
            self._at_once()
        self.requested.set()

    def _with_others(self) -> None:
        # The supervisor sends SIGINT for a second signal, so a second SIGTERM here changes nothing.
        self.requested.set()
        if self._retirement is not None:
            self._loop.call_later(self._grace_s, self._hurry.set)

    def _retire(self) -> None:
        if self._retirement is None:
            self._retirement = self._loop.create_task(self._stop_without_connections())

    async def _stop_without_connections(self) -> None:
        await self._server.retire()
        self.requested.set()


def _exit_after_timeout() -> None:
    """Exit after a while even if something does not end, such as a node that blocks its thread, or a dead connection.

    By then the runs are handed back, and the database refuses what this process still writes for them.
    """

    def exit_now() -> None:
        log.warning("exiting although some work of this process has not ended", after_s=EXIT_TIMEOUT_S)
        interruption.leave(0)

    timer = threading.Timer(EXIT_TIMEOUT_S, exit_now)
    timer.daemon = True
    timer.start()


def _stop_with_supervisor(process: WorkerProcess, stop_at_once: Callable[[], None]) -> None:
    """Stop when the supervisor is gone: no other process would stop this one, or start it again."""
    loop = asyncio.get_running_loop()

    def on_gone() -> None:
        loop.remove_reader(process.supervisor_fd)
        log.warning("stopping: the supervisor of this process is gone")
        stop_at_once()

    loop.add_reader(process.supervisor_fd, on_gone)


def open_first_socket(settings: AgentSettings, sockets: Sockets) -> socket.socket:
    """Return the socket to serve first: the private one, or one that is bound to the configured address.

    Raises DependencyUnavailable when the port is not available.
    """
    descriptor = sockets.listening_fd if sockets.private_fd is None else sockets.private_fd
    if descriptor is None:
        return listen(settings.host, settings.port)

    inherited = socket.socket(fileno=descriptor)
    inherited.set_inheritable(False)
    inherited.setblocking(False)
    return inherited


def _await_handover(server: Server, traffic: Traffic, takeovers: TaskSet, *, public_fd: int, pipe: int) -> None:
    loop = asyncio.get_running_loop()

    async def take_over() -> None:
        public = socket.socket(fileno=public_fd)
        public.setblocking(False)
        await server.add_socket(public)
        traffic.is_served = True

        log.info("answering on the deployment's address", address=str(public.getsockname()))

    def on_readable() -> None:
        loop.remove_reader(pipe)
        # The byte is not read, only counted: all processes of this replica look for it, also those that start later.
        if int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
            takeovers.spawn(take_over())

        os.close(pipe)

    loop.add_reader(pipe, on_readable)


def _await_heir(public_fd: int, heir_fd: int) -> None:
    # The server closes its own descriptor when it drains; the connections in the socket's backlog must outlive that.
    public_copy = os.dup(public_fd)
    heir = socket.socket(fileno=heir_fd)
    heir.setblocking(False)

    def on_readable() -> None:
        # Another replica may have accepted the connection, and the data plane may have closed it.
        with contextlib.suppress(OSError):
            requester, _address = heir.accept()
            with requester:
                socket.send_fds(requester, [b"1"], [public_copy, heir.fileno()])

    asyncio.get_running_loop().add_reader(heir.fileno(), on_readable)
