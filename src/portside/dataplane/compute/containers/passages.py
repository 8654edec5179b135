"""Ways from containers to what only this machine reaches: Postgres on a unix socket, the platform on loopback.

A container has a network of its own, in which neither is reachable. For each such target the listener forwards from a
port of the address that containers know this machine by. Ports are remembered, because a container that outlives the
listener goes on using them. Whoever reaches a port still needs the password or key of what is behind it.
"""

import asyncio
import ipaddress
import socket
import sys
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from portside.dataplane.compute.containers.relay import Relay, to_address, to_unix_socket
from portside.dataplane.failures import DeployFailed
from portside.kernel.files import write_private

_PORTS = {"http": 80, "https": 443, "postgres": 5432, "postgresql": 5432}
# The gateway's address may not exist before the first container runs. Linux alone allows to bind it nevertheless.
_IP_FREEBIND = 15


class Passages:
    """The forwarded ports of one listener."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ports: dict[str, int] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
        self._open: dict[str, tuple[socket.socket, Relay]] = {}
        self._opening = asyncio.Lock()

    async def through(self, url: str, host: str, gateway: str) -> str:
        """Return the URL under which containers reach what `url` leads to. Raises DeployFailed.

        `host` is how containers call this machine, `gateway` the address where it listens for them.
        """
        parts = urlsplit(url)
        target = _target(url)
        if target is None:
            return url
        port = await self._port(target, gateway)
        query = [(key, value) for key, value in parse_qsl(parts.query) if key not in {"host", "port"}]
        who, at, _place = parts.netloc.rpartition("@")
        shown = f"[{host}]" if ":" in host else host
        netloc = f"{who}{at}{shown}:{port}"
        return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, safe="/", quote_via=quote), ""))

    def close(self) -> None:
        """Forward nothing any more."""
        for listening, relay in self._open.values():
            relay.close()
            listening.close()
        self._open.clear()

    async def _port(self, target: str, gateway: str) -> int:
        async with self._opening:
            if target not in self._open:
                listening = _listen(gateway, self._ports.get(target, 0))
                relay = Relay(listening)
                host, _, port = target.rpartition(":")
                await relay.add(target, to_address(host, int(port)) if host else to_unix_socket(port))
                self._open[target] = listening, relay
                self._ports[target] = listening.getsockname()[1]
                write_private(self._file, msgspec.json.encode(self._ports).decode())
            return self._ports[target]


def _target(url: str) -> str | None:
    """Return `host:port` or `:path` of what only this machine reaches, or None for what a container reaches itself."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    place = parts.netloc.rpartition("@")[2]
    if parts.scheme not in _PORTS or "," in place:
        return None
    host = query.get("host") or parts.hostname or ("localhost" if parts.scheme.startswith("postgres") else "")
    port = int(query.get("port") or parts.port or _PORTS[parts.scheme])
    if host.startswith("/"):
        return f":{host}/.s.PGSQL.{port}"
    return f"{host}:{port}" if _is_loopback(host) else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(gateway: str, port: int) -> socket.socket:
    """Listen on the port it had before, or on any where that is taken. Raises DeployFailed."""
    for wanted in dict.fromkeys((port, 0)):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            listening.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        try:
            listening.bind((gateway, wanted))
        except OSError as exc:
            listening.close()
            reason = exc
            continue
        listening.listen(512)
        listening.setblocking(False)
        return listening
    raise DeployFailed(f"this machine cannot listen for its containers on {gateway}: {reason.strerror}")
