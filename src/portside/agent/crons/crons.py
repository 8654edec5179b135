"""Crons: their records and schedules, and firing them.

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

A schedule has five fields, six with seconds first, or a name like `@daily`, in a time zone. A schedule that names hours
follows local time: if the clock skips a time in spring, the cron fires right after the gap, and at a time that occurs
twice in autumn it fires the first time only. A schedule for every hour follows real time. cronsim parses the fields;
this module adds the names, the time zones and these two rules.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

import asyncpg
import msgspec
from cronsim import CronSim, CronSimError

from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.encryption.codec import raise_if_undecryptable
from portside.agent.encryption.context import CONTEXT_KEY, set_context, stored_context
from portside.agent.rows import SearchPage, from_row
from portside.agent.runs.requests import RunIds, refuse_unsupported, run_kwargs
from portside.agent.runs.service import Runs, ScheduledRun
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller, CronFilters, CronGrant, Filter
from portside.agent.types.assistants import Assistant
from portside.agent.types.crons import (
    Cron,
    CronCreate,
    CronFilter,
    CronPatch,
    CronPreview,
    CronRun,
    CronSearch,
    CronTimes,
    SelectedCron,
    ThreadCronCreate,
)
from portside.agent.types.runs import RunCreate
from portside.agent.webhooks.policy import Webhooks
from portside.executor.encryption import EncryptionFailed
from portside.kernel.clock import in_utc, now
from portside.kernel.db import Database, Query, Record, Session
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotFound, PortsideError, Unavailable
from portside.kernel.http.decode import convert
from portside.kernel.http.routes import refuse_field
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
ADMITTED = frozenset({"pending", "running"})
ANONYMOUS = {"identity": "", "is_authenticated": True, "display_name": ""}


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
            following = _following(row["schedule"], row["timezone"], row["now"], row["ends_at"])
            await self._db.execute(
                sql.reschedule_cron,
                cron_id=row["cron_id"],
                was_due_at=row["next_run_date"],
                next_run_date=following,
            )

            log.warning("a cron is scheduled again: the clock was set back", cron_id=str(row["cron_id"]))

    async def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

        delay_s = await self._db.fetchval(sql.seconds_until_due, within_s=self.every_s)
        if delay_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(delay_s, MIN_DELAY_S), self.signal.set)

    async def _fire(self, cron: DueCron, slots: asyncio.Semaphore) -> str:
        try:
            async with slots:
                return await self._admit_or_skip(cron)
        except FiredElsewhere:
            return "elsewhere"
        except Exception:
            log.exception("firing a cron failed; it is tried again", cron_id=str(cron.cron_id))
            return "failed"

    async def _admit_or_skip(self, cron: DueCron) -> str:
        """Fire a cron. If its run is refused, which another attempt would not change, skip the instant."""
        set_context(cron.payload.get(CONTEXT_KEY) or {})
        if cron.ends_at is not None and cron.claimed_at - cron.ends_at > MAKE_UP_WITHIN:
            await _advance(self._db, cron)
            return "ended"

        try:
            return await self._admit(cron)
        except (EncryptionFailed, Unavailable):
            # The key service or the database may answer the next attempt, so the instant is not skipped.
            raise
        except PortsideError as exc:
            log.warning("a cron's run was refused", cron_id=str(cron.cron_id), reason=str(exc))
            await _advance(self._db, cron)
            return "refused"

    async def _admit(self, cron: DueCron) -> str:
        for kept in (cron.payload, cron.metadata, cron.owner or {}):
            raise_if_undecryptable(kept)

        run = to_run_request(cron.payload, cron.metadata, cron.on_run_completed)
        assistant = await self._assistants.get(cron.assistant_id)
        owner = {"langgraph_auth_user_id": cron.user_id, **({"user_id": cron.user_id} if cron.user_id else {})}
        request = {"langgraph_auth_user": cron.owner or ANONYMOUS, "langgraph_request_id": None}
        configurable = {"cron_id": str(cron.cron_id), **owner, **request}

        # A thread that is created for the run gets the cron's metadata; an existing one keeps its own.
        thread_metadata = cron.metadata if cron.thread_id is None else {}
        scheduled = ScheduledRun(
            uuid7(), cron.thread_id, thread_metadata, configurable, cron.thread_access, _queued_as(cron)
        )

        async with self._db.transaction() as transaction:
            if await _is_waiting(transaction, cron, run):
                outcome = "waiting"
            else:
                outcome = await self._runs.admit_scheduled(transaction, assistant, run, scheduled)

            if not await _advance(transaction, cron, scheduled.run_id if outcome in ADMITTED else None):
                raise FiredElsewhere

        if outcome == "waiting":
            log.info("a cron was skipped: its last run has not started", cron_id=str(cron.cron_id))

        if outcome == "busy":
            log.info("a cron was skipped: its thread is busy", cron_id=str(cron.cron_id))

        if outcome == "missing":
            log.warning("a cron was skipped: its owner may no longer run on its thread", cron_id=str(cron.cron_id))

        return outcome


def _queued_as(cron: DueCron) -> str:
    """Return the caller for the queue: the runs of an owner's crons count apart from the owner's other runs."""
    return f"cron {Caller(identity=cron.user_id).limit_key or ''}"


async def _is_waiting(session: Session, cron: DueCron, run: RunCreate) -> bool:
    """Whether the cron's last run has not started yet: a second one would only make the queue longer."""
    if cron.last_run_id is None or run.multitask_strategy not in {None, "enqueue"}:
        return False

    is_waiting: bool = await session.fetchval(sql.run_is_waiting, run_id=cron.last_run_id)
    return is_waiting


