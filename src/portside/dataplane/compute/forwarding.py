"""TCP forwarding to and from containers.

`TcpRelay` forwards connections from a deployment's socket to its containers, without looking at the bytes. A relay
without a target does not accept: connections wait in the socket's backlog, as they do while a server process starts.
The relay stops reading from one side while the other is slow, so it buffers little.

`PortForwards` lets containers reach what listens only on this machine, such as Postgres on a unix socket or the
platform on loopback. A container has its own network, where neither is reachable. For each target the listener forwards
from a port of the address under which containers know this machine. The ports are saved, because a container that
outlives the listener keeps using them. A client of such a port still needs the password or key of the service behind.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from portside.dataplane.failures import DeployFailed
from portside.kernel.files import get_connection_limit, write_private
from portside.kernel.local_addresses import is_loopback
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
_CONNECT_FOR_S = 20.0
_CONNECT_AGAIN_S = 0.1
_CONNECT_TIMEOUT_S = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443, "postgres": 5432, "postgresql": 5432}
# Linux only: bind to the gateway's address, which may not exist before the first container runs.
_IP_FREEBIND = 15
Connect = Callable[[Callable[[], asyncio.Protocol]], Coroutine[Any, Any, None]]


class TcpRelay:
    """Accepts on a listening socket, which the caller keeps, and forwards to its targets in turn."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._targets: dict[str, Connect] = {}
        self._next = 0
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self.ends: set[RelayEnd] = set()

    async def add(self, name: str, connect: Connect) -> None:
        """Forward to one more target from now on."""
        self._targets[name] = connect

        # Several targets may be added at once. A second server would accept connections after all targets were removed.
        async with self._opening:
            if self._server is None and self._targets:
                self._server = await self._accept()

    async def _accept(self) -> asyncio.Server | None:
        """Begin to accept; None if all targets were removed meanwhile."""
        # A duplicate, because a server that is closed closes its socket too.
        copy = self._listening.dup()
        server = await asyncio.get_running_loop().create_server(lambda: _AcceptedEnd(self), sock=copy)
        if self._targets:
            return server

        server.close()
        return None

    def remove(self, name: str) -> None:
        """Forward no new connection to a target; its open connections continue."""
        self._targets.pop(name, None)
        if not self._targets and self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Stop forwarding, and cut all open connections."""
        for name in list(self._targets):
            self.remove(name)

        for end in list(self.ends):
            end.abort()

    def next_target(self) -> Connect | None:
        """Return the next target in turn, or None without any."""
        targets = list(self._targets.values())
        self._next += 1
        return targets[self._next % len(targets)] if targets else None


class RelayEnd(asyncio.Protocol):
    """One end of a forwarded connection; received bytes are written to the other end."""

    def __init__(self, relay: TcpRelay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self.other: RelayEnd | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._relay.ends.add(self)

    def data_received(self, data: bytes) -> None:
        if (other := self._other_transport()) is not None:
            other.write(data)

    def eof_received(self) -> bool:
        if (other := self._other_transport()) is not None and other.can_write_eof():
            other.write_eof()
        return True

    def pause_writing(self) -> None:
        if (other := self._other_transport()) is not None:
            other.pause_reading()

    def resume_writing(self) -> None:
        if (other := self._other_transport()) is not None:
            other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        self._relay.ends.discard(self)
        if (other := self._other_transport()) is not None:
            other.close()

        self.other = None

    def abort(self) -> None:
        """Cut this end; the other one closes too."""
        if self.transport is not None:
            self.transport.abort()

    def _other_transport(self) -> asyncio.Transport | None:
        other = self.other.transport if self.other is not None else None
        return None if other is None or other.is_closing() else other


class _AcceptedEnd(RelayEnd):
    """The accepted end. It keeps one piece of data until the connection to the target is open."""

    # Of all relays in this process, because they share its file descriptors.
    _open: ClassVar["set[_AcceptedEnd]"] = set()

    def __init__(self, relay: TcpRelay) -> None:
        super().__init__(relay)
        self._connecting: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._got_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._open.add(self)

        # Each connection takes two descriptors. Above half of them it is cut, so that servers can still be started.
        if len(self._open) > get_connection_limit() // 2:
            self.abort()
            return

        self._connecting = asyncio.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return

        self._early.append(data)
        # Only after the first read: uvloop never resumes a transport that was paused before it began to read.
        if self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        if self.other is not None:
            return super().eof_received()

        self._got_eof = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()

        super().connection_lost(exc)

    async def _connect(self) -> None:
        """Connect to a target, with retries: a target that just died is replaced soon."""
        deadline = time.monotonic() + _CONNECT_FOR_S
        while (connected := await self._try_next_target()) is None:
            if time.monotonic() > deadline:
                self.abort()
                return

            await asyncio.sleep(_CONNECT_AGAIN_S)

        if self.transport is None or self.transport.is_closing():
            connected.abort()
            return

        self.other = connected

        for data in self._early:
            super().data_received(data)

        self._early.clear()
        if self._got_eof:
            super().eof_received()

        self.transport.resume_reading()

    async def _try_next_target(self) -> RelayEnd | None:
        connect = self._relay.next_target()
        end = RelayEnd(self._relay)
        end.other = self

        if connect is None:
            return None

        try:
            # The published port of a container that just died may accept a connection and never answer.
            async with timeout(_CONNECT_TIMEOUT_S):
                await connect(lambda: end)
        except OSError:
            return None

        return end


def to_port(port: int) -> Connect:
    """Connect to a port of this machine."""
    return to_address("127.0.0.1", port)


def to_address(host: str, port: int) -> Connect:
    """Connect to a host and port."""

    async def connect(protocol: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().create_connection(protocol, host, port)

    return connect


def to_unix_socket(path: str) -> Connect:
    """Connect to a unix socket."""

    async def connect(protocol: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().create_unix_connection(protocol, path)

    return connect


class PortForwards:
    """The ports that one listener forwards for its containers."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ports = _read_ports(file)
        self._open: dict[str, tuple[socket.socket, TcpRelay]] = {}
        self._opening = asyncio.Lock()

    async def reachable_url(self, url: str, host: str, gateway: str) -> str:
        """Return a URL under which containers reach the service at `url`. Raises DeployFailed.

        `host` is the name of this machine in containers, `gateway` the address where it listens for them.
        """
        parts = urlsplit(url)
        target = _local_target(url)
        if target is None:
            return url

        port = await self._port(target, gateway)
        query = [(key, value) for key, value in parse_qsl(parts.query) if key not in {"host", "port"}]
        userinfo, at, _address = parts.netloc.rpartition("@")
        name = f"[{host}]" if ":" in host else host
        netloc = f"{userinfo}{at}{name}:{port}"

        return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, safe="/", quote_via=quote), ""))

    def close(self) -> None:
        """Stop forwarding."""
        for listening, relay in self._open.values():
            relay.close()
            listening.close()

        self._open.clear()

    async def _port(self, target: str, gateway: str) -> int:
        async with self._opening:
            if target not in self._open:
                listening = _listen_at(gateway, self._ports.get(target, 0))
                relay = TcpRelay(listening)
                host, _, port = target.rpartition(":")
                await relay.add(target, to_address(host, int(port)) if host else to_unix_socket(port))

                self._open[target] = listening, relay
                self._ports[target] = listening.getsockname()[1]
                write_private(self._file, msgspec.json.encode(self._ports).decode())

            return self._ports[target]


