"""A run whose events are not taken waits alone: the other runs of its loop go on."""

import asyncio
import contextlib
from typing import Any

import pytest

from portside.executor import event_batches
from portside.executor.event_batches import EventBatches
from portside.executor.link import Link, ServedCall
from portside.executor.loops import GraphLoop
from tests.conftest import eventually

NEVER = 3600.0
LARGE = ("custom", b"x" * event_batches.HIGH_WATER_BYTES)
SMALL = ("custom", b"1")


class Wire(asyncio.Transport):
    """A transport to a peer that reads nothing until `read`."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        link.connection_made(self)
        link.pause_writing()

    def read(self) -> None:
        self._link.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: `read` decides."""

    def writelines(self, list_of_data: Any) -> None:
        """Forget the frames."""

    def get_write_buffer_size(self) -> int:
        return 0


class Pouring:
    """A run on a graph loop that emits a large event, and then a small one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(event_batches, "EVENT_WAIT_LIMIT_S", NEVER)
        link = Link({})
        self.wire = Wire(link)
        self.loop = GraphLoop("graphs")
        self.emitted: list[tuple[str, bytes]] = []
        self._batches = EventBatches(ServedCall(link, 1, 0), is_unfollowed=False)
        self.run = asyncio.create_task(self.loop.call(self._pour()))

    async def _pour(self) -> None:
        for event in (LARGE, SMALL):
            if (waiting := self._batches.add(event)) is not None:
                await waiting
            self.emitted.append(event)

    async def has_emitted_one(self) -> bool:
        return self.emitted == [LARGE]


async def test_other_runs_of_the_loop_go_on_while_a_run_waits_for_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    pouring = Pouring(monkeypatch)
    await eventually(pouring.has_emitted_one)

    neighbour = asyncio.sleep(0, "done")
    assert await pouring.loop.call(neighbour) == "done"
    assert pouring.emitted == [LARGE]

    pouring.wire.read()
    await pouring.run
    assert pouring.emitted == [LARGE, SMALL]
    pouring.loop.close()


async def test_a_run_that_waits_for_the_link_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    pouring = Pouring(monkeypatch)
    await eventually(pouring.has_emitted_one)

    pouring.run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pouring.run

    assert pouring.emitted == [LARGE]
    pouring.loop.close()


async def test_a_run_blocks_its_loop_once_its_graph_takes_memory_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph emits within a step is kept by langgraph, which nothing else limits."""
    memory = 0

    def grow(_process: object) -> int:
        nonlocal memory
        memory += event_batches.GROWTH_LIMIT_BYTES
        return memory

    monkeypatch.setattr(event_batches, "measure_memory", grow)
    here = asyncio.get_running_loop()
    is_blocked = asyncio.Event()
    is_read = False
    block = EventBatches._block_until_taken

    def note(batches: EventBatches, within_s: float) -> None:
        here.call_soon_threadsafe(is_blocked.set)
        block(batches, within_s)

    monkeypatch.setattr(EventBatches, "_block_until_taken", note)

    async def look() -> bool:
        return is_read

    pouring = Pouring(monkeypatch)
    await is_blocked.wait()
    neighbour = asyncio.create_task(pouring.loop.call(look()))
    await asyncio.sleep(0)

    is_read = True
    pouring.wire.read()

    assert await neighbour is True
    await pouring.run
    pouring.loop.close()


async def test_growth_is_counted_over_all_waits_until_langgraph_has_no_event_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that reads now and then lets a graph that emits faster take no more memory than one that does not."""
    memory = 0
    growth = event_batches.GROWTH_LIMIT_BYTES // 4
    events_before_block: list[int] = []
    returned: list[int] = []
    link = Link({})
    batches = EventBatches(ServedCall(link, 1, 0), is_unfollowed=False)
    added = 0

    def block(_batches: EventBatches, _within_s: float) -> None:
        events_before_block.append(added)

    monkeypatch.setattr(event_batches, "measure_memory", lambda _process: memory)
    monkeypatch.setattr(event_batches, "return_free_memory", lambda: returned.append(memory))
    monkeypatch.setattr(EventBatches, "_block_until_taken", block)

    async def emit(count: int) -> None:
        """Add events of a graph that has always one more, each of which the link has taken when the run waits."""
        nonlocal memory, added
        for _ in range(count):
            memory += growth
            added += 1
            if (waiting := batches.add(LARGE)) is not None:
                asyncio.get_running_loop().call_soon(batches.flush)
                await waiting

    # The first event does not wait, and the memory before the second is what the growth is measured from.
    await emit(6)
    assert events_before_block == []

    # From here the run lets its loop do nothing before langgraph has no event left.
    await emit(3)
    assert events_before_block == [7, 8, 9]
    assert returned == []

    for _ in range(3):
        await asyncio.sleep(0)

    assert returned == [memory]
    await emit(5)
    assert events_before_block == [7, 8, 9]
