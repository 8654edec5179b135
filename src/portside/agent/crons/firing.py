"""Fires crons when they are due.

An instant is a time at which a cron is due. Each instant creates one run, however many processes look after crons.

A process claims crons that are due, which keeps the others away for a while. It fires each in one transaction that
admits the run and moves the cron to its next instant. If the cron has already moved, the transaction is rolled back. So
a crash loses nothing and repeats nothing.

If several instants passed while no process ran, the cron fires once for all of them, or not at all if it has ended
since. A cron may fire more often than its runs can start, because its thread is busy or every slot is taken. Then only
one run of it waits; the instants in between are skipped and counted. Runs of a cron without a thread may run at the
same time.

Between activations the task sleeps until the next instant, or for as long as another process may take to notify it of a
new cron. The clock is the database's, so processes agree on what is due. If it was fast by hours and is set back, crons
are scheduled again by the new time; after a smaller correction no instant is repeated.
"""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

import msgspec

from portside.agent.assistants.records import Assistants
from portside.agent.crons.payloads import to_run_request
from portside.agent.crons.schedules import Schedule, find_next_firing
from portside.agent.encryption.codec import raise_if_undecryptable
from portside.agent.encryption.context import CONTEXT_KEY, set_context
from portside.agent.queue.types import AdmissionOutcome
from portside.agent.runs.service import Runs, ScheduledRun
from portside.agent.sql import sql
from portside.agent.types.access import Caller, Filter
from portside.agent.types.runs import MultitaskStrategy, RunCreate
from portside.executor.encryption_handlers import EncryptionFailed
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid, PortsideError, Unavailable
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
CLAIM_S = 10.0
# Each firing holds a connection of the pool.
CONCURRENT_FIRINGS = 4
MIN_DELAY_S = 0.01
# A cron that is found due this long after its end does not fire any more.
MAKE_UP_WITHIN = timedelta(minutes=1)
# A clock that is set back further than this was wrong. A smaller step must not repeat what has fired.
WRONG_CLOCK_S = 3 * 3600.0
ADMITTED = frozenset({AdmissionOutcome.PENDING, AdmissionOutcome.RUNNING})
ANONYMOUS = {"identity": "", "is_authenticated": True, "display_name": ""}


class SkipReason(StrEnum):
    """Why a cron that was due asked for no run."""

    ELSEWHERE = "elsewhere"
    FAILED = "failed"
    ENDED = "ended"
    REFUSED = "refused"
    # Its last run has not started.
    WAITING = "waiting"


FiringOutcome = AdmissionOutcome | SkipReason


class DueCron(msgspec.Struct):
    """A cron that is due, claimed by this process."""

    cron_id: UUID
    assistant_id: UUID
    thread_id: UUID | None
    user_id: str
    owner: dict[str, Any] | None
    thread_access: Filter | None
    schedule: str
    timezone: str | None
    ends_at: datetime | None
    payload: dict[str, Any]
    metadata: dict[str, Any]
    on_run_completed: str | None
    last_run_id: UUID | None
    due_at: datetime
    claimed_at: datetime

    @property
    def queued_as(self) -> str:
        """The caller for the queue: the runs of an owner's crons count apart from the owner's other runs."""
        return f"cron {Caller(identity=self.user_id).limit_key or ''}"

    @property
    def configurable(self) -> dict[str, Any]:
        """The part of each run's config that names the cron and its owner."""
        configurable: dict[str, Any] = {"cron_id": str(self.cron_id), "langgraph_auth_user_id": self.user_id}
        if self.user_id:
            configurable["user_id"] = self.user_id

        configurable["langgraph_auth_user"] = self.owner or ANONYMOUS
        configurable["langgraph_request_id"] = None

        return configurable


class FiredElsewhere(Exception):
    """The cron has moved: another process fired its instant, or a client changed it."""