async def _advance(session: Session, cron: DueCron, run_id: UUID | None = None) -> bool:
    """Move a cron to its next instant; `run_id` is the run of this one. False if it was moved or deleted before."""
    following = _following(cron.schedule, cron.timezone, cron.claimed_at, cron.ends_at)
    moved = await session.fetchval(
        sql.advance_cron, cron_id=cron.cron_id, due_at=cron.due_at, next_run_date=following, run_id=run_id
    )
    return moved is not None


def _following(schedule: str, timezone: str | None, after: datetime, ends_at: datetime | None) -> datetime | None:
    """Return when a stored cron fires next; None if it has ended."""
    try:
        return next_firing(Schedule(schedule, timezone), after, ends_at)
    except Invalid:
        # It was valid when it was created, but its time zone is unknown on this server.
        log.warning("a cron does not fire any more: its schedule is invalid", schedule=schedule, timezone=timezone)
        return None


DEFAULT_LIMIT = 10
PREVIEWED = 5
NO_FILTER = CronFilters()
UNRESTRICTED = CronGrant()
NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_HOUR = set(range(24))
NIL_ID = UUID(int=0)
RUN_FIELDS = frozenset(RunCreate.__struct_fields__)


class CronNotFound(NotFound):
    """No cron with this id exists."""

    code = "cron_not_found"


class CronIsPaused(Conflict):
    """The cron is paused or has ended. Resume it first, or move its end."""

    code = "cron_is_paused"


