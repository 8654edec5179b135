"""How much there is to do: the figures of the queue that operators watch at `/metrics`, and when a server rests.

Every second a server looks for runs, lost leases, webhooks and news of other processes. While it is idle it rests: one
look every few seconds replaces all of these, because hundreds of idle servers may share a machine.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import Gauge

from portside.agent.queue.statements import LEASE_S
from portside.agent.queue.worker import Worker
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.http.middleware import Activity
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.transient_errors import is_transient, log_failure

log = get_logger(__name__)
CACHED_S = 1.0
# A server rests after REST_AFTER_S without a request and a run, if nothing is due within REST_AT_LEAST_S.
REST_AFTER_S = 5.0
REST_AT_LEAST_S = 10.0
# The lease of a run that began elsewhere after one look ends after the next: resting delays the sweep of no lost run.
LOOK_EVERY_S = LEASE_S
RESTING_TASKS_EVERY_S = 60.0
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


class QueueMonitor:
    """Counts the queue of a database, at most once a second, and the slots of this process."""

    def __init__(self, db: Database, worker: Worker, pools: Mapping[str, Database]) -> None:
        self._db = db
        self._worker = worker
        self._pools = pools
        self._count: tuple[Backlog, int] = (Backlog(), 0)
        self._counted_at = -math.inf
        self._counting = asyncio.Lock()

    async def backlog(self) -> Backlog:
        """Count the queue. All figures are None while the database does not answer; it never raises for that."""
        return (await self._counted())[0]

    async def idle_s(self, activity: Activity) -> float | None:
        """Return for how many seconds this process has had no request and no run; None if that is unknown.

        It is 0 while a run of the database is executed or could start, here or elsewhere.
        """
        backlog, n_ready = await self._counted()
        if backlog.n_running is None:
            return None
        if activity.open or self._worker.busy_slots or backlog.n_running or n_ready:
            return 0.0

        return round(time.monotonic() - max(activity.ended_at, self._worker.ended_at), 3)

    def slots(self) -> Slots:
        """Return the worker's slots."""
        return Slots(self._worker.slots, self._worker.busy_slots, max(0, self._worker.free_slots))

    async def set_gauges(self) -> None:
        """Set the gauges that are counted when the metrics are read."""
        backlog, n_ready = await self._counted()
        values = {
            PENDING: backlog.n_pending,
            READY: None if backlog.n_pending is None else n_ready,
            IN_PROGRESS: backlog.n_running,
            LONGEST: backlog.pending_runs_wait_time_max_secs,
            MEDIAN: backlog.pending_runs_wait_time_med_secs,
            LONGEST_UNBLOCKED: backlog.pending_unblocked_runs_wait_time_max_secs,
            AVAILABLE: self.slots().available,
        }

        for gauge, value in values.items():
            gauge.set(math.nan if value is None else value)

        for name, db in self._pools.items():
            POOL_SIZE.labels(name).set(db.pool.get_size())
            POOL_MAX.labels(name).set(db.pool.get_max_size())
            POOL_AVAILABLE.labels(name).set(db.pool.get_idle_size())

    async def _counted(self) -> tuple[Backlog, int]:
        async with self._counting:
            if time.monotonic() - self._counted_at >= CACHED_S:
                self._count = await self._count_now()
                self._counted_at = time.monotonic()

        return self._count

    async def _count_now(self) -> tuple[Backlog, int]:
        if not await self._db.is_alive():
            log.warning("the queue was not counted: the database does not answer")
            return Backlog(), 0

        try:
            row = await self._db.fetchrow(sql.queue_backlog)
        except Exception as failure:
            if not is_transient(failure):
                raise

            log_failure("the queue was not counted: the database does not answer", failure)
            return Backlog(), 0

        assert row is not None  # noqa: S101 - it counts
        n_ready, *numbers = row
        return Backlog(*numbers), n_ready


class IdleBackoff(Task):
    """Lets this process poll less often while neither it nor any other process has work.

    `tasks` are those that may run once a minute meanwhile: their work can wait, or `next_due_at` of the database
    announces it. `parts` are called with true when the rest begins, and with false when it ends: at a request, when
    something is due soon, and when the database does not answer. Notifications of other processes still arrive.
    """

    every_s = 1.0

    def __init__(self, db: Database, worker: Worker, activity: Activity, tasks: Sequence[Task]) -> None:
        super().__init__()
        self.is_resting = False
        self.parts: list[Callable[[bool], None]] = [lambda is_resting: worker.rest(is_resting=is_resting)]
        self._db = db
        self._worker = worker
        self._activity = activity
        self._tasks = {task: task.report.every_s for task in tasks}

    async def activate(self) -> Status:
        """Begin or end a rest, if it is time to."""
        try:
            due_in_s = 0.0 if self._is_used() else await self._db.fetchval(sql.seconds_until_next_due)
        except BaseException:
            self._end()
            raise

        # A request may have come while the database answered.
        if self._is_used() or (due_in_s is not None and due_in_s < REST_AT_LEAST_S):
            self._end()
        else:
            self._begin()

        return Status({"resting": int(self.is_resting)})

    def _is_used(self) -> bool:
        used_at = max(self._activity.ended_at, self._worker.ended_at)
        return bool(self._activity.open or self._worker.busy_slots) or time.monotonic() - used_at < REST_AFTER_S

    def _begin(self) -> None:
        if not self.is_resting:
            self.is_resting = True
            self.report.every_s = LOOK_EVERY_S
            self._activity.on_use = self._end

            for task, every_s in self._tasks.items():
                task.report.every_s = max(every_s, RESTING_TASKS_EVERY_S)

            for part in self.parts:
                part(True)

    def _end(self) -> None:
        if self.is_resting:
            self.is_resting = False
            self.report.every_s = self.every_s
            self._activity.on_use = None

            for task, every_s in self._tasks.items():
                task.report.every_s = every_s
                task.signal.set()

            for part in self.parts:
                part(False)
