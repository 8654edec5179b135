"""How much work waits, runs and fits: the numbers of the queue that operators watch (contract: `/metrics`)."""

import math

import msgspec
from prometheus_client import Gauge

from portside.agent.queue.worker import Worker
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
PENDING = Gauge("lg_api_num_pending_runs", "Runs of this database that wait to be executed.")
IN_PROGRESS = Gauge("lg_api_num_running_runs", "Runs of this database that are being executed.")
LONGEST = Gauge("lg_api_pending_runs_wait_time_max", "How long the oldest waiting run has waited, in seconds.")
MEDIAN = Gauge("lg_api_pending_runs_wait_time_med", "How long half of the waiting runs have waited, in seconds.")
LONGEST_UNBLOCKED = Gauge(
    "lg_api_pending_unblocked_runs_wait_time_max",
    "How long the oldest run has waited that no other run of its thread holds up, in seconds.",
)
AVAILABLE = Gauge("lg_api_workers_available", "Runs this process could start now.")
POOL_SIZE = Gauge("lg_api_pg_pool_size", "Connections to Postgres in the API's pool.")
POOL_MAX = Gauge("lg_api_pg_pool_max", "Connections that the API's pool may open.")
POOL_AVAILABLE = Gauge("lg_api_pg_pool_available", "Open connections that nobody uses.")


class Backlog(msgspec.Struct):
    """The queue of a database. Waiting times are in seconds. None is what could not be counted."""

    n_pending: int | None = None
    n_running: int | None = None
    pending_runs_wait_time_max_secs: float | None = None
    pending_runs_wait_time_med_secs: float | None = None
    pending_unblocked_runs_wait_time_max_secs: float | None = None


class Slots(msgspec.Struct):
    """The runs that one process may execute, executes, and could start now."""

    max: int
    active: int
    available: int


async def read_backlog(db: Database) -> Backlog:
    """Count the queue. All is None while the database does not answer: metrics are wanted then most of all."""
    if not await db.is_alive():
        log.warning("the queue was not counted: the database does not answer")
        return Backlog()
    row = await db.fetchrow(sql.queue_backlog)
    return Backlog() if row is None else Backlog(*row)


def read_slots(worker: Worker) -> Slots:
    """Count a worker's slots."""
    return Slots(worker.slots, worker.slots - worker.free_slots, worker.free_slots)


async def set_gauges(db: Database, worker: Worker) -> None:
    """Bring the metrics up to date that are counted when they are asked for."""
    backlog = await read_backlog(db)
    values = {
        PENDING: backlog.n_pending,
        IN_PROGRESS: backlog.n_running,
        LONGEST: backlog.pending_runs_wait_time_max_secs,
        MEDIAN: backlog.pending_runs_wait_time_med_secs,
        LONGEST_UNBLOCKED: backlog.pending_unblocked_runs_wait_time_max_secs,
        AVAILABLE: worker.free_slots,
        POOL_SIZE: db.pool.get_size(),
        POOL_MAX: db.pool.get_max_size(),
        POOL_AVAILABLE: db.pool.get_idle_size(),
    }
    for gauge, value in values.items():
        gauge.set(math.nan if value is None else value)
