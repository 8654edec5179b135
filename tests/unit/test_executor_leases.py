"""The leases of runs, as an executor watches them by itself."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from portside.executor import leases
from portside.executor.leases import RunLease
from portside.executor.link import Link, ServedCall
from tests.conftest import eventually

LONG_S = 3600.0


async def test_a_run_is_stopped_before_its_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end another server may have the run, and stopping takes a moment."""
    monkeypatch.setattr(leases, "STOP_EARLY_S", 2 * LONG_S)
    work = asyncio.get_running_loop().create_future()
    call = ServedCall(Link({}), 1, 0, work)
    lease = RunLease(call, time.monotonic() + LONG_S, on_stuck=lambda: None)

    done, _ = await asyncio.wait([work], timeout=300)
    lease.close()

    assert done
    assert work.cancelled()
    assert lease.is_lost


async def test_a_renewal_that_was_on_its_way_when_the_lease_ended_keeps_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    looks = 0

    def look() -> float:
        """Return a time after the end of the lease, which is renewed after the second look."""
        nonlocal looks
        looks += 1
        if looks == 2:
            loop.call_soon(setattr, lease, "until", LONG_S)

        return 100.0

    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=look))
    work = loop.create_future()
    lease = RunLease(ServedCall(Link({}), 1, 0, work), 100.0, on_stuck=lambda: None)

    async def is_kept_or_stopped() -> bool:
        return looks == 4 or work.done()

    await eventually(is_kept_or_stopped)
    lease.close()

    assert not work.done()
    assert not lease.is_lost
