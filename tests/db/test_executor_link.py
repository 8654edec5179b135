"""Calls between two processes: answered once, in order, bounded, and safe from a peer that breaks the protocol."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import ormsgpack
import pytest

from portside.executor import link as links
from portside.executor.link import MAX_INTEGER_DIGITS, CallFailed, Link, LinkClosed, LinkLimits, ServedCall
from tests.conftest import eventually

PEER = """
import asyncio, os, socket, sys
from portside.executor.link import Link

async def count(upto, call):
    for number in range(upto):
        call.send(number)
        if number % 100 == 0:
            await call.drain()
    return "counted"

async def hold(_, call):
    try:
        await asyncio.Event().wait()
    finally:
        print("stopped", flush=True)

async def main():
    loop = asyncio.get_running_loop()
    link = Link({"echo": lambda body, call: body, "count": count, "hold": hold, "exit": lambda body, call: os._exit(3),
                 "back": lambda body, call: link.call("echo", body)}, pong=lambda: os.getpid())
    await loop.create_connection(lambda: link, sock=socket.socket(fileno=int(sys.argv[1])))
    link.hello({"pid": os.getpid()})
    await link.wait_closed()

asyncio.run(main())
"""


@dataclass
class Point:
    x: int
    y: bytes


async def attach(link: Link, end: socket.socket) -> Link:
    end.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=end)
    return link


@asynccontextmanager
async def open_links(handlers: dict[str, Any], **options: Any) -> AsyncIterator[tuple[Link, Link]]:
    """Connect two links of this process by a real socket; the second serves."""
    ends = socket.socketpair()
    pair = await attach(Link({}), ends[0]), await attach(Link(handlers, **options), ends[1])
    yield pair

    for link in pair:
        link.abort("the test is over")
        await link.wait_closed()


@asynccontextmanager
async def against_bytes(**options: Any) -> AsyncIterator[tuple[Link, socket.socket]]:
    """Connect a link to a bare socket, which plays a hostile peer."""
    ours, theirs = socket.socketpair()
    link = await attach(Link({"echo": lambda body, _call: body}, **options), ours)
    theirs.setblocking(False)
    yield link, theirs
    link.abort("the test is over")
    await link.wait_closed()
    theirs.close()


def frame(*parts: Any) -> bytes:
    payload = ormsgpack.packb(parts)
    return len(payload).to_bytes(4, "big") + payload


async def test_bodies_come_back_as_they_were_sent():
    bodies = [None, 1.5, b"\x00\xff", "ü", [1, [2]], {"a": {"b": [True]}}, 2**64 - 1, 2**200, -(2**70)]
    async with open_links({"echo": lambda body, _call: body}) as (caller, _):
        assert await asyncio.gather(*(caller.call("echo", body) for body in bodies)) == bodies
        assert await caller.call("echo", Point(1, b"y")) == {"x": 1, "y": b"y"}


async def test_frames_of_megabytes_arrive_whole():
    async with open_links({"echo": lambda body, _call: body}) as (caller, _):
        large = [os.urandom(5_000_000), os.urandom(3), os.urandom(1_000_000)]
        assert await asyncio.gather(*(caller.call("echo", each) for each in large)) == large


async def test_frames_are_found_in_any_pieces():
    async with against_bytes() as (link, peer):
        loop = asyncio.get_running_loop()
        sent = b"".join(frame(links.CALL, number, ["echo", "x" * number]) for number in range(1, 30))
        for byte in sent:
            await loop.sock_sendall(peer, bytes([byte]))

        received = b""
        expected = b"".join(frame(links.RESULT, number, "x" * number) for number in range(1, 30))
        while len(received) < len(expected):
            received += await loop.sock_recv(peer, 65536)

        assert received == expected
        assert not link.is_closed


async def test_items_arrive_in_order_before_the_result():
    async def count(upto: int, call: ServedCall) -> str:
        for number in range(upto):
            call.send(number)
            await call.drain()

        return "counted"

    items: list[int] = []
    async with open_links({"count": count}) as (caller, _):
        assert await caller.call("count", 5000, on_item=items.append) == "counted"
        assert items == list(range(5000))


async def test_errors_carry_code_message_and_fields():
    async def refuse(_body: Any, _call: ServedCall) -> None:
        raise CallFailed("not_found", "there is no such thing", {"name": "thing"})

    async with open_links({"refuse": refuse}) as (caller, _):
        with pytest.raises(CallFailed) as failed:
            await caller.call("refuse")

        assert (failed.value.code, failed.value.message) == ("not_found", "there is no such thing")
        assert failed.value.fields == {"name": "thing"}
        with pytest.raises(CallFailed, match="no method 'other'"):
            await caller.call("other")


async def test_unforeseen_errors_are_answered_and_logged(caplog):
    def broken(_body: Any, _call: ServedCall) -> None:
        raise KeyError("here")

    async def unencodable(_body: Any, _call: ServedCall) -> Any:
        return object()

    async with open_links({"broken": broken, "unencodable": unencodable}) as (caller, _):
        with pytest.raises(CallFailed, match="KeyError: 'here'"):
            await caller.call("broken")

        with pytest.raises(CallFailed) as failed:
            await caller.call("unencodable")

        assert failed.value.code == "internal"

    assert "KeyError: 'here'" in caplog.text


async def test_cancel_waits_until_the_work_has_stopped():
    began = asyncio.Event()
    may_stop = asyncio.Event()
    has_stopped = asyncio.Event()

    async def hold(_body: Any, _call: ServedCall) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await may_stop.wait()
            has_stopped.set()

    async with open_links({"hold": hold}) as (caller, _):
        call = asyncio.create_task(caller.call("hold"))
        await began.wait()
        call.cancel()
        assert not (await asyncio.wait([call], timeout=0.1))[0]
        may_stop.set()

        with pytest.raises(asyncio.CancelledError):
            await call

        assert has_stopped.is_set()


async def test_cancel_that_crosses_the_call_is_answered():
    async def hold(_body: Any, _call: ServedCall) -> None:
        await asyncio.Event().wait()

    async with open_links({"hold": hold, "echo": lambda body, _call: body}) as (caller, _):
        call = asyncio.create_task(caller.call("hold"))
        # Both frames leave in one write, so the work is cancelled before its first step.
        await asyncio.sleep(0)
        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call

        assert await caller.call("echo", 1) == 1


async def test_failing_item_handler_stops_the_call():
    stopped = asyncio.Event()

    async def stream(_body: Any, call: ServedCall) -> None:
        try:
            while True:
                call.send("item")
                await asyncio.sleep(0)
        finally:
            stopped.set()

    def refuse(_item: Any) -> None:
        raise LookupError("not wanted")

    async with open_links({"stream": stream}) as (caller, _):
        with pytest.raises(LookupError, match="not wanted"):
            await caller.call("stream", on_item=refuse)
        assert stopped.is_set()


async def test_frames_of_one_turn_are_one_write():
    async with open_links({"echo": lambda body, _call: body}) as (caller, _):
        transport: Any = caller._transport
        writes: list[int] = []
        caller._transport = Counting(transport, writes)  # type: ignore[assignment]
        await asyncio.gather(*(caller.call("echo", number) for number in range(50)))

        caller._transport = transport
        assert len(writes) == 1


class Counting:
    """A transport that notes its writes, and passes everything on."""

    def __init__(self, transport: Any, writes: list[int]) -> None:
        self._transport = transport
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def writelines(self, parts: list[bytes]) -> None:
        self._writes.append(len(parts))
        self._transport.writelines(parts)


HOSTILE = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "huge length": b"\xff\xff\xff\xff",
    "no msgpack": b"\x00\x00\x00\x01\xc1",
    "empty": b"\x00\x00\x00\x00",
    "array that promises too much": b"\x00\x00\x00\x05\xdd\xff\xff\xff\xff",
    "nested": (5000).to_bytes(4, "big") + b"\x91" * 5000,
    "not a list": frame(1) and len(ormsgpack.packb({})).to_bytes(4, "big") + ormsgpack.packb({}),
    "unknown kind": frame(99, 1, None),
    "negative kind": frame(-1, 1, None),
    "kind of another type": frame([], 1, None),
    "number of another type": frame(links.CALL, {}, None),
    "malformed call": frame(links.CALL, 1, "echo"),
    "result of no call": frame(links.RESULT, 7, None),
    "error of no call": frame(links.ERROR, 7, {"code": "a", "message": "b"}),
    "malformed error": frame(links.ERROR, 7, "bad"),
    "item of no call": frame(links.ITEM, 7, None),
    "pong without a ping": frame(links.PONG, 0, None),
    "unexpected hello": frame(links.HELLO, 0, None),
    "extension": frame(links.CALL, 1, ["echo", ormsgpack.Ext(9, b"x")]),
    "integer that takes long to read": frame(links.CALL, 1, ["echo", ormsgpack.Ext(1, b"9" * 100_000)]),
    "integer that is none": frame(links.CALL, 1, ["echo", ormsgpack.Ext(1, b"nine")]),
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE.keys())
async def test_peer_that_breaks_the_protocol_is_disconnected(sent):
    async with against_bytes() as (link, peer):
        waiting = asyncio.create_task(link.call("anything"))
        await asyncio.get_running_loop().sock_sendall(peer, sent)
        assert "broke the protocol" in await asyncio.wait_for(link.wait_closed(), 60)

        with pytest.raises(LinkClosed, match="broke the protocol"):
            await waiting

        with pytest.raises(LinkClosed):
            await link.call("anything")


async def test_cancel_of_an_unknown_call_is_ignored():
    async with against_bytes() as (_link, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, frame(links.CANCEL, 5, None) + frame(links.CALL, 6, ["echo", "x"]))
        assert await loop.sock_recv(peer, 1000) == frame(links.RESULT, 6, "x")


async def test_half_a_frame_and_the_end_fail_the_open_calls():
    async with against_bytes() as (link, peer):
        waiting = asyncio.create_task(link.call("anything"))
        await asyncio.get_running_loop().sock_sendall(peer, frame(links.RESULT, 1, "x" * 100)[:50])
        peer.close()

        with pytest.raises(LinkClosed):
            await waiting


async def test_peer_that_does_not_read_is_disconnected():
    async with against_bytes(limits=LinkLimits(queued_bytes=4_000_000)) as (link, _peer):
        while not link.is_closed:
            link.send_frame(links.PING, 0, b"x" * 500_000)
            await asyncio.sleep(0)

        assert await asyncio.wait_for(link.wait_closed(), 60) == "the peer does not read"


async def test_senders_that_drain_wait_for_a_slow_reader():
    sent = 0

    async def flood(_body: Any, call: ServedCall) -> None:
        nonlocal sent

        for _ in range(200):
            call.send(b"x" * 100_000)
            sent += 1
            await call.drain()

    ours, theirs = socket.socketpair()
    link = await attach(Link({"flood": flood}), ours)
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()

    await loop.sock_sendall(theirs, frame(links.CALL, 1, ["flood", None]))

    async def is_waiting() -> bool:
        return link._writable is not None

    await eventually(is_waiting)
    assert sent < 100

    received = b""
    ending = frame(links.RESULT, 1, None)
    while not received.endswith(ending):
        received += await loop.sock_recv(theirs, 1_000_000)

    assert sent == 200
    assert len(received) == 200 * len(frame(links.ITEM, 1, b"x" * 100_000)) + len(ending)
    link.abort("the test is over")
    await link.wait_closed()
    theirs.close()


async def test_too_many_served_calls_disconnect():
    async def hold(_body: Any, _call: ServedCall) -> None:
        await asyncio.Event().wait()

    async with open_links({"hold": hold}, limits=LinkLimits(served_calls=3)) as (caller, server):
        calls = [asyncio.create_task(caller.call("hold")) for _ in range(4)]
        assert "too many calls" in await asyncio.wait_for(server.wait_closed(), 60)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, LinkClosed) for result in results)


async def test_two_calls_of_one_number_disconnect():
    async def hold(_body: Any, _call: ServedCall) -> None:
        await asyncio.Event().wait()

    async with open_links({"hold": hold}) as (caller, server):
        caller.send_frame(links.CALL, 1, ["hold", None])
        caller.send_frame(links.CALL, 1, ["hold", None])
        assert "a malformed call" in await asyncio.wait_for(server.wait_closed(), 60)


async def test_too_large_frames_fail_their_call_alone():
    handlers = {"echo": lambda body, _call: body, "grow": lambda _body, _call: b"x" * 2000}
    ends = socket.socketpair()
    limits = LinkLimits(frame_bytes=1000)
    caller = await attach(Link({}, limits=limits), ends[0])
    server = await attach(Link(handlers, limits=limits), ends[1])

    with pytest.raises(CallFailed, match="more than 1000"):
        await caller.call("echo", b"x" * 2000)

    with pytest.raises(CallFailed, match="more than 1000"):
        await caller.call("grow")

    assert await caller.call("echo", b"x" * 500) == b"x" * 500

    for each in (caller, server):
        each.abort("the test is over")
        await each.wait_closed()


async def test_too_long_integers_fail_their_call_alone():
    async with open_links({"power": lambda body, _: 10**body, "echo": lambda body, _: body}) as (caller, _):
        assert await caller.call("power", MAX_INTEGER_DIGITS - 1) == 10 ** (MAX_INTEGER_DIGITS - 1)
        with pytest.raises(CallFailed):
            await caller.call("power", MAX_INTEGER_DIGITS)

        assert await caller.call("echo", "still here") == "still here"


async def test_close_sends_what_is_queued():
    async with open_links({}) as (caller, server):
        received: list[Any] = []
        server._on_hello = received.append
        caller.hello({"last": "words"})
        caller.close()
        await server.wait_closed()
        assert received == [{"last": "words"}]


@asynccontextmanager
async def peer_process() -> AsyncIterator[tuple[Link, asyncio.subprocess.Process, dict[str, Any]]]:
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, str(theirs.fileno()), pass_fds=[theirs.fileno()], stdout=asyncio.subprocess.PIPE
    )

    theirs.close()
    hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    link = await attach(Link({"echo": lambda body, _call: body}, on_hello=hello.set_result), ours)
    try:
        yield link, process, await asyncio.wait_for(hello, 60)
    finally:
        link.abort("the test is over")
        await link.wait_closed()
        with contextlib.suppress(ProcessLookupError):
            process.kill()

        await process.communicate()


async def test_processes_call_each_other():
    async with peer_process() as (link, process, hello):
        assert hello["pid"] == process.pid == await link.ping()
        assert await link.call("back", ["there", b"and", "back"]) == ["there", b"and", "back"]
        items: list[int] = []
        assert await link.call("count", 10_000, on_item=items.append) == "counted"
        assert items == list(range(10_000))


async def test_cancelled_work_of_a_process_has_stopped():
    async with peer_process() as (link, process, _):
        call = asyncio.create_task(link.call("hold"))
        assert await link.call("echo", 1) == 1
        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call

        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"stopped\n"


@pytest.mark.parametrize("end", ["exit", "kill"])
async def test_end_of_the_process_fails_its_open_calls(end):
    async with peer_process() as (link, process, _):
        held = asyncio.create_task(link.call("hold"))

        if end == "kill":
            await link.call("echo", 1)
            process.send_signal(signal.SIGKILL)
        else:
            with pytest.raises(LinkClosed):
                await link.call("exit")

        with pytest.raises(LinkClosed):
            await held

        assert await asyncio.wait_for(process.wait(), 60) == (3 if end == "exit" else -signal.SIGKILL)
