"""Listening sockets on which several processes accept, and how they share the connections evenly.

`ConnectionShare` has the number of connections of each process, and `SharedListener` accepts by it. Closing connections
when a process has too many is up to its server (`server.py`).
"""

import asyncio
import mmap
import socket
from collections.abc import Callable

from portside.kernel.tasks import TaskSet
from portside.kernel.transient_errors import log_failure

NOT_ACCEPTING = 2**31 - 1
# How long a process that has more connections than another lets that one accept first.
OTHERS_FIRST_S = 0.002
ACCEPT_AGAIN_AFTER_S = 1.0


class ConnectionShare:
    """How many connections each of several processes has open, in memory that they share: make it before the fork."""

    def __init__(self, count: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, count * 4)).cast("i")
        for number in range(count):
            self.leave(number)

    def publish(self, number: int, connections: int) -> None:
        """Say how many connections a process has open."""
        self._counts[number] = connections

    def leave(self, number: int) -> None:
        """Say that a process accepts no connections, so that no other waits for it."""
        self._counts[number] = NOT_ACCEPTING

    def is_least(self, number: int) -> bool:
        """Whether no other process that accepts has fewer connections than this one."""
        return self._counts[number] <= min(self._counts)

    def has_too_many(self, number: int) -> bool:
        """Whether another process that accepts has at least two connections less than this one."""
        return self._counts[number] > min(self._counts) + 1


class SharedListener:
    """Accepts on a socket on which other processes accept as well, and leaves them their share of the connections.

    A connection wakes all of them. The kernel gives it to whichever asks first, and a process that is awake asks again
    at once: by that alone, most of the connections that are opened together would be those of one process, for as long
    as they are kept. So a process accepts one at a time, and one that has more than another lets that one go first.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        is_turn: Callable[[], bool],
        on_accepted: Callable[[], None],
    ) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._is_turn = is_turn
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None
        self._opening = TaskSet()

        self._loop.add_reader(listening, self._on_readable)

    def close(self) -> None:
        """Accept no more. The connections in the socket's backlog are left to the other processes."""
        if self._listening.fileno() < 0:
            return

        self._loop.remove_reader(self._listening)
        if self._waiting is not None:
            self._waiting.cancel()

        self._listening.close()

    @property
    def opening(self) -> int:
        """How many connections were accepted and have no protocol yet."""
        return len(self._opening)

    async def wait_opened(self) -> None:
        """Wait until each connection that was accepted has its protocol."""
        await asyncio.gather(*self._opening)

    def _on_readable(self) -> None:
        if self._is_turn():
            self._accept()
        else:
            self._pause(OTHERS_FIRST_S)

    def _pause(self, for_s: float) -> None:
        self._loop.remove_reader(self._listening)
        self._waiting = self._loop.call_later(for_s, self._go_on)

    def _go_on(self) -> None:
        # The others had their time; maybe they are too busy.
        self._loop.add_reader(self._listening, self._on_readable)
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _address = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another process was faster, or the client has left.
            return
        except OSError as exc:
            log_failure("a connection could not be accepted", exc)
            self._pause(ACCEPT_AGAIN_AFTER_S)
            return

        connection.setblocking(False)
        self._opening.spawn(self._open(connection))
        self._on_accepted()

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()
