"""Listening sockets: one stable one per deployment, one private one per replica.

The stable socket stays open in the listener, which never accepts on it: while no replica serves, connections wait in
its backlog. A listener that died leaves it to its replicas: its successor asks them for it over a Unix socket of the
deployment's folder, and so no connection is lost. Where none answers, SO_REUSEPORT lets the port be bound beside a
replica that nobody knows any more.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir
from portside.kernel.http.server import listen
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - only compared with
_PROBE_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 10.0
_MAX_ANSWER = 1_000_000
_HEIR = "heir.sock"


@dataclass(frozen=True)
class Stable:
    """A deployment's own socket, and the one at which replicas give it to a later listener, where that is possible."""

    public: socket.socket
    heir: socket.socket | None

    @property
    def port(self) -> int:
        """The port of the deployment."""
        return int(self.public.getsockname()[1])

    def close(self) -> None:
        """Let go of both."""
        self.public.close()
        if self.heir is not None:
            self.heir.close()


def open_stable(host: str, port: int | None, folder: Path) -> Stable:
    """Take over the socket of a deployment, or listen on the port it had, or on a new one. Raises UserMistake."""
    inherited = _inherit(folder)
    if inherited is not None:
        return inherited
    return Stable(_listen(host, port), _open_heir(folder))


def _listen(host: str, port: int | None) -> socket.socket:
    try:
        return listen(host, port or 0, reuse_port=True)
    except UserMistake as exc:
        if not port:
            raise
        log.warning("a deployment moves to another port", reason=str(exc))
        return listen(host, 0, reuse_port=True)


def _inherit(folder: Path) -> Stable | None:
    """Ask a replica that outlived its listener for the sockets it was given."""
    with contextlib.suppress(OSError, ValueError), _address(folder) as address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_ASK_TIMEOUT_S)
            asking.connect(address)
            _word, descriptors, _flags, _sender = socket.recv_fds(asking, 1, 2)
        public, heir = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for inherited in (public, heir):
            inherited.setblocking(False)
            inherited.set_inheritable(False)
        return Stable(public, heir)
    return None


def _open_heir(folder: Path) -> socket.socket | None:
    make_private_dir(folder)
    (folder / _HEIR).unlink(missing_ok=True)
    heir = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            heir.bind(address)
        heir.listen()
        heir.setblocking(False)
    except OSError as exc:
        heir.close()
        log.warning("replicas cannot be taken over by a later listener", reason=str(exc))
        return None
    return heir


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Give the socket's path. Paths of sockets are short, so a long one is reached by the folder's descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = Path(f"/proc/self/fd/{descriptor}")
        yield str((short if short.exists() else folder) / _HEIR)
    finally:
        os.close(descriptor)


def open_private() -> socket.socket:
    """Listen on any free port of this machine."""
    return listen("127.0.0.1", 0)


def url_of(host: str, port: int) -> str:
    """Return the address under which others reach a socket."""
    shown = socket.getfqdn() if host in _WILDCARDS else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


async def get(port: int, path: str) -> tuple[int, bytes] | None:
    """GET a path on this machine: status and body. None when there is no answer within five seconds."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                answer = b""
                while len(answer) < _MAX_ANSWER and (chunk := await reader.read(_MAX_ANSWER)):
                    answer += chunk
                head, _, body = answer.partition(b"\r\n\r\n")
                return int(head.split()[1]), body
            finally:
                writer.close()
    return None


async def probe(port: int, path: str) -> int | None:
    """GET a path on this machine and return the status; None when nobody answers within five seconds."""
    answer = await get(port, path)
    return None if answer is None else answer[0]


async def is_refused(port: int) -> bool:
    """Whether nobody listens on a port of this machine any more."""
    try:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False
