"""How much there is to do: the figures of the queue that operators watch at `/metrics`."""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import Gauge

from portside.agent.queue.worker import Worker
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.http.middleware import Activity
from portside.kernel.logs import get_logger
from portside.kernel.transient_errors import is_transient, log_failure

log = get_logger(__name__)
# How long a count answers the next questions.
CACHED_S = 1.0

PENDING = Gauge("lg_api_num_pending_runs", "Runs of this database that wait to be executed.")
READY = Gauge("lg_api_num_ready_runs", "Runs of this database that a free slot could execute now.")
IN_PROGRESS = Gauge("lg_api_num_running_runs", "Runs of this database that are being executed.")
LONGEST = Gauge("lg_api_pending_runs_wait_time_max", "How long the oldest waiting run has waited, in seconds.")
MEDIAN = Gauge("lg_api_pending_runs_wait_time_med", "How long half of the waiting runs have waited, in seconds.")
LONGEST_UNBLOCKED = Gauge(
    "lg_api_pending_unblocked_runs_wait_time_max",
    "How long the oldest run that no other run of its thread blocks has waited, in seconds.",
)
GAUGES_OF_DATABASE = (
    "lg_api_num_pending_runs",
    "lg_api_num_ready_runs",
    "lg_api_num_running_runs",
    "lg_api_pending_runs_wait_time_max",
    "lg_api_pending_runs_wait_time_med",
    "lg_api_pending_unblocked_runs_wait_time_max",
)
"""The metrics whose values are the same in every process of a database."""

AVAILABLE = Gauge("lg_api_workers_available", "Runs this process could start now.")
POOL_SIZE = Gauge("lg_api_pg_pool_size", "Connections to Postgres.", ["pool"])
POOL_MAX = Gauge("lg_api_pg_pool_max", "Connections that may be opened.", ["pool"])
POOL_AVAILABLE = Gauge("lg_api_pg_pool_available", "Open connections that are idle.", ["pool"])


class Backlog(msgspec.Struct):
    """The queue of a database. Waiting times are in seconds. A figure is None when the database did not answer."""

    n_pending: int | None = None
    n_running: int | None = None
    pending_runs_wait_time_max_secs: float | None = None
    pending_runs_wait_time_med_secs: float | None = None
    pending_unblocked_runs_wait_time_max_secs: float | None = None


class Slots(msgspec.Struct):
    """The slots of one process: how many it has, how many are busy, and how many runs could start now."""

    max: int
    active: int
    available: int


class _Count(NamedTuple):
    """One count of the queue, with the number of runs that a free slot could execute now."""

    backlog: Backlog
    n_ready: int


class QueueMonitor:
    """Counts the queue of a database, at most once a second, and the slots of this process."""

    def __init__(self, db: Database, worker: Worker, pools: Mapping[str, Database]) -> None:
        self._db = db
        self._worker = worker
        self._pools = pools
        self._count = _Count(Backlog(), 0)
        self._counted_at = -math.inf
        self._counting = asyncio.Lock()

    async def get_backlog(self) -> Backlog:
        """Count the queue. All figures are None while the database does not answer; it never raises for that."""
        count = await self._get_count()
        return count.backlog

    async def get_idle_s(self, activity: Activity) -> float | None:
        """Return for how many seconds this process has had no request and no run; None if that is unknown.

        It is 0 while a run of the database is executed or could start, here or elsewhere.
        """
        backlog, n_ready = await self._get_count()
        if backlog.n_running is None:
            return None

        is_busy_here = activity.open or self._worker.busy_slots
        is_busy_elsewhere = backlog.n_running or n_ready
        if is_busy_here or is_busy_elsewhere:
            return 0.0

        return round(time.monotonic() - max(activity.ended_at, self._worker.ended_at), 3)

    @property
    def slots(self) -> Slots:
        """The worker's slots."""
        return Slots(max=self._worker.slots, active=self._worker.busy_slots, available=self._worker.available_slots)

    async def set_gauges(self) -> None:
        """Set the gauges that are counted when the metrics are read."""
        backlog, n_ready = await self._get_count()
        values = {
            PENDING: backlog.n_pending,
            READY: None if backlog.n_pending is None else n_ready,
            IN_PROGRESS: backlog.n_running,
            LONGEST: backlog.pending_runs_wait_time_max_secs,
            MEDIAN: backlog.pending_runs_wait_time_med_secs,
            LONGEST_UNBLOCKED: backlog.pending_unblocked_runs_wait_time_max_secs,
            AVAILABLE: self.slots.available,
        }

        for gauge, value in values.items():
            gauge.set(math.nan if value is None else value)

        for name, db in self._pools.items():
            POOL_SIZE.labels(name).set(db.pool.get_size())
            POOL_MAX.labels(name).set(db.pool.get_max_size())
            POOL_AVAILABLE.labels(name).set(db.pool.get_idle_size())

    async def _get_count(self) -> _Count:
        async with self._counting:
            if time.monotonic() - self._counted_at >= CACHED_S:
                self._count = await self._count_now()
                self._counted_at = time.monotonic()

        return self._count

    async def _count_now(self) -> _Count:
        if not await self._db.is_alive():
            log.warning("the queue was not counted: the database does not answer")
            return _Count(Backlog(), 0)

        try:
            row = await self._db.fetchrow(sql.queue_backlog)
        except Exception as failure:
            if not is_transient(failure):
                raise

            log_failure("the queue was not counted: the database does not answer", failure)
            return _Count(Backlog(), 0)

        assert row is not None  # noqa: S101 - it counts
        n_ready, *numbers = row
        return _Count(Backlog(*numbers), n_ready)
