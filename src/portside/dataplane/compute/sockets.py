"""Listening sockets: one stable one per deployment, one private one per replica.

The stable socket stays open in the listener, which never accepts on it: while no replica serves, connections wait in
its backlog. SO_REUSEPORT lets a restarted listener bind the port while a replica it does not know yet still serves.
"""

import asyncio
import contextlib
import socket

from portside.kernel.errors import UserMistake
from portside.kernel.http.server import listen
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - only compared with
_PROBE_TIMEOUT_S = 5.0


def open_stable(host: str, port: int | None) -> socket.socket:
    """Listen on the port a deployment had before, or on a new one where that is taken. Raises UserMistake."""
    try:
        return listen(host, port or 0, reuse_port=True)
    except UserMistake as exc:
        if not port:
            raise
        log.warning("a deployment moves to another port", reason=str(exc))
        return listen(host, 0, reuse_port=True)


def open_private() -> socket.socket:
    """Listen on any free port of this machine."""
    return listen("127.0.0.1", 0)


def url_of(host: str, port: int) -> str:
    """Return the address under which others reach a socket."""
    shown = socket.getfqdn() if host in _WILDCARDS else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


async def probe(port: int, path: str) -> int | None:
    """GET a path on this machine and return the status; None when nobody answers within five seconds."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                return int((await reader.readline()).split()[1])
            finally:
                writer.close()
    return None


async def is_refused(port: int) -> bool:
    """Whether nobody listens on a port of this machine any more."""
    try:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False