class Schedule:
    """A valid schedule. Raises Invalid if it is not valid, or never fires."""

    def __init__(self, text: str, timezone: str | None = None) -> None:
        self._zone = read_zone(timezone)
        self._fields = NAMES.get(text.strip().lower(), text)
        try:
            counts_real_time = CronSim(self._fields, datetime.now(UTC)).hours == EVERY_HOUR
        except CronSimError as exc:
            raise _refuse(text, str(exc)) from exc

        self._counts_local_time = self._zone is not UTC and not counts_real_time
        if self.next_after(datetime.now(UTC)) is None:
            raise _refuse(text, "it never fires")

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first instant after an aware time, in UTC; None if there is none within fifty years."""
        candidates = self._local_instants(moment) if self._counts_local_time else self._real_instants(moment)
        return next((instant for instant in candidates if instant > moment), None)

    def _real_instants(self, moment: datetime) -> Iterator[datetime]:
        for instant in CronSim(self._fields, moment.astimezone(self._zone)):
            yield instant.astimezone(UTC)

    def _local_instants(self, moment: datetime) -> Iterator[datetime]:
        for shown in CronSim(self._fields, moment.astimezone(self._zone).replace(tzinfo=None, fold=0)):
            yield _first_instant(shown.replace(tzinfo=self._zone))


def to_payload(body: CronRun, assistant_id: UUID, cron_id: UUID) -> dict[str, Any]:
    """Return the body as the client sent it, with the assistant's id, and the cron's id in the config of each run."""
    payload: dict[str, Any] = msgspec.to_builtins(body)
    if "is_enabled" in payload:
        payload["enabled"] = payload.pop("is_enabled")

    payload["assistant_id"] = str(assistant_id)
    return _with_cron_id(payload, cron_id)


def changed_payload(payload: dict[str, Any], patch: CronRun, assistant_id: UUID, cron_id: UUID) -> dict[str, Any]:
    """Return the payload with the fields of a patch replaced."""
    changed = {**payload, **to_payload(patch, assistant_id, cron_id)}
    if patch.config is None:
        changed["config"] = payload["config"]

    return {name: value for name, value in changed.items() if name != "end_time" or value is not None}


def _with_cron_id(payload: dict[str, Any], cron_id: UUID) -> dict[str, Any]:
    config = payload.get("config", {})
    configurable = {**config.get("configurable", {}), "cron_id": str(cron_id)}
    return {**payload, "config": {**config, "configurable": configurable}, **stored_context()}


def to_run_request(payload: dict[str, Any], metadata: dict[str, Any], on_run_completed: str | None) -> RunCreate:
    """Return the request for each run of a cron, without the cron's id, which the client did not send.

    Raises Invalid if another version, which supported more, stored the payload.
    """
    config = payload["config"]
    own = {name: value for name, value in config["configurable"].items() if name != "cron_id"}
    fields = {name: value for name, value in payload.items() if name in RUN_FIELDS}
    fields |= {"metadata": metadata, "on_completion": on_run_completed, "config": {**config, "configurable": own}}
    run: RunCreate = convert(fields, RunCreate, "body")

    return run


def refuse_bad_run(assistant: Assistant, run: RunCreate) -> None:
    """Refuse a cron whose runs would all be refused. Raises Invalid and BadRequest."""
    refuse_unsupported(run)
    run_kwargs(assistant, run, RunIds(NIL_ID, NIL_ID, ""), {})


class Crons:
    """The crons of this server. `on_change` is called when the next firing may be earlier than it was."""

    def __init__(self, db: Database, assistants: Assistants, webhooks: Webhooks, on_change: Callable[[], None]) -> None:
        self._db = db
        self._assistants = assistants
        self._webhooks = webhooks
        self._on_change = on_change

    async def create(
        self, thread_id: UUID | None, body: CronCreate | ThreadCronCreate, grant: CronGrant = UNRESTRICTED
    ) -> Cron:
        """Create a cron. Raises Invalid, BadRequest, AssistantNotFound and ThreadNotFound."""
        schedule = Schedule(body.schedule, body.timezone)
        ends_at = None if body.end_time is None else read_end(body.end_time)
        assistant = await self._assistants.resolve(body.assistant_id)
        cron_id = grant.cron_id or uuid7()
        metadata = body.metadata or {}
        payload = to_payload(body, assistant.assistant_id, cron_id)
        completed = (body.on_run_completed or "delete") if isinstance(body, CronCreate) else None

        refuse_bad_run(assistant, to_run_request(payload, metadata, completed))
        if body.webhook is not None:
            await self._webhooks.policy.check(body.webhook)

        cron = await self._write(
            sql.insert_cron,
            cron_id=cron_id,
            assistant_id=assistant.assistant_id,
            thread_id=thread_id,
            user_id=grant.caller.identity,
            owner=_owner(grant.caller),
            thread_access=grant.thread,
            schedule=body.schedule,
            timezone=body.timezone,
            end_time=body.end_time,
            ends_at=ends_at,
            payload=payload,
            metadata=metadata,
            on_run_completed=completed,
            is_enabled=body.is_enabled is not False,
            next_run_date=next_firing(schedule, now(), ends_at),
        )

        assert cron is not None  # noqa: S101 - an insert returns its row
        return cron

    async def _write(self, query: Query, **values: Any) -> Cron | None:
        """Write a cron and call `on_change`; None if the statement wrote no row."""
        try:
            row = await self._db.fetchrow(query, **values)
        except asyncpg.ForeignKeyViolationError as exc:
            raise _missing(exc, values) from exc

        self._on_change()
        return None if row is None else from_row(Cron, row)

    async def get(self, cron_id: UUID) -> Cron:
        """Return a cron. Raises CronNotFound."""
        return from_row(Cron, await self._read(cron_id, "Not Found"))

    async def _read(self, cron_id: UUID, missing: str) -> Record:
        row = await self._db.fetchrow(sql.get_cron, cron_id=cron_id)
        if row is None:
            raise CronNotFound(missing)

        return row

    async def patch(self, cron_id: UUID, patch: CronPatch) -> Cron:
        """Change a cron. Its next firing is computed again if the change affects it.

        Raises Invalid, BadRequest, AssistantNotFound and CronNotFound.
        """
        if patch == CronPatch():
            raise BadRequest("Request body cannot be empty")

        if isinstance(patch.webhook, str):
            await self._webhooks.policy.check(patch.webhook)

        while True:
            before = await self._read(cron_id, f"Cron '{cron_id}' not found")
            values = await self._patched(before, patch)

            after = await self._write(sql.change_cron, cron_id=cron_id, version=before["version"], **values)
            if after is not None:
                return after

    async def _patched(self, before: Record, patch: CronPatch) -> dict[str, Any]:
        _refuse_misplaced(before, patch)
        assistant = await self._assistants.resolve(patch.assistant_id or str(before["assistant_id"]))
        payload = changed_payload(before["payload"], patch, assistant.assistant_id, before["cron_id"])
        metadata = {**before["metadata"], **(patch.metadata or {})}
        completed = patch.on_run_completed or before["on_run_completed"]

        refuse_bad_run(assistant, to_run_request(payload, metadata, completed))
        return {
            **_patched_times(before, patch),
            "assistant_id": assistant.assistant_id,
            "payload": payload,
            "metadata": metadata,
            "on_run_completed": completed,
        }

    async def run_now(self, cron_id: UUID) -> Cron:
        """Make a cron due at once; its schedule stays. Raises CronNotFound, and CronIsPaused also if it has ended."""
        cron = await self._write(sql.make_cron_due, cron_id=cron_id)
        if cron is None:
            await self._read(cron_id, "Not Found")
            raise CronIsPaused

        return cron

    async def delete(self, cron_id: UUID) -> None:
        """Delete a cron; the runs it made stay. Raises CronNotFound."""
        if await self._db.fetchval(sql.delete_cron, cron_id=cron_id) is None:
            raise CronNotFound("Not Found")

    async def check(self, cron_id: UUID, filters: CronFilters) -> None:
        """Raise CronNotFound unless the cron passes the filters."""
        if not await self._db.fetchval(sql.cron_matches, cron_id=cron_id, **filters._asdict()):
            raise CronNotFound("Not Found")

    async def search(self, query: CronSearch, filters: CronFilters = NO_FILTER) -> SearchPage[SelectedCron]:
        """Find matching crons that pass the filters, newest first by default."""
        offset = query.offset or 0
        rows = await self._db.fetch(
            sql.search_crons,
            **_matching(query),
            **filters._asdict(),
            sort_by=query.sort_by or "created_at",
            is_descending=query.sort_order != "asc",
            limit=query.limit or DEFAULT_LIMIT,
            offset=offset,
        )
        if rows or not offset:
            total = rows[0]["total"] if rows else 0
        else:
            total = await self.count(query, filters)

        return SearchPage([_select(from_row(Cron, row), query) for row in rows], total)

    async def count(self, query: CronFilter, filters: CronFilters = NO_FILTER) -> int:
        """Count the matching crons that pass the filters."""
        counted: int = await self._db.fetchval(sql.count_crons, **_matching(query), **filters._asdict())
        return counted


def _owner(caller: Caller) -> dict[str, Any] | None:
    """Return the user that the runs of a cron belong to, without permissions: these may change until it fires."""
    if caller.user is None:
        return None
    return {"identity": caller.identity, "display_name": caller.display_name, "is_authenticated": True}


def _missing(exc: asyncpg.ForeignKeyViolationError, values: dict[str, Any]) -> NotFound:
    if exc.constraint_name == "crons_assistant_id_fkey":
        return AssistantNotFound("Thread or assistant not found.")
    return ThreadNotFound(f"Thread with ID '{values['thread_id']}' not found. Please verify that the thread exists.")


def read_end(text: str) -> datetime:
    """Parse the end of a cron, in UTC unless it has an offset. Raises Invalid unless it is a future ISO 8601 time."""
    try:
        moment = in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as exc:
        raise Invalid.field(
            ["body", "end_time"], f"Invalid end_time: '{text}' is not an ISO 8601 date and time"
        ) from exc

    if moment <= now():
        raise Invalid.field(["body", "end_time"], f"Invalid end_time: '{text}' is in the past")

    return moment


def next_firing(schedule: Schedule, after: datetime, ends_at: datetime | None) -> datetime | None:
    """Return when a cron fires next; None if it has ended."""
    instant = schedule.next_after(after)
    return None if instant is None or (ends_at is not None and instant > ends_at) else instant


def preview(query: CronPreview) -> CronTimes:
    """Return the next times of a schedule, fewer if it ends before. Raises Invalid."""
    schedule = Schedule(query.schedule, query.timezone)
    zone = read_zone(query.timezone)

    ends_at = None if query.end_time is None else read_end(query.end_time)
    found: list[str] = []
    moment = now()
    while len(found) < (query.count or PREVIEWED) and (following := next_firing(schedule, moment, ends_at)):
        found.append(following.astimezone(zone).isoformat())
        moment = following

    return CronTimes(query.timezone or "UTC", found)


def _patched_times(before: Record, patch: CronPatch) -> dict[str, Any]:
    end_time = before["end_time"]
    ends_at = before["ends_at"]

    if patch.end_time is None or isinstance(patch.end_time, str):
        end_time = patch.end_time
        ends_at = None if patch.end_time is None else read_end(patch.end_time)

    text = before["schedule"] if patch.schedule is None else patch.schedule
    timezone = before["timezone"] if patch.timezone is None else patch.timezone
    is_enabled = before["is_enabled"] if patch.is_enabled is None else patch.is_enabled
    times = {"schedule": text, "timezone": timezone, "end_time": end_time, "ends_at": ends_at, "is_enabled": is_enabled}
    is_rescheduled = (is_enabled and not before["is_enabled"]) or any(
        times[name] != before[name] for name in ("schedule", "timezone", "ends_at")
    )

    # Parsed even if nothing changed, so that an invalid schedule is refused.
    following = next_firing(Schedule(text, timezone), now(), ends_at)
    return {**times, "is_rescheduled": is_rescheduled, "next_run_date": following}


def _refuse_misplaced(before: Record, patch: CronPatch) -> None:
    if patch.on_run_completed is not None and before["thread_id"] is not None:
        raise refuse_field("on_run_completed", "a cron on a thread never deletes its thread")
    if patch.multitask_strategy is not None and before["thread_id"] is None:
        raise refuse_field("multitask_strategy", "each run of this cron has a thread of its own")


def _matching(query: CronFilter) -> dict[str, Any]:
    return {name: getattr(query, name) for name in CronFilter.__struct_fields__}


def _select(cron: Cron, query: CronSearch) -> SelectedCron:
    return SelectedCron(**{name: getattr(cron, name) for name in query.select or Cron.__struct_fields__})


def read_zone(name: str | None) -> tzinfo:
    """Return the time zone of an IANA name, UTC for None. Raises Invalid."""
    if name is None or name == "UTC":
        return UTC

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        message = f"Invalid timezone: '{name}'. Use an IANA name such as 'Europe/Berlin'"
        raise Invalid.field(["body", "timezone"], message) from exc


def _first_instant(shown: datetime) -> datetime:
    """Return when a clock first shows this local time; if it never does, the end of the gap that contains it."""
    while (instant := shown.astimezone(UTC)).astimezone(shown.tzinfo).replace(tzinfo=None) != shown.replace(
        tzinfo=None
    ):
        shown += timedelta(minutes=1)

    return instant


def _refuse(text: str, reason: str) -> Invalid:
    return Invalid.field(["body", "schedule"], f"Invalid cron schedule: '{text}'. Reason: {reason}")
