"""One agent server process: its sockets, its signals, and taking over from a predecessor.

A replica of a deployment answers on a private socket first. When the data plane writes a byte into the hand-over pipe
it answers on the deployment's own socket too, and the replica before it is told to leave.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from portside.agent.access.loading import refuse_open_address
from portside.agent.app import AgentApp, open_app
from portside.agent.config import AgentConfig
from portside.agent.graphs.load import Graphs
from portside.agent.settings import AgentSettings
from portside.kernel.http.server import Server, listen
from portside.kernel.logs import get_logger

log = get_logger(__name__)
STREAMS_LEFT_S = 5.0
GONE_WITHIN_S = 10.0
COLLECT_AFTER = (10_000, 10, 10)


class Sockets(msgspec.Struct, frozen=True):
    """Inherited descriptors: what to listen on, the deployment's own socket, and the hand-over pipe.

    At `heir_fd` a later data plane asks for the deployment's own socket, when the one that has it now has died.
    """

    private_fd: int | None = None
    public_fd: int | None = None
    handover_fd: int | None = None
    heir_fd: int | None = None


class Served(msgspec.Struct, frozen=True):
    """An agent, how it is served, and where it keeps what it remembers."""

    config: AgentConfig
    graphs: Graphs
    settings: AgentSettings
    database_url: str


async def serve(served: Served, sockets: Sockets, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM (runs may end within the grace period) or SIGINT (runs are handed back at once).

    A second signal of either kind ends the grace period. Raises OutOfReach when the port or the database is not to be
    had, and UserMistake when it would be open to other machines without a word about it.
    """
    settings = served.settings
    if sockets.private_fd is None:
        refuse_open_address(served.config, settings)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    listening = _listening(settings, sockets)
    async with open_app(served.config, served.graphs, settings, served.database_url) as app:
        server = Server(
            app.asgi,
            draining=app.draining,
            grace_s=STREAMS_LEFT_S,
            body_within_s=settings.http_request_body_timeout_seconds,
            speaks_websocket=True,
        )

        def leave(*, at_once: bool) -> None:
            if at_once or stop.is_set():
                server.idle_drain_s = 0.0
                hurry.set()
            stop.set()

        async def hand_over() -> None:
            await app.worker.drain(settings.bg_job_shutdown_grace_period_secs, hurry)
            _be_gone_in_time()

        loop.add_signal_handler(signal.SIGTERM, partial(leave, at_once=False))
        loop.add_signal_handler(signal.SIGINT, partial(leave, at_once=True))
        await server.open([listening])
        address = str(listening.getsockname())
        log.info("agent server ready", address=address, tier=settings.tier, graphs=served.graphs.ids())
        _spare_collections()
        on_ready()
        if sockets.public_fd is not None and sockets.handover_fd is not None:
            app.traffic.is_served = False
            _await_handover(server, app, sockets.public_fd, sockets.handover_fd)
            if sockets.heir_fd is not None:
                _await_heir(sockets.public_fd, sockets.heir_fd)
        await server.serve_until(stop, hand_over)
    log.info("agent server stopped")


def _be_gone_in_time() -> None:
    """End this process although something in it does not end: a node that blocks its thread, a dead connection.

    Its runs are handed back by now, and what it still does to them is refused.
    """

    def be_gone() -> None:
        log.warning("something in this process does not end, and is cut off", within_s=GONE_WITHIN_S)
        os._exit(0)

    timer = threading.Timer(GONE_WITHIN_S, be_gone)
    timer.daemon = True
    timer.start()


def _spare_collections() -> None:
    """Leave what was made at the start out of every later garbage collection, and collect less often.

    A server is 200,000 objects that live as long as it does; walking them stopped all runs for 60 ms at a time. They
    are not walked even once: that is a tenth of the start, to find the 2 % of them that are garbage.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


def _listening(settings: AgentSettings, sockets: Sockets) -> socket.socket:
    if sockets.private_fd is None:
        return listen(settings.host, settings.port)
    inherited = socket.socket(fileno=sockets.private_fd)
    inherited.setblocking(False)
    return inherited


def _await_handover(server: Server, app: AgentApp, public_fd: int, pipe: int) -> None:
    loop = asyncio.get_running_loop()

    async def take_over() -> None:
        public = socket.socket(fileno=public_fd)
        public.setblocking(False)
        await server.add_socket(public)
        app.traffic.is_served = True
        log.info("answering on the deployment's address", address=str(public.getsockname()))

    def on_readable() -> None:
        loop.remove_reader(pipe)
        if os.read(pipe, 1):
            app.takeover = loop.create_task(take_over())
        os.close(pipe)

    loop.add_reader(pipe, on_readable)


def _await_heir(public_fd: int, heir_fd: int) -> None:
    # The server closes its own descriptor when it drains; what waits in the socket's queue must outlive that.
    kept, heir = os.dup(public_fd), socket.socket(fileno=heir_fd)
    heir.setblocking(False)

    def on_readable() -> None:
        # Another replica may have been faster, and whoever asked may be gone.
        with contextlib.suppress(OSError):
            asking, _address = heir.accept()
            with asking:
                socket.send_fds(asking, [b"1"], [kept, heir.fileno()])

    asyncio.get_running_loop().add_reader(heir.fileno(), on_readable)
