"""Watches free disk space, so that servers refuse new data before Postgres runs out of it.

A part of the file system stays in reserve. While less is free, routes that store data answer 503 (`Route.stores_data`),
agent servers start no runs, and no build begins. Reading and deleting continue, and so do runs that have begun: half of
the reserve is theirs, and then they return to the queue. Requests look at a flag; only the watch asks the system.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from prometheus_client import Gauge

from portside.kernel.errors import Unavailable
from portside.kernel.files import make_private_dir
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.settings import setting

log = get_logger(__name__)
FREE = Gauge("portside_disk_free_bytes", "Bytes free on the file system of the home folder.")
RESERVE = Gauge("portside_disk_reserve_bytes", "Free bytes below which new data is refused.")
IS_LOW = Gauge("portside_disk_is_low", "1 while new data is refused because the disk or the database is nearly full.")
# The langsmith clients send a refused batch three more times, each after this pause.
RETRY_AFTER_S = 30
# A folder of the home that is mounted into containers, so that they can measure the disk. It holds nothing private.
WATCHED_FOLDER = "disk"
# A file in that folder, which exists while the database is nearly full and says why.
DATABASE_NOTICE = "database-full"
# Data is accepted again when this many times the reserve is free. With 1.0 each deleted row would let one new row in.
RESUME_AT = 1.1
# The share of inodes below which the disk counts as nearly full.
MIN_FREE_INODES = 0.01
# The disk is measured again before it could be full, if it fills at most this fast; and between these periods.
MAX_FILL_BYTES_PER_S = 1e9
MIN_PERIOD_S = 0.2
MAX_PERIOD_S = 5.0
# Below this share of the reserve, running runs return to the queue.
CRITICAL = 0.5

ReserveBytes = Annotated[
    int,
    msgspec.Meta(ge=0),
    setting(
        "Free bytes on the disk below which new data, runs and builds are refused with 503. The smaller one of this "
        "and DISK_RESERVE_PERCENT counts; 0 turns the check off."
    ),
]
ReservePercent = Annotated[
    float, msgspec.Meta(ge=0, le=90), setting("The same as a percentage of the disk; 0 turns the check off.")
]


class DiskFull(Unavailable):
    """The server's disk or database is nearly full, so it accepts no new data; retry later, or make room."""

    code = "disk_full"

    @classmethod
    def because(cls, shortage: str) -> "DiskFull":
        """Return the error for a shortage."""
        return cls(
            f"This server accepts no new data: {shortage}. It accepts data again as soon as there is room; "
            "'portside disk' shows its operator what takes the space.",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )


class DiskReserve(NamedTuple):
    """How much of a disk stays free: the smaller of both values; 0 reserves nothing."""

    bytes: int = 2_000_000_000
    percent: float = 5.0

    def of(self, total_bytes: int) -> int:
        """Return the reserve of a disk of this size, in bytes."""
        return min(self.bytes, int(total_bytes * self.percent / 100))


NO_RESERVE = DiskReserve(0)


class DiskSpace(NamedTuple):
    """A file system, as ordinary users may fill it, in bytes."""

    total: int
    free: int
    # A share from 0 to 1.
    free_inodes: float


def measure(folder: Path) -> DiskSpace:
    """Return the space of the file system that holds a folder. Raises OSError."""
    status = os.statvfs(folder)
    # Blocks that only root may fill do not count.
    total_blocks = status.f_blocks - status.f_bfree + status.f_bavail
    free_inodes = status.f_favail / status.f_files if status.f_files else 1.0
    return DiskSpace(
        total=total_blocks * status.f_frsize, free=status.f_bavail * status.f_frsize, free_inodes=free_inodes
    )


