"""Looking for the states of threads: those that are asked for in one moment are one statement."""

from typing import NamedTuple
from uuid import UUID

from portside.agent.sql import sql
from portside.kernel.db import Database, Record
from portside.kernel.trips import SharedTrips

# How many statements may be under way for those who know a stamp, and most likely hear that it stands: one takes them
# all along, which costs Postgres half of what two do. The others may be sent much, and should not wait for each other.
KNOWING_AT_ONCE, OTHERS_AT_ONCE = 1, 2
# Checkpoints may be large, and those of one statement are in memory together.
TOGETHER = 16


class Ask(NamedTuple):
    """Which checkpoint is looked for, the latest where none is named, and the stamp of what is known of it."""

    thread_id: UUID
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    known: str | None = None


class Found(NamedTuple):
    """What is there of a thread: its graph, and its checkpoint with a stamp of that.

    The stamp changes whenever the checkpoint, its pending writes or the graph do; None is a state that more belongs to.
    `row` is None where the stamp is known, or no such checkpoint is there.
    """

    graph_id: str | None
    stamp: str | None
    row: Record | None


Trips = SharedTrips[Ask, Found | None]


class Lookups:
    """Looks for states, for all who ask on one event loop."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._knowing: Trips = SharedTrips(self._fetch, at_once=KNOWING_AT_ONCE, most=TOGETHER)
        self._others: Trips = SharedTrips(self._fetch, at_once=OTHERS_AT_ONCE, most=TOGETHER)

    async def look(self, ask: Ask) -> Found | None:
        """Return what is there; None where there is no such thread."""
        if self._db.codec is not None:
            # What one thread's key does not open must not fail the others.
            return (await self._fetch([ask]))[0]
        return await (self._others if ask.known is None else self._knowing).ask(ask)

    async def _fetch(self, asks: list[Ask]) -> list[Found | None]:
        columns: list[list[object]] = [list(column) for column in zip(*asks, strict=True)]
        names = ("thread_ids", "namespaces", "checkpoint_ids", "known")
        rows = await self._db.fetch(sql.read_states, **dict(zip(names, columns, strict=True)))
        found: list[Found | None] = [None] * len(asks)
        for row in rows:
            tuple_row = row if row["checkpoint_id"] is not None else None
            found[row["place"] - 1] = Found(row["graph_id"], row["stamp"], tuple_row)
        return found
