"""The cost of a call between two processes over the link, and of an event in a batch.

    python -m bench.link

Prints microseconds on the wall for one call after another, and of CPU of both processes for many at once.
"""

import asyncio
import os
import resource
import socket
import sys
import time
from typing import Any

from portside.executor.link import Link, ServedCall

CALLS = 5_000
BATCHES = 500
BATCH = 40
BODY = {"event": "values", "data": b"x" * 1_650}


async def stream(count: int, call: ServedCall) -> list[float]:
    """Send batches of events; answer with the CPU of this process."""
    for _ in range(count):
        call.send([("values", BODY["data"])] * BATCH)
        await call.drain()
        await asyncio.sleep(0)

    return cpu()


def cpu() -> float:
    """Return the seconds of CPU that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def attach_link(end: socket.socket, handlers: dict[str, Any]) -> Link:
    """Make a link on one end of a socket pair."""
    link = Link(handlers)
    end.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=end)
    return link


async def serve(end: socket.socket) -> None:
    """Answer the calls of the parent until it closes."""
    link = await attach_link(
        end, {"echo": lambda body, _call: body, "stream": stream, "cpu": lambda _body, _call: cpu()}
    )
    await link.wait_closed()


async def measure(end: socket.socket) -> None:
    """Print the figures."""
    link = await attach_link(end, {})
    await link.call("echo", BODY)
    began = time.perf_counter()

    for _ in range(CALLS):
        await link.call("echo", BODY)

    print(f"one call after another, 1.7 KB: {(time.perf_counter() - began) / CALLS * 1e6:.0f} µs")
    there = await link.call("cpu")
    here = cpu()

    for _ in range(CALLS // 50):
        await asyncio.gather(*(link.call("echo", BODY) for _ in range(50)))

    spent = await link.call("cpu") - there + cpu() - here
    print(f"50 calls at once, 1.7 KB: {spent / CALLS * 1e6:.0f} µs of CPU a call, both processes")
    there = await link.call("cpu")
    here = cpu()

    await link.call("stream", BATCHES, on_item=lambda _batch: None)
    spent = await link.call("cpu") - there + cpu() - here
    print(f"batches of {BATCH} events, 1.7 KB each: {spent / BATCHES / BATCH * 1e6:.1f} µs of CPU an event")
    link.close()


def run(work: Any) -> None:
    """Run a coroutine, on uvloop if asked to."""
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(work)
    else:
        asyncio.run(work)


if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        run(serve(theirs))
    else:
        theirs.close()
        run(measure(ours))
