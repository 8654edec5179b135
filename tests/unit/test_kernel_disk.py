"""When a disk counts as nearly full, when there is room again, and when runs have to stop."""

from pathlib import Path

import pytest

from portside.kernel import disk
from portside.kernel.disk import (
    CRITICAL,
    DATABASE_NOTICE,
    MIN_FREE_INODES,
    RESUME_AT,
    DiskFull,
    DiskReserve,
    DiskSpace,
    DiskWatch,
    find_shortage,
)

GB = 1_000_000_000
RESERVE = DiskReserve(2 * GB, 5.0)


def test_smaller_part_of_the_disk_stays_free() -> None:
    assert RESERVE.of(20 * GB) == GB
    assert RESERVE.of(1000 * GB) == 2 * GB
    assert (DiskReserve(0, 5.0).of(20 * GB), DiskReserve(2 * GB, 0.0).of(20 * GB)) == (0, 0)


class Measured:
    """A disk of 100 GB, of which 2 GB stay free, and the watch of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 50 * GB
        self.free_inodes = 0.5
        self.changes = 0
        self.stops = 0
        self.folder = folder
        monkeypatch.setattr(disk, "measure", lambda _folder: DiskSpace(100 * GB, self.free, self.free_inodes))
        self.watch = DiskWatch(folder, RESERVE)
        self.watch.subscribe(on_change=self.count_change, on_critical=self.count_stop)

    def count_change(self) -> None:
        self.changes += 1

    def count_stop(self) -> None:
        self.stops += 1

    async def is_low(self, free: float, free_inodes: float = 0.5) -> bool:
        self.free = int(free)
        self.free_inodes = free_inodes
        await self.watch.activate()
        return self.watch.shortage is not None


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    return Measured(tmp_path, monkeypatch)


async def test_data_is_refused_below_the_reserve_and_accepted_again_with_some_room(measured: Measured) -> None:
    assert not await measured.is_low(2 * GB)
    measured.watch.check()
    assert await measured.is_low(2 * GB - 1)
    with pytest.raises(DiskFull):
        measured.watch.check()

    assert await measured.is_low(2 * GB * RESUME_AT - 1), "each deleted row would let one new row in"
    assert not await measured.is_low(2 * GB * RESUME_AT)
    assert measured.changes == 2


async def test_disk_without_inodes_is_full(measured: Measured) -> None:
    assert not await measured.is_low(50 * GB, MIN_FREE_INODES)
    assert await measured.is_low(50 * GB, MIN_FREE_INODES * 0.9)
    assert "inodes" in (measured.watch.shortage or "")


async def test_runs_stop_when_half_of_the_reserve_is_used(measured: Measured) -> None:
    await measured.is_low(2 * GB * CRITICAL)
    assert measured.stops == 0
    for _ in range(2):
        await measured.is_low(2 * GB * CRITICAL - 1)

    assert measured.stops == 2


async def test_notice_of_a_full_database_counts_as_long_as_it_is_there(measured: Measured) -> None:
    notice = measured.folder / DATABASE_NOTICE
    notice.write_text("its databases take 99 GB of 100 GB\n")
    assert await measured.is_low(50 * GB)
    assert measured.watch.shortage == "its databases take 99 GB of 100 GB"
    notice.unlink()
    assert not await measured.is_low(50 * GB)


async def test_fuller_disk_is_measured_more_often(measured: Measured) -> None:
    periods = []
    for free in (50 * GB, 5 * GB, 2.1 * GB, GB):
        await measured.is_low(free)
        periods.append(measured.watch.report.every_s)

    assert periods == [5.0, 3.0, 0.2, 0.2]


def test_nothing_is_reserved_of_a_disk_that_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "measure", lambda _folder: DiskSpace(100 * GB, 1, 0.0))
    assert find_shortage(tmp_path, DiskReserve(0)) is None