class DueCrons(Task):
    """Fires crons when they are due. Safe in every process at once."""

    every_s: ClassVar[float] = 5.0
    batch: ClassVar[int] = 40

    def __init__(self, db: Database, assistants: Assistants, runs: Runs) -> None:
        super().__init__()
        self._db = db
        self._assistants = assistants
        self._runs = runs
        self._alarm: asyncio.TimerHandle | None = None

    async def activate(self) -> Status:
        """Fire one batch, and set an alarm for the next instant. On a disk that is nearly full crons wait."""
        if self._runs.worker.lacks_disk:
            return Status()

        await self._reschedule()

        rows = await self._db.fetch(sql.claim_due_crons, claim_s=CLAIM_S, limit=self.batch)
        slots = asyncio.Semaphore(CONCURRENT_FIRINGS)
        outcomes = await asyncio.gather(*(self._fire(DueCron(**dict(row)), slots) for row in rows))
        if rows:
            # The multitask strategy of a cron may have cancelled the thread's earlier run, which a worker has to stop.
            self._runs.wake_workers()

        if len(rows) < self.batch:
            await self._set_alarm()

        return Status(did=dict(Counter(outcomes)), again=len(rows) == self.batch)

    async def _reschedule(self) -> None:
        """Schedule crons again that were scheduled by a clock that was fast, and has been set back since."""
        for row in await self._db.fetch(sql.crons_of_wrong_clock, fast_by_s=WRONG_CLOCK_S, limit=self.batch):
            next_run_date = _find_next_instant(row["schedule"], row["timezone"], row["now"], row["ends_at"])
            await self._db.execute(
                sql.reschedule_cron,
                cron_id=row["cron_id"],
                was_due_at=row["next_run_date"],
                next_run_date=next_run_date,
            )

            log.warning("a cron is scheduled again: the clock was set back", cron_id=str(row["cron_id"]))

    async def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

        delay_s = await self._db.fetchval(sql.seconds_until_due, within_s=self.every_s)
        if delay_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(delay_s, MIN_DELAY_S), self.signal.set)

    async def _fire(self, cron: DueCron, slots: asyncio.Semaphore) -> FiringOutcome:
        try:
            async with slots:
                return await self._admit_or_skip(cron)
        except FiredElsewhere:
            return SkipReason.ELSEWHERE
        except Exception:
            log.exception("firing a cron failed; it is tried again", cron_id=str(cron.cron_id))
            return SkipReason.FAILED

    async def _admit_or_skip(self, cron: DueCron) -> FiringOutcome:
        """Fire a cron. If its run is refused, which another attempt would not change, skip the instant."""
        set_context(cron.payload.get(CONTEXT_KEY) or {})

        if cron.ends_at is not None and cron.claimed_at - cron.ends_at > MAKE_UP_WITHIN:
            await _advance(self._db, cron)
            return SkipReason.ENDED

        try:
            return await self._admit(cron)
        except (EncryptionFailed, Unavailable):
            # The key service or the database may answer the next attempt, so the instant is not skipped.
            raise
        except PortsideError as exc:
            log.warning("a cron's run was refused", cron_id=str(cron.cron_id), reason=str(exc))
            await _advance(self._db, cron)
            return SkipReason.REFUSED

    async def _admit(self, cron: DueCron) -> FiringOutcome:
        for document in (cron.payload, cron.metadata, cron.owner or {}):
            raise_if_undecryptable(document)

        run = to_run_request(cron.payload, cron.metadata, cron.on_run_completed)
        assistant = await self._assistants.get(cron.assistant_id)
        scheduled = ScheduledRun(
            run_id=uuid7(),
            thread_id=cron.thread_id,
            # A thread that is created for the run gets the cron's metadata; an existing one keeps its own.
            thread_metadata=cron.metadata if cron.thread_id is None else {},
            configurable=cron.configurable,
            access=cron.thread_access,
            caller=cron.queued_as,
        )

        async with self._db.transaction() as transaction:
            outcome: FiringOutcome
            if await _is_waiting(transaction, cron, run):
                outcome = SkipReason.WAITING
            else:
                outcome = await self._runs.admit_scheduled(transaction, assistant, run, scheduled)

            run_id = scheduled.run_id if outcome in ADMITTED else None
            if not await _advance(transaction, cron, run_id):
                raise FiredElsewhere

        if outcome is SkipReason.WAITING:
            log.info("a cron was skipped: its last run has not started", cron_id=str(cron.cron_id))
        elif outcome is AdmissionOutcome.BUSY:
            log.info("a cron was skipped: its thread is busy", cron_id=str(cron.cron_id))
        elif outcome is AdmissionOutcome.MISSING:
            log.warning("a cron was skipped: its owner may no longer run on its thread", cron_id=str(cron.cron_id))

        return outcome


async def _is_waiting(session: Session, cron: DueCron, run: RunCreate) -> bool:
    """Whether the cron's last run has not started yet: a second one would only make the queue longer."""
    if cron.last_run_id is None or run.multitask_strategy not in {None, MultitaskStrategy.ENQUEUE}:
        return False

    is_waiting: bool = await session.fetchval(sql.run_is_waiting, run_id=cron.last_run_id)
    return is_waiting


async def _advance(session: Session, cron: DueCron, run_id: UUID | None = None) -> bool:
    """Move a cron to its next instant; `run_id` is the run of this one. False if it was moved or deleted before."""
    cron_id = await session.fetchval(
        sql.advance_cron,
        cron_id=cron.cron_id,
        due_at=cron.due_at,
        next_run_date=_find_next_instant(cron.schedule, cron.timezone, cron.claimed_at, cron.ends_at),
        run_id=run_id,
    )
    return cron_id is not None


def _find_next_instant(
    schedule: str, timezone: str | None, after: datetime, ends_at: datetime | None
) -> datetime | None:
    """Return when a stored cron fires next; None if it has ended."""
    try:
        return find_next_firing(Schedule(schedule, timezone), after, ends_at)
    except Invalid:
        # It was valid when it was created, but its time zone is unknown on this server.
        log.warning("a cron does not fire any more: its schedule is invalid", schedule=schedule, timezone=timezone)
        return None
