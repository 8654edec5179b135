"""The HTTP server: uvicorn with limits for connections (`protocol.py`), and a drain that drops no request.

To stop, the server closes its listening sockets, closes each connection after its next response, waits for the
connections to go, and only then shuts down. Sockets can be added while it runs, which is how a replica takes over.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from portside.kernel.errors import DependencyUnavailable
from portside.kernel.files import short_path
from portside.kernel.http.body_settings import WITHIN_S
from portside.kernel.http.protocol import BoundedConfig, BufferingProtocol, close_slow
from portside.kernel.http.shared_listeners import ConnectionShare, SharedListener
from portside.kernel.supervision import Supervision
from portside.kernel.transient_errors import join_library_outages

KEEP_ALIVE_S = 75
IDLE_DRAIN_S = 3.0
# An accepted connection gets its protocol one iteration of the event loop later with uvloop, three with asyncio.
_ACCEPT_ITERATIONS = 4
# A frame holds one command, which may be as large as the body of a request.
MAX_FRAME_BYTES = 25_000_000
PING_EVERY_S = 20.0
# Connections that wait until they are accepted.
_BACKLOG = 2048


class Server(uvicorn.Server):
    """An HTTP server that runs inside another program. It sets `draining` when it begins to stop."""

    config: BoundedConfig

    def __init__(
        self,
        app: Any,
        *,
        draining: asyncio.Event,
        grace_s: float = 30.0,
        body_within_s: float = WITHIN_S,
        speaks_websocket: bool = False,
    ) -> None:
        # Called for each connection, as a class would be.
        websocket: Any = _build_websocket if speaks_websocket else "none"
        config = BoundedConfig(
            app,
            log_config=None,
            # Middleware may be a function that returns what the next one returns, which uvicorn does not recognise.
            interface="asgi3",
            access_log=False,
            server_header=False,
            date_header=False,
            # Each program has its own setting for the proxies that it trusts.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, int(grace_s)),
            lifespan="off",
            http=BufferingProtocol,
            ws=websocket,
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=PING_EVERY_S,
            ws_ping_timeout=PING_EVERY_S,
        )

        super().__init__(config)
        join_library_outages("uvicorn.error")
        self.draining = draining
        self.idle_drain_s = IDLE_DRAIN_S
        self._body_within_s = body_within_s
        self._share: tuple[ConnectionShare, int] | None = None
        self._shared: list[SharedListener] = []

        self._has_left_share = False
        self._has_none = asyncio.Event()

    def share_connections(self, share: ConnectionShare, number: int) -> None:
        """Share the connections with the servers of other processes on the same sockets; call this before `open`."""
        self._share = share, number

    async def open(self, sockets: list[socket.socket]) -> None:
        """Begin to accept connections on these sockets."""
        if not self.config.loaded:
            self.config.load()

        self.lifespan = self.config.lifespan_class(self.config)
        if self._share is None:
            await self.startup(sockets)
            return

        await self.startup([])
        share, number = self._share
        self.config.on_connections = self._publish_connections

        # Clients keep their connections: without this a process that starts later would get new ones only.
        self.config.is_surplus = partial(share.has_too_many, number)
        for listening in sockets:
            await self.add_socket(listening)

    async def add_socket(self, listening: socket.socket) -> None:
        """Begin to accept connections on one more socket."""
        if self._share is None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._build_protocol, sock=listening, backlog=self.config.backlog)
            self.servers.append(server)
            return

        if self._has_left_share:
            listening.close()
            return

        share, number = self._share
        listener = SharedListener(
            listening,
            self._build_protocol,
            is_turn=partial(share.is_least, number),
            on_accepted=self._publish_connections,
        )
        self._shared.append(listener)
        self._publish_connections()

    def _build_protocol(self) -> asyncio.Protocol:
        protocol_class: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def serve_until(self, stop: asyncio.Event, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until `stop` is set, then drain. `on_drain` runs once no more requests can arrive."""
        # uvicorn's own loop would do this ten times a second, for headers and limits that this server does not have.
        await self.on_tick(0)
        slow = partial(close_slow, self.server_state.connections, self._body_within_s)
        closing = asyncio.create_task(Supervision("closing of slow connections").run(slow))
        await stop.wait()
        self.draining.set()

        for server in self.servers:
            server.close()

        self._leave_share()
        await self._wait_for_connections()

        if on_drain is not None:
            await on_drain()

        self.should_exit = True
        closing.cancel()
        await self.shutdown()

    async def retire(self) -> None:
        """Accept no more, close each connection after its next response, and return when none is left.

        Everything else continues as before, for as long as a client stays. Only for a server that shares connections.
        """
        self.config.is_surplus = lambda: True
        self._leave_share()
        await asyncio.gather(*(listener.wait_opened() for listener in self._shared))
        self._publish_connections()
        await self._has_none.wait()

    def _leave_share(self) -> None:
        for listener in self._shared:
            listener.close()

        if self._share is not None:
            self._has_left_share = True
            share, number = self._share
            share.leave(number)

    def _publish_connections(self) -> None:
        if self._share is None:
            return

        share, number = self._share
        count = len(self.server_state.connections) + sum(listener.opening for listener in self._shared)
        if not self._has_left_share:
            share.publish(number, count)
        elif count == 0:
            self._has_none.set()

    async def _wait_for_connections(self) -> None:
        for listener in self._shared:
            await listener.wait_opened()

        # uvicorn counts an accepted connection only some iterations later. On a busy machine these may take any time.
        for _ in range(_ACCEPT_ITERATIONS):
            await asyncio.sleep(0)

        deadline = time.monotonic() + self.idle_drain_s
        while self.server_state.connections and time.monotonic() < deadline:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.02)


def _build_websocket(**options: Any) -> asyncio.Protocol:
    """Return the protocol of a WebSocket connection, imported when a server gets the first one.

    It reads the next frame when the application has taken the last one, so frames do not pile up.
    """
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol as Protocol
    except ImportError:
        # uvicorn before 0.35; this one reads up to 32 frames ahead.
        from uvicorn.protocols.websockets.websockets_impl import WebSocketProtocol as Protocol  # type: ignore[assignment]

    return Protocol(**options)


def listen_unix(folder: Path, name: str) -> socket.socket:
    """Listen on a unix socket in a folder, which only this user may open; it replaces an older one."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (folder / name).unlink(missing_ok=True)
    with short_path(folder, name) as path:
        listening.bind(path)

    (folder / name).chmod(0o600)
    listening.listen(_BACKLOG)
    listening.setblocking(False)

    return listening


def listen(host: str, port: int, *, reuse_port: bool = False, option: str = "--port") -> socket.socket:
    """Bind and listen. Raises DependencyUnavailable, with the `option` for another port, if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    if reuse_port:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as exc:
        listening.close()
        is_foreign = exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror)
        remedy = "--host: this one is not an address of this machine" if is_foreign else option
        message = f"cannot listen on {host}:{port}: {exc.strerror}; choose another with {remedy}"
        raise DependencyUnavailable(message) from exc

    listening.setblocking(False)
    return listening
