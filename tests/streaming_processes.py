"""Processes that stream events to each other through one database, and the runs that tests stream."""

import asyncio
from uuid import uuid4

from portside.agent.streams.bus import Bus, NullBus
from portside.agent.streams.hub import AttemptStart, Hub
from portside.agent.streams.postgres_transport import PostgresTransport, WorkCallbacks
from portside.kernel.db import Database


class Statement:
    """A statement that only a test asks."""

    def __init__(self, text: str) -> None:
        self.sql = text

    def arguments(self, _values: dict) -> list:
        return []


class Process:
    """The hub and the transport of one process, by default without notifications from the others."""

    def __init__(self, db: Database, bus: Bus | None = None) -> None:
        self.hub = Hub(keep_s=60)
        self.bus = bus or NullBus()
        self.transport = PostgresTransport(
            db, self.bus, self.hub, WorkCallbacks(lambda: None, lambda: None), asyncio.Event()
        )
        self.hub.transport = self.transport


def start(**given) -> AttemptStart:
    given = {"run_id": uuid4(), "thread_id": uuid4(), "is_resumable": True, "is_temporary": False, **given}
    return AttemptStart(graph_id="g", attempt=1, **given)


async def add_run(database: Database, begun: AttemptStart, status: str = "running", attempt: int = 1) -> None:
    """Store a run and its thread. Streams of runs and threads without rows end when a process looks for these."""
    await database.execute(Statement(f"insert into threads (thread_id) values ('{begun.thread_id}')"))
    await database.execute(
        Statement(
            "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, attempt, started_at) values"
            f" ('{begun.run_id}', '{begun.thread_id}', '{uuid4()}', '{status}', 'enqueue', {attempt}, now())"
        )
    )


async def waits_for_lock(database: Database) -> bool:
    waiting = "select from pg_locks l join pg_database d on d.oid = l.database where datname = current_database()"
    return bool(await database.fetch(Statement(f"{waiting} and not granted")))
