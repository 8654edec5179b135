"""Builds wait for each other with a reason, and for what empties their caches before later builds begin."""

import asyncio

from portside.dataplane.build_slots import BuildSlots


async def test_a_build_that_waits_hears_why_and_who_empties_caches_goes_first():
    slots = BuildSlots(2)
    events = list[str]()
    has_heard = asyncio.Event()
    ends = {name: asyncio.Event() for name in ("one", "two", "three")}

    async def build(name: str) -> None:
        def hear(reason: str) -> None:
            events.append(f"{name} waits: {reason}")
            has_heard.set()

        async with slots.take(hear):
            events.append(f"{name} runs")
            await ends[name].wait()

    async def empty() -> None:
        async with slots.alone("the caches are emptied"):
            assert not slots.has_builds
            events.append("emptied")

    async with asyncio.TaskGroup() as tasks:
        for name in ends:
            tasks.create_task(build(name))
            await asyncio.sleep(0)

        assert events == ["one runs", "two runs", "three waits: 2 builds run at once, and others began earlier"]

        has_heard.clear()
        tasks.create_task(empty())
        await has_heard.wait()
        ends["one"].set()
        ends["two"].set()
        ends["three"].set()

    assert events[3:] == ["three waits: the caches are emptied", "emptied", "three runs"]
    assert not slots.has_builds


async def test_a_build_that_is_cancelled_while_it_waits_takes_no_slot():
    slots = BuildSlots(1)

    async def build() -> None:
        async with slots.take():
            raise AssertionError

    async with slots.take():
        waiting = asyncio.create_task(build())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async with slots.take():
        assert slots.has_builds

    await slots.wait_for_end(600)
