"""The TCP relay in front of containers, on uvloop (the listener's loop) and on asyncio's own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from portside.dataplane.compute import forwarding
from portside.dataplane.compute.forwarding import TcpRelay, to_port
from portside.kernel.http.server import listen
from tests.servers import free_port
from tests.tcp_server import serve_connections

RUNS: list[Callable[[Any], Any]] = [asyncio.run, uvloop.run]
either_loop = pytest.mark.parametrize("run", RUNS, ids=["asyncio", "uvloop"])


@asynccontextmanager
async def echo(name: bytes = b"") -> AsyncIterator[int]:
    """A server that echoes its input after its name."""

    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            writer.write(name)
            while data := await reader.read(100_000):
                writer.write(data)
                await writer.drain()

    async with serve_connections(serve) as port:
        yield port
        await asyncio.wait_for(asyncio.gather(*(task for task in tasks if task)), 60)


@asynccontextmanager
async def relay(*ports: int) -> AsyncIterator[tuple[TcpRelay, int]]:
    listening = listen("127.0.0.1", 0)
    made = TcpRelay(listening)
    for port in ports:
        await made.add(str(port), to_port(port))

    yield made, listening.getsockname()[1]
    made.close()

    while made.ends:  # noqa: ASYNC110 - a relay has no event for it
        await asyncio.sleep(0)

    listening.close()


async def say(port: int, data: bytes) -> bytes:
    """Send everything, close the sending side, and receive everything."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    response = asyncio.create_task(reader.read())
    writer.write(data)
    writer.write_eof()

    answer = await asyncio.wait_for(response, 60)
    writer.close()
    await writer.wait_closed()

    return answer


def of(test: Callable[[], Awaitable[None]], run: Callable[[Any], Any]) -> None:
    run(test())


@either_loop
def test_relay_forwards_all_bytes_both_ways(run: Callable[[Any], Any]):
    async def large() -> None:
        data = bytes(range(256)) * 20_000
        async with echo() as server, relay(server) as (_, port):
            assert await asyncio.gather(*(say(port, data) for _ in range(3))) == [data] * 3

    of(large, run)


@either_loop
def test_relay_rotates_targets_and_skips_removed_ones(run: Callable[[Any], Any]):
    async def turns() -> None:
        async with echo(b"a:") as first, echo(b"b:") as second, relay(first, second) as (made, port):
            assert sorted([await say(port, b"x") for _ in range(4)]) == [b"a:x", b"a:x", b"b:x", b"b:x"]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            begun = await reader.readexactly(2)
            made.remove(str(first))
            assert {await say(port, b"x") for _ in range(3)} == {b"b:x"}
            made.remove(str(second))
            writer.write(b"still")

            assert await asyncio.wait_for(reader.readexactly(5), 60) == b"still"
            assert begun in {b"a:", b"b:"}
            writer.close()
            await writer.wait_closed()

    of(turns, run)


@either_loop
def test_connections_wait_for_first_target(run: Callable[[Any], Any]):
    async def waits() -> None:
        async with echo() as server, relay() as (made, port):
            waiting = asyncio.create_task(say(port, b"early"))
            await asyncio.sleep(0)
            await made.add("late", to_port(server))
            assert await waiting == b"early"

    of(waits, run)


@either_loop
def test_relay_skips_dead_target(run: Callable[[Any], Any]):
    async def passed_over() -> None:
        async with echo() as server, relay(free_port(), server) as (_, port):
            assert [await say(port, b"x") for _ in range(3)] == [b"x"] * 3

    of(passed_over, run)


@either_loop
def test_nothing_accepts_after_targets_that_were_added_at_once_were_removed(run: Callable[[Any], Any]):
    """The containers of a listener that has just started serve at the same moment."""

    async def replaced() -> None:
        async with echo() as server, relay() as (made, port):
            await asyncio.gather(*(made.add(name, to_port(server)) for name in ("a", "b")))
            for name in ("a", "b"):
                made.remove(name)

            following = TcpRelay(made._listening)
            await following.add("c", to_port(server))
            assert [await say(port, b"x") for _ in range(6)] == [b"x"] * 6
            following.close()

    of(replaced, run)


class Transport:
    """A connection that was accepted."""

    def __init__(self) -> None:
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True


async def test_connections_leave_descriptors_for_starts_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "get_connection_limit", lambda: 4)
    made = TcpRelay(None)  # type: ignore[arg-type]
    ends = [forwarding._AcceptedEnd(made) for _ in range(3)]
    connections = [Transport() for _ in ends]

    for end, connection in zip(ends, connections, strict=True):
        end.connection_made(connection)  # type: ignore[arg-type]

    assert [connection.is_cut for connection in connections] == [False, False, True]
    for end in ends:
        end.connection_lost(None)
