"""Firing: each due cron makes one run per instant, however many processes look after them.

A process claims what is due, which keeps the others away for a while, and fires each in one transaction that admits
the run and moves the cron on to its next instant. If the cron has moved already, the transaction is undone. So a crash
loses nothing and doubles nothing. Instants that passed while no process ran are made up for once, not one by one, and
not any more when the cron's end is past as well. Where a cron comes more often than its runs can begin, because its
thread is busy or every slot is taken, one run of it waits and no second one: the instants between are skipped, and
counted. Runs that have begun wait for nobody: those of a cron without a thread may run side by side.

Between activations the task sleeps until the next instant, or for as long as another process may go without telling it
of a new cron. The clock is the database's: the processes agree on what is due.
"""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import msgspec

from portside.agent.assistants.records import Assistants
from portside.agent.crons.payloads import run_of
from portside.agent.crons.records import next_firing
from portside.agent.crons.schedules import Schedule
from portside.agent.encryption.context import KEPT_AS, set_context
from portside.agent.runs.service import Runs, Scheduled
from portside.agent.sql import sql
from portside.agent.types.access import Filter
from portside.agent.types.runs import RunCreate
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid, PortsideError
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
CLAIM_S = 10.0
FIRED_AT_ONCE = 4
LEAST_DELAY_S = 0.01
MADE_UP_WITHIN = timedelta(minutes=1)
ADMITTED = frozenset({"pending", "running"})
NOBODY = {"identity": "", "is_authenticated": True, "display_name": ""}


class DueCron(msgspec.Struct):
    """A cron whose instant has come, claimed by this process."""

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


class FiredElsewhere(Exception):
    """The cron has moved on: its instant was fired by another process, or taken back."""


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
        """Fire one batch, and wake up in time for the next instant."""
        rows = await self._db.fetch(sql.claim_due_crons, claim_s=CLAIM_S, limit=self.batch)
        several = asyncio.Semaphore(FIRED_AT_ONCE)
        outcomes = await asyncio.gather(*(self._fire(DueCron(**dict(row)), several) for row in rows))
        if rows:
            # A strategy of a cron on a thread may have cancelled the run before.
            self._runs.tell_workers()
        if len(rows) < self.batch:
            await self._set_alarm()
        return Status(did=dict(Counter(outcomes)), again=len(rows) == self.batch)

    async def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = await self._db.fetchval(sql.seconds_until_due, within_s=self.every_s)
        if delay_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(delay_s, LEAST_DELAY_S), self.signal.set)

    async def _fire(self, cron: DueCron, several: asyncio.Semaphore) -> str:
        try:
            async with several:
                return await self._admit_or_skip(cron)
        except FiredElsewhere:
            return "elsewhere"
        except Exception:
            log.exception("firing a cron failed; it is tried again", cron_id=str(cron.cron_id))
            return "failed"

    async def _admit_or_skip(self, cron: DueCron) -> str:
        """Fire a cron. One whose run would be refused at each attempt is skipped until its next instant."""
        set_context(cron.payload.get(KEPT_AS) or {})
        if cron.ends_at is not None and cron.claimed_at > cron.ends_at + MADE_UP_WITHIN:
            await _advance(self._db, cron)
            return "ended"
        try:
            return await self._admit(cron)
        except PortsideError as exc:
            log.warning("a cron's run was refused", cron_id=str(cron.cron_id), reason=str(exc))
            await _advance(self._db, cron)
            return "refused"

    async def _admit(self, cron: DueCron) -> str:
        run = run_of(cron.payload, cron.metadata, cron.on_run_completed)
        assistant = await self._assistants.get(cron.assistant_id)
        owner = {"user_id": cron.user_id, "langgraph_auth_user_id": cron.user_id}
        asker = {"langgraph_auth_user": cron.owner or NOBODY, "langgraph_request_id": None}
        configurable = {"cron_id": str(cron.cron_id), **owner, **asker}
        # A thread made for the run is told what it is for; one that was there keeps its own metadata.
        thread_metadata = cron.metadata if cron.thread_id is None else {}
        scheduled = Scheduled(uuid7(), cron.thread_id, thread_metadata, configurable, cron.thread_access)
        async with self._db.transaction() as transaction:
            if await _is_waiting(transaction, cron, run):
                outcome = "waiting"
            else:
                outcome = await self._runs.admit_scheduled(transaction, assistant, run, scheduled)
            if not await _advance(transaction, cron, scheduled.run_id if outcome in ADMITTED else None):
                raise FiredElsewhere
        if outcome == "waiting":
            log.info("a cron was skipped: its last run still waits", cron_id=str(cron.cron_id))
        if outcome == "busy":
            log.info("a cron was skipped: its thread is busy", cron_id=str(cron.cron_id))
        if outcome == "missing":
            log.warning("a cron was skipped: its owner may not run on its thread any more", cron_id=str(cron.cron_id))
        return outcome


async def _is_waiting(session: Session, cron: DueCron, run: RunCreate) -> bool:
    """Whether the cron's last run has not begun yet; a second one would only make the queue longer."""
    if cron.last_run_id is None or run.multitask_strategy not in {None, "enqueue"}:
        return False
    is_waiting: bool = await session.fetchval(sql.run_is_waiting, run_id=cron.last_run_id)
    return is_waiting


async def _advance(session: Session, cron: DueCron, run_id: UUID | None = None) -> bool:
    """Move a cron on from an instant, at which it made this run or none; False when it is not there any more."""
    try:
        following = next_firing(Schedule(cron.schedule, cron.timezone), cron.claimed_at, cron.ends_at)
    except Invalid:
        # It was understood when it was made; time zones may be given up since.
        following = None
    moved = await session.fetchval(
        sql.advance_cron, cron_id=cron.cron_id, due_at=cron.due_at, next_run_date=following, run_id=run_id
    )
    return moved is not None