def find_shortage(folder: Path, reserve: DiskReserve, factor: float = 1.0) -> str | None:
    """Return why less than `factor` times the reserve is free, or None if there is enough. Raises OSError."""
    space = measure(folder)
    reserve_bytes = reserve.of(space.total)
    if not reserve_bytes:
        return None

    if space.free < reserve_bytes * factor:
        return (
            f"{megabytes(space.free)} free of {megabytes(space.total)}, and {megabytes(reserve_bytes)} stay in reserve"
        )
    if space.free_inodes < MIN_FREE_INODES * factor:
        return f"only {space.free_inodes:.1%} of its inodes are free, so it can hold few more files"

    return None


def megabytes(size: int) -> str:
    """Return a number of bytes for people: 1.5 GB, 12 MB."""
    if size >= 1_000_000_000:
        return f"{size / 1e9:.1f} GB"
    if size >= 10_000_000:
        return f"{size / 1e6:.0f} MB"

    return f"{size / 1e6:.1f} MB"


def make_watched_folder(home: Path) -> Path:
    """Return the folder of a home by which servers watch its disk, and make it. Raises OSError."""
    folder = home / WATCHED_FOLDER
    if not folder.exists():
        make_private_dir(home)
        folder.mkdir(exist_ok=True)

        # Not `mkdir(mode=…)`, which the umask narrows: in containers another user reads it.
        folder.chmod(0o755)

    return folder


class DiskWatch(Task):
    """Measures the disk of a folder, five times a second when little is free and every five seconds when much is.

    `shortage` says why new data is refused; it is None while there is room.
    """

    every_s = 1.0

    def __init__(self, folder: Path, reserve: DiskReserve) -> None:
        super().__init__()
        self.shortage: str | None = None
        self._is_critical = False
        self._folder = folder
        self._reserve = reserve
        self._on_change: list[Callable[[], None]] = []
        self._on_critical: list[Callable[[], None]] = []

        self._set_shortage(self._measure())

    def subscribe(self, *, on_change: Callable[[], None], on_critical: Callable[[], None]) -> None:
        """Call back when `shortage` begins or ends, and at each measurement that finds half of the reserve used."""
        self._on_change.append(on_change)
        self._on_critical.append(on_critical)

    def check(self) -> None:
        """Raise DiskFull while new data is refused."""
        if self.shortage is not None:
            raise DiskFull.because(self.shortage)

    async def activate(self) -> Status:
        """Measure."""
        self._set_shortage(await asyncio.to_thread(self._measure))
        if self._is_critical:
            for on_critical in self._on_critical:
                on_critical()

        return Status({"low": int(self.shortage is not None)})

    def _measure(self) -> str | None:
        """Measure the disk, and return why new data is refused, or None."""
        space = measure(self._folder)
        reserve_bytes = self._reserve.of(space.total)
        self._is_critical = space.free < reserve_bytes * CRITICAL
        FREE.set(space.free)
        RESERVE.set(reserve_bytes)

        full_in_s = (space.free - reserve_bytes) / MAX_FILL_BYTES_PER_S
        self.report.every_s = min(MAX_PERIOD_S, max(MIN_PERIOD_S, full_in_s))

        factor = 1.0 if self.shortage is None else RESUME_AT
        reason = find_shortage(self._folder, self._reserve, factor)
        if reason is not None:
            return f"its disk is nearly full ({reason})"

        return read_notice(self._folder)

    def _set_shortage(self, shortage: str | None) -> None:
        """Remember the shortage, and report a change between shortage and room."""
        was_low = self.shortage is not None
        is_low = shortage is not None
        self.shortage = shortage
        IS_LOW.set(is_low)

        if was_low == is_low:
            return

        if shortage is None:
            log.warning("there is enough disk space again, and new data is accepted", folder=str(self._folder))
        else:
            log.error("new data is refused until there is room", reason=shortage, folder=str(self._folder))

        for on_change in self._on_change:
            on_change()


def read_notice(folder: Path) -> str | None:
    """Return why the database of a home is nearly full, or None. `folder` is the one that is watched."""
    try:
        return (folder / DATABASE_NOTICE).read_text("utf-8").strip() or None
    except (FileNotFoundError, PermissionError):
        # In a container another user may own the folder; then only the disk itself is watched.
        return None
