"""Forwards TCP connections, byte by byte and without looking at them.

A relay that has nowhere to forward to does not accept: connections wait in the socket's backlog, as they do while a
server that is a process starts. What is slow on one side is not read from on the other, so a relay holds little.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

_DIAL_FOR_S = 20.0
_DIAL_AGAIN_S = 0.1
_DIAL_ONCE_S = 1.0

Dial = Callable[[Callable[[], asyncio.Protocol]], Coroutine[Any, Any, None]]


class Relay:
    """Accepts on one listening socket, which stays its owner's, and forwards to its targets in turn."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._targets: dict[str, Dial] = {}
        self._turn = 0
        self._server: asyncio.Server | None = None
        self.ends: set[End] = set()

    async def add(self, name: str, dial: Dial) -> None:
        """Forward to one more target from now on."""
        self._targets[name] = dial
        if self._server is None:
            # A copy, because a server that is closed closes its socket too.
            copy = self._listening.dup()
            self._server = await asyncio.get_running_loop().create_server(lambda: _Caller(self), sock=copy)

    def remove(self, name: str) -> None:
        """Forward no new connection to a target; those it has go on."""
        self._targets.pop(name, None)
        if not self._targets and self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Forward nothing any more, and cut what is open."""
        for name in list(self._targets):
            self.remove(name)
        for end in list(self.ends):
            end.abort()

    def next(self) -> Dial | None:
        """Return the target whose turn it is, or None where there is none now."""
        targets = list(self._targets.values())
        self._turn += 1
        return targets[self._turn % len(targets)] if targets else None


class End(asyncio.Protocol):
    """One end of a forwarded connection; what it receives is written to the other."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self.other: End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._relay.ends.add(self)

    def data_received(self, data: bytes) -> None:
        if (to := self._writable()) is not None:
            to.write(data)

    def eof_received(self) -> bool:
        if (to := self._writable()) is not None and to.can_write_eof():
            to.write_eof()
        return True

    def pause_writing(self) -> None:
        if (to := self._writable()) is not None:
            to.pause_reading()

    def resume_writing(self) -> None:
        if (to := self._writable()) is not None:
            to.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        self._relay.ends.discard(self)
        if (to := self._writable()) is not None:
            to.close()
        self.other = None

    def abort(self) -> None:
        """Cut this end; the other one follows."""
        if self.transport is not None:
            self.transport.abort()

    def _writable(self) -> asyncio.Transport | None:
        to = self.other.transport if self.other is not None else None
        return None if to is None or to.is_closing() else to


class _Caller(End):
    """The end that was accepted; what it says before the other one is there is kept, one piece of it."""

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self._dialling: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._said_all = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialling = asyncio.create_task(self._dial())

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._early.append(data)
        # Not before something was read: uvloop does not take up reading that was paused before it began.
        if self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        if self.other is not None:
            return super().eof_received()
        self._said_all = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        super().connection_lost(exc)

    async def _dial(self) -> None:
        """Reach a target; one that just died is replaced soon, so this insists for a while."""
        deadline = time.monotonic() + _DIAL_FOR_S
        while (reached := await self._reach()) is None:
            if time.monotonic() > deadline:
                self.abort()
                return
            await asyncio.sleep(_DIAL_AGAIN_S)
        if self.transport is None or self.transport.is_closing():
            reached.abort()
            return
        self.other = reached
        for data in self._early:
            super().data_received(data)
        self._early.clear()
        if self._said_all:
            super().eof_received()
        self.transport.resume_reading()

    async def _reach(self) -> End | None:
        dial, answered = self._relay.next(), End(self._relay)
        answered.other = self
        if dial is None:
            return None
        try:
            # The port of a container that just died may swallow what is sent to it.
            async with asyncio.timeout(_DIAL_ONCE_S):
                await dial(lambda: answered)
        except OSError:
            return None
        return answered


def to_port(port: int) -> Dial:
    """Dial a port of this machine."""
    return to_address("127.0.0.1", port)


def to_address(host: str, port: int) -> Dial:
    """Dial a host and port."""

    async def dial(protocol: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().create_connection(protocol, host, port)

    return dial


def to_unix_socket(path: str) -> Dial:
    """Dial a unix socket."""

    async def dial(protocol: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().create_unix_connection(protocol, path)

    return dial
