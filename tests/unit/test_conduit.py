"""How events get from the thread of a graph to the loop that tells them: in order, and only where somebody listens."""

import asyncio

import pytest

from portside.agent.streams import conduit
from portside.agent.streams.conduit import Conduit
from tests.conftest import eventually

NEVER = 3600.0


async def push(to: Conduit[bytes], *items: bytes) -> None:
    """Hand over items in another thread, as graphs do."""
    await asyncio.to_thread(lambda: [to.push(item) for item in items])


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(conduit, "NOBODY_WAITS_S", NEVER)


async def test_a_burst_comes_in_order():
    told: list[bytes] = []
    pipe = Conduit(told.extend, len)
    await push(pipe, *(b"%d" % number for number in range(1000)))
    pipe.close()
    assert told == [b"%d" % number for number in range(1000)]


async def test_what_nobody_listens_to_is_dropped_at_the_end(patience):
    told: list[bytes] = []
    pipe = Conduit(told.extend, len, lambda: False)
    await push(pipe, b"one", b"two")
    pipe.close()
    assert told == []


async def test_who_comes_meanwhile_gets_everything_with_the_next_item(patience):
    told: list[bytes] = []
    here: list[str] = []
    pipe = Conduit(told.extend, len, lambda: bool(here))
    await push(pipe, b"one")
    here.append("somebody")
    await push(pipe, b"two")

    async def is_told() -> bool:
        return told == [b"one", b"two"]

    await eventually(is_told)
    pipe.close()


async def test_who_comes_after_the_last_item_gets_it_at_the_end(patience):
    told: list[bytes] = []
    here: list[str] = []
    pipe = Conduit(told.extend, len, lambda: bool(here))
    await push(pipe, b"one")
    here.append("somebody")
    pipe.close()
    assert told == [b"one"]


@pytest.mark.parametrize("bound", [{"NOBODY_WAITS_S": 0.0}, {"KEPT_FOR_NOBODY_BYTES": 1}], ids=["time", "bytes"])
async def test_it_is_not_held_back_for_long(monkeypatch, bound):
    monkeypatch.setattr(conduit, "NOBODY_WAITS_S", NEVER)
    for name, value in bound.items():
        monkeypatch.setattr(conduit, name, value)
    told: list[bytes] = []
    pipe = Conduit(told.extend, len, lambda: False)
    await push(pipe, b"one")

    async def is_told() -> bool:
        return told == [b"one"]

    await eventually(is_told)
    pipe.close()
