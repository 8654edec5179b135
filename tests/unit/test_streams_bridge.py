"""The bridge from a graph's thread to the API's loop: in order, and only if somebody listens."""

import asyncio
import threading

import pytest

from portside.agent.streams import thread_bridge
from portside.agent.streams.thread_bridge import ThreadBridge
from tests.conftest import eventually

NEVER = 3600.0


async def push(to: ThreadBridge[bytes], *items: bytes) -> None:
    """Hand over items in another thread, as graphs do."""
    await asyncio.to_thread(lambda: [to.push(item) for item in items])


@pytest.fixture
def no_delay_limit(monkeypatch):
    monkeypatch.setattr(thread_bridge, "UNFOLLOWED_DELAY_S", NEVER)


async def test_bridge_delivers_in_order():
    received: list[bytes] = []
    pipe = ThreadBridge(received.extend, len)
    await push(pipe, *(b"%d" % number for number in range(1000)))
    pipe.close()
    assert received == [b"%d" % number for number in range(1000)]


async def test_bridge_drops_unfollowed_items_on_close(no_delay_limit):
    received: list[bytes] = []
    pipe = ThreadBridge(received.extend, len, lambda: False)
    await push(pipe, b"one", b"two")
    pipe.close()
    assert received == []


async def test_bridge_delivers_waiting_items_to_a_new_listener(no_delay_limit):
    received: list[bytes] = []
    here: list[str] = []
    pipe = ThreadBridge(received.extend, len, lambda: bool(here))
    await push(pipe, b"one")
    here.append("somebody")
    await push(pipe, b"two")

    async def is_received() -> bool:
        return received == [b"one", b"two"]

    await eventually(is_received)
    pipe.close()


async def test_bridge_delivers_waiting_items_on_close(no_delay_limit):
    received: list[bytes] = []
    here: list[str] = []
    pipe = ThreadBridge(received.extend, len, lambda: bool(here))
    await push(pipe, b"one")
    here.append("somebody")
    pipe.close()
    assert received == [b"one"]


@pytest.mark.parametrize("bound", [{"UNFOLLOWED_DELAY_S": 0.0}, {"UNFOLLOWED_LIMIT_BYTES": 1}], ids=["time", "bytes"])
async def test_bridge_delivers_unfollowed_items_above_its_limits(monkeypatch, bound):
    monkeypatch.setattr(thread_bridge, "UNFOLLOWED_DELAY_S", NEVER)

    for name, value in bound.items():
        monkeypatch.setattr(thread_bridge, name, value)

    received: list[bytes] = []
    pipe = ThreadBridge(received.extend, len, lambda: False)
    await push(pipe, b"one")

    async def is_received() -> bool:
        return received == [b"one"]

    await eventually(is_received)
    pipe.close()


async def test_bridge_delivers_later_bursts_without_being_closed():
    received: list[bytes] = []
    pipe = ThreadBridge(received.extend, len)
    for burst in (b"one", b"two", b"three"):
        await push(pipe, burst)

        async def is_received(burst: bytes = burst) -> bool:
            return burst in received

        await eventually(is_received)

    assert received == [b"one", b"two", b"three"]


class WatchedCondition(threading.Condition):
    """A condition that shows whether a thread waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited.set()
        return super().wait(timeout)


async def test_graph_waits_until_the_loop_takes_a_full_bridge(monkeypatch):
    monkeypatch.setattr(thread_bridge, "BRIDGE_LIMIT_BYTES", 10)
    monkeypatch.setattr(thread_bridge, "BRIDGE_WAIT_LIMIT_S", NEVER)
    received: list[bytes] = []
    pipe = ThreadBridge(received.extend, len)
    pipe._condition = WatchedCondition()
    graph = threading.Thread(target=lambda: [pipe.push(item) for item in (b"x" * 10, b"y")], daemon=True)

    graph.start()
    # The loop takes nothing before this coroutine yields.
    assert pipe._condition.is_awaited.wait(60)
    assert (received, graph.is_alive()) == ([], True)

    async def is_received() -> bool:
        return len(received) == 2

    await eventually(is_received)
    assert received == [b"x" * 10, b"y"]
    await asyncio.to_thread(graph.join, 60)
    assert not graph.is_alive()


async def test_producer_on_the_receiving_loop_delivers_at_once_and_is_never_made_to_wait(monkeypatch):
    monkeypatch.setattr(thread_bridge, "BRIDGE_LIMIT_BYTES", 10)
    received: list[bytes] = []
    pipe = ThreadBridge(received.extend, len)
    for item in (b"x" * 20, b"y" * 20):
        pipe.deliver([item])
        assert received[-1] == item

    with pytest.raises(RuntimeError, match="wait for itself"):
        pipe.push(b"z")


async def test_unfollowed_items_of_the_receiving_loop_wait_for_a_listener(no_delay_limit):
    received: list[bytes] = []
    here: list[str] = []
    pipe = ThreadBridge(received.extend, len, lambda: bool(here))
    pipe.deliver([b"one"])
    assert received == []
    here.append("somebody")
    pipe.deliver([b"two"])

    assert received == [b"one", b"two"]