def _read_ports(file: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError:
        log.exception("the file of forwarded ports is damaged; containers are started again", path=str(file))
        return {}


def _local_target(url: str) -> str | None:
    """Return `host:port` or `:path` of a service that only this machine reaches; None for one in the network."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    address = parts.netloc.rpartition("@")[2]

    # A Postgres URL with several hosts is left as it is.
    if parts.scheme not in _DEFAULT_PORTS or "," in address:
        return None

    host = query.get("host") or parts.hostname or ("localhost" if parts.scheme.startswith("postgres") else "")
    port = int(query.get("port") or parts.port or _DEFAULT_PORTS[parts.scheme])
    if host.startswith("/"):
        return f":{host}/.s.PGSQL.{port}"

    return f"{host}:{port}" if is_loopback(host) else None


def _listen_at(gateway: str, port: int) -> socket.socket:
    """Listen on the saved port, or on any port when that is taken. Raises DeployFailed."""
    for candidate in dict.fromkeys((port, 0)):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        if sys.platform == "linux":
            listening.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)

        try:
            listening.bind((gateway, candidate))
        except OSError as exc:
            listening.close()
            reason = exc
            continue

        listening.listen(512)
        listening.setblocking(False)
        return listening

    raise DeployFailed(
        f"this machine cannot listen for its containers on {gateway}: {reason.strerror}; set CONTAINER_HOST_ADDRESS or "
        "CONTAINER_NETWORK"
    )
