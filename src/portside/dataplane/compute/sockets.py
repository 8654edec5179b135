"""Listening sockets, a stable one for each deployment and a private one for each replica, and requests to replicas.

The stable socket stays open in the listener, which never accepts on it: while no replica serves, connections wait in
its backlog. When a listener dies, its replicas still hold the socket. The next listener asks them for it over a Unix
socket in the deployment's folder, so that no connection is lost. If none answers, SO_REUSEPORT lets the new listener
bind the port beside a replica that it does not know. The kernel then gives a part of the connections to each of the two
sockets, so that replica must be replaced by one that accepts on the new socket.
"""

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir, short_path
from portside.kernel.http.server import listen
from portside.kernel.local_addresses import is_wildcard
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
_PROBE_TIMEOUT_S = 5.0
# A replica that stands still for less than this, on a busy machine for example, is not replaced.
_INHERIT_TIMEOUT_S = 60.0
_MAX_RESPONSE = 1_000_000
# Replicas of older listeners listen under this name, so it must not change.
_INHERITANCE_FILE = "heir.sock"


@dataclass(frozen=True)
class StableSocket:
    """A deployment's public socket, and the Unix socket at which its replicas give it to a later listener.

    `inheritance` is None when the Unix socket could not be opened. `is_inherited` says whether a replica gave both.
    """

    public: socket.socket
    inheritance: socket.socket | None
    is_inherited: bool = False

    @property
    def port(self) -> int:
        """The port of the deployment."""
        return int(self.public.getsockname()[1])

    @property
    def inode(self) -> int:
        """The number of the public socket, which all processes that have it see."""
        return os.fstat(self.public.fileno()).st_ino

    def close(self) -> None:
        """Close both sockets."""
        self.public.close()
        if self.inheritance is not None:
            self.inheritance.close()


async def open_stable_socket(host: str, port: int | None, folder: Path) -> StableSocket:
    """Inherit the deployment's socket, else listen on its former port, else on a new one. Raises UserMistake."""
    inherited = await _inherit(folder)
    if inherited is not None:
        return inherited

    return StableSocket(_listen(host, port), _open_inheritance(folder))


def _listen(host: str, port: int | None) -> socket.socket:
    try:
        return listen(host, port or 0, reuse_port=True)
    except UserMistake as exc:
        if not port:
            raise

        log.warning("a deployment moves to another port", reason=str(exc))
        return listen(host, 0, reuse_port=True)


async def _inherit(folder: Path) -> StableSocket | None:
    """Ask a replica that outlived its listener for the sockets that it inherited from it."""
    with contextlib.suppress(OSError, ValueError), short_path(folder, _INHERITANCE_FILE) as address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            client.connect(address)

            try:
                async with timeout(_INHERIT_TIMEOUT_S):
                    await _wait_until_readable(client)
            except TimeoutError:
                log.warning("a server does not give its deployment's socket away, and is replaced", folder=str(folder))
                return None

            _data, descriptors, _flags, _sender = socket.recv_fds(client, 1, 2)

        public, inheritance = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for inherited in (public, inheritance):
            inherited.setblocking(False)
            inherited.set_inheritable(False)

        return StableSocket(public, inheritance, is_inherited=True)

    return None


async def _wait_until_readable(client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(client.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(client.fileno())


def _open_inheritance(folder: Path) -> socket.socket | None:
    make_private_dir(folder)
    (folder / _INHERITANCE_FILE).unlink(missing_ok=True)

    inheritance = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(folder, _INHERITANCE_FILE) as address:
            inheritance.bind(address)

        inheritance.listen()
        inheritance.setblocking(False)
    except OSError as exc:
        inheritance.close()
        log.warning("a later listener will not be able to inherit a deployment's socket", reason=str(exc))
        return None

    return inheritance


def open_private() -> socket.socket:
    """Listen on any free port of this machine's loopback interface."""
    return listen("127.0.0.1", 0)


def to_url(host: str, port: int) -> str:
    """Return the URL under which others reach a socket."""
    name = socket.getfqdn() if not host or is_wildcard(host) else host
    if ":" in name:
        name = f"[{name}]"

    return f"http://{name}:{port}"


async def get(port: int, path: str) -> tuple[int, bytes] | None:
    """GET a path on this machine and return status and body, or None without a response within five seconds."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                response = b""
                while len(response) < _MAX_RESPONSE and (chunk := await reader.read(_MAX_RESPONSE)):
                    response += chunk

                head, _, body = response.partition(b"\r\n\r\n")
                return int(head.split()[1]), body
            finally:
                writer.close()

    return None


async def probe(port: int, path: str) -> int | None:
    """GET a path on this machine and return the status, or None without a response within five seconds."""
    response = await get(port, path)
    return None if response is None else response[0]


async def is_refused(port: int) -> bool:
    """Whether a port of this machine refuses connections."""
    try:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True

    writer.close()
    return False
