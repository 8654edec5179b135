"""Trips that several share: who goes with whom, and what each is told."""

import asyncio

import asyncpg
import pytest

from portside.kernel.trips import SharedTrips

MOST = 5


class Road:
    """Notes the trips; each lasts until it is let go."""

    def __init__(self) -> None:
        self.trips: list[list[int]] = []
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self.leaves_at_the_end: asyncio.Task[str] | None = None
        self.orphans: list[str] = []
        self.failure: Exception | None = None
        self.shared: SharedTrips[int, str] = SharedTrips(self.go, most=MOST, on_orphan=self.orphans.append)

    async def go(self, asked: list[int]) -> list[str]:
        self.trips.append(asked)
        self.begun.set()
        await self.open.wait()
        if self.leaves_at_the_end is not None:
            # Before the answer reaches it, after it is known.
            asyncio.get_running_loop().call_soon(self.leaves_at_the_end.cancel)
        if self.failure is not None and 13 in asked:
            raise self.failure
        return [f"told {number}" for number in asked]

    def ask(self, *numbers: int) -> list["asyncio.Task[str]"]:
        return [asyncio.create_task(self.shared.ask(number)) for number in numbers]


@pytest.fixture
async def road() -> Road:
    return Road()


async def test_who_asks_alone_goes_at_once(road: Road):
    road.open.set()
    assert [await road.shared.ask(1), await road.shared.ask(2)] == ["told 1", "told 2"]
    assert road.trips == [[1], [2]]


async def test_what_is_asked_meanwhile_goes_with_the_next_trip(road: Road):
    first = road.ask(1)
    await road.begun.wait()
    others = road.ask(*range(2, MOST + 4))
    await asyncio.sleep(0)
    road.open.set()
    assert await asyncio.gather(*first, *others) == [f"told {number}" for number in range(1, MOST + 4)]
    assert [len(trip) for trip in road.trips] == [1, MOST, 2]


async def test_nobody_fails_for_anothers_sake(road: Road):
    road.failure = asyncpg.DataError("that one")
    road.open.set()
    told = await asyncio.gather(*road.ask(1, 13, 2), return_exceptions=True)
    assert told == ["told 1", road.failure, "told 2"]


async def test_a_database_that_is_away_is_not_asked_again_for_each(road: Road):
    road.failure = asyncpg.ConnectionDoesNotExistError("away")
    road.open.set()
    told = await asyncio.gather(*road.ask(1, 13, 2), return_exceptions=True)
    assert told == [road.failure] * 3
    assert len(road.trips) == 1


async def test_an_answer_for_somebody_who_left_is_an_orphan(road: Road):
    left, stays = road.ask(1, 2)
    await road.begun.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    road.open.set()
    assert await stays == "told 2"
    assert road.orphans == ["told 1"]


async def test_an_answer_that_comes_as_somebody_leaves_is_an_orphan_too(road: Road):
    (left,) = road.ask(1)
    road.leaves_at_the_end = left
    road.open.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert road.orphans == ["told 1"]
