"""The HTTP server: uvicorn with a drain that drops nothing.

On a stop the server first accepts no more connections, tells the ones it has to close after their next answer, waits
for those to go, and only then shuts down. Sockets can be added while it runs, which is how a replica takes over.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from portside.kernel.errors import OutOfReach
from portside.kernel.http.bounds import BODY_WITHIN_S, close_slow
from portside.kernel.http.connections import GatheringProtocol

KEEP_ALIVE_S = 75
IDLE_DRAIN_S = 3.0
# A frame holds one command; what is in it is as large as what a request may bring.
MAX_FRAME_BYTES = 25_000_000
PING_EVERY_S = 20.0


class Server(uvicorn.Server):
    """An HTTP server that runs inside a program of ours; `draining` is set when it begins to stop."""

    def __init__(
        self,
        app: Any,
        *,
        draining: asyncio.Event,
        grace_s: float = 30.0,
        body_within_s: float = BODY_WITHIN_S,
        speaks_websocket: bool = False,
    ) -> None:
        # Called for each connection, as a class would be.
        websocket: Any = _websocket if speaks_websocket else "none"
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            # Whom to believe about where a request comes from is each program's own setting.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, int(grace_s)),
            lifespan="off",
            http=GatheringProtocol,
            ws=websocket,
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=PING_EVERY_S,
            ws_ping_timeout=PING_EVERY_S,
        )
        super().__init__(config)
        self.draining = draining
        self.idle_drain_s = IDLE_DRAIN_S
        self._body_within_s = body_within_s

    async def open(self, sockets: list[socket.socket]) -> None:
        """Begin to answer on the given listening sockets."""
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets)

    async def add_socket(self, listening: socket.socket) -> None:
        """Begin to answer on one more listening socket."""
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(self._protocol, sock=listening, backlog=self.config.backlog))

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def serve_until(self, stop: asyncio.Event, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Keep serving until `stop` is set, then drain; `on_drain` runs when no more requests are to be expected."""
        ticks = asyncio.create_task(self.main_loop())
        closing = asyncio.create_task(close_slow(self.server_state.connections, self._body_within_s))
        await stop.wait()
        self.draining.set()
        for server in self.servers:
            server.close()
        await self._let_connections_go()
        if on_drain is not None:
            await on_drain()
        self.should_exit = True
        await ticks
        closing.cancel()
        await self.shutdown()

    async def _let_connections_go(self) -> None:
        deadline = time.monotonic() + self.idle_drain_s
        while self.server_state.connections and time.monotonic() < deadline:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.02)


def _websocket(**options: Any) -> asyncio.Protocol:
    """Speak WebSocket on a connection that asks for it. The first one imports what for: few servers ever see any.

    It reads the next frame when the application took the last one, so nothing piles up.
    """
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    return WebSocketsSansIOProtocol(**options)


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Bind and listen. Raises OutOfReach that names the port when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sends small packets at once (TCP_NODELAY) only where it is.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as exc:
        listening.close()
        raise OutOfReach(f"cannot listen on {host}:{port}: {exc.strerror}; choose another with --port") from exc
    listening.setblocking(False)
    return listening
