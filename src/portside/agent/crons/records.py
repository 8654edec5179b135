"""Crons: made, found, changed and deleted. When they fire is told in `schedules`, and firing them is in `firing`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg

from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.crons.payloads import changed_payload, payload_of, refuse_bad_run, run_of
from portside.agent.crons.schedules import Schedule
from portside.agent.rows import from_row
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller, CronFilters, CronGrant
from portside.agent.types.crons import (
    Cron,
    CronCreate,
    CronFilter,
    CronPatch,
    CronSearch,
    SelectedCron,
    ThreadCronCreate,
)
from portside.agent.types.pages import Page
from portside.agent.webhooks.policy import Webhooks
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.errors import BadRequest, Invalid, NotFound
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7
from portside.kernel.queries import Query

DEFAULT_LIMIT = 10
ALL = CronFilters()
NOBODYS = CronGrant()


class CronNotFound(NotFound):
    """No cron with this id exists."""

    code = "cron_not_found"


class Crons:
    """The crons of this server; `on_change` is told when the next firing may be nearer than it was."""

    def __init__(self, db: Database, assistants: Assistants, webhooks: Webhooks, on_change: Callable[[], None]) -> None:
        self._db = db
        self._assistants = assistants
        self._webhooks = webhooks
        self._on_change = on_change

    async def create(
        self, thread_id: UUID | None, body: CronCreate | ThreadCronCreate, grant: CronGrant = NOBODYS
    ) -> Cron:
        """Make a cron. Raises Invalid, BadRequest, AssistantNotFound and ThreadNotFound."""
        schedule = Schedule(body.schedule, body.timezone)
        ends_at = None if body.end_time is None else read_end(body.end_time)
        assistant = await self._assistants.resolve(body.assistant_id)
        cron_id, metadata = grant.cron_id or uuid7(), body.metadata or {}
        payload = payload_of(body, assistant.assistant_id, cron_id)
        completed = (body.on_run_completed or "delete") if isinstance(body, CronCreate) else None
        refuse_bad_run(assistant, run_of(payload, metadata, completed))
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
        """Write a cron and tell of it; None when there was none to write."""
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
        """Change a cron; when it fires next is told anew where the change is about that.

        Raises Invalid, BadRequest, AssistantNotFound and CronNotFound.
        """
        if patch == CronPatch():
            raise BadRequest("Request body cannot be empty")
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
        refuse_bad_run(assistant, run_of(payload, metadata, completed))
        return {
            **_patched_times(before, patch),
            "assistant_id": assistant.assistant_id,
            "payload": payload,
            "metadata": metadata,
            "on_run_completed": completed,
        }

    async def delete(self, cron_id: UUID) -> None:
        """Delete a cron; the runs it made stay. Raises CronNotFound."""
        if await self._db.fetchval(sql.delete_cron, cron_id=cron_id) is None:
            raise CronNotFound("Not Found")

    async def check(self, cron_id: UUID, seen: CronFilters) -> None:
        """Raise CronNotFound unless there is such a cron among those that are seen."""
        if not await self._db.fetchval(sql.cron_fits, cron_id=cron_id, **seen._asdict()):
            raise CronNotFound("Not Found")

    async def search(self, query: CronSearch, seen: CronFilters = ALL) -> Page[SelectedCron]:
        """Find crons that match among those that are seen, newest first unless told otherwise."""
        offset = query.offset or 0
        rows = await self._db.fetch(
            sql.search_crons,
            **_matching(query),
            **seen._asdict(),
            sort_by=query.sort_by or "created_at",
            is_descending=query.sort_order != "asc",
            limit=query.limit or DEFAULT_LIMIT,
            offset=offset,
        )
        if rows or not offset:
            total = rows[0]["total"] if rows else 0
        else:
            total = await self.count(query, seen)
        return Page([_select(from_row(Cron, row), query) for row in rows], total)

    async def count(self, query: CronFilter, seen: CronFilters = ALL) -> int:
        """Count the crons that match among those that are seen."""
        counted: int = await self._db.fetchval(sql.count_crons, **_matching(query), **seen._asdict())
        return counted


def _owner(caller: Caller) -> dict[str, Any] | None:
    """Return whom the runs of a cron are for. What a person may do today says nothing of what they may do then."""
    if caller.user is None:
        return None
    return {"identity": caller.identity, "display_name": caller.display_name, "is_authenticated": True}


def _missing(exc: asyncpg.ForeignKeyViolationError, values: dict[str, Any]) -> NotFound:
    if exc.constraint_name == "crons_assistant_id_fkey":
        return AssistantNotFound("Thread or assistant not found.")
    return ThreadNotFound(f"Thread with ID '{values['thread_id']}' not found. Please verify that the thread exists.")


def read_end(text: str) -> datetime:
    """Return when a cron comes to its end; without an offset it is UTC. Raises Invalid for no moment, or a past one."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise Invalid.field(["body", "end_time"], f"Invalid end_time: '{text}' is no ISO 8601 date and time") from exc
    if moment <= now():
        raise Invalid.field(["body", "end_time"], f"Invalid end_time: '{text}' is in the past")
    return moment


def next_firing(schedule: Schedule, after: datetime, ends_at: datetime | None) -> datetime | None:
    """Return when a cron fires next; None when it has come to its end."""
    instant = schedule.next_after(after)
    return None if instant is None or (ends_at is not None and instant > ends_at) else instant


def _patched_times(before: Record, patch: CronPatch) -> dict[str, Any]:
    end_time, ends_at = before["end_time"], before["ends_at"]
    if patch.end_time is None or isinstance(patch.end_time, str):
        end_time, ends_at = patch.end_time, None if patch.end_time is None else read_end(patch.end_time)
    text = before["schedule"] if patch.schedule is None else patch.schedule
    timezone = before["timezone"] if patch.timezone is None else patch.timezone
    is_enabled = before["is_enabled"] if patch.is_enabled is None else patch.is_enabled
    times = {"schedule": text, "timezone": timezone, "end_time": end_time, "ends_at": ends_at, "is_enabled": is_enabled}
    is_rescheduled = (is_enabled and not before["is_enabled"]) or any(
        times[name] != before[name] for name in ("schedule", "timezone", "ends_at")
    )
    # Understood even if nothing changed: what was sent has to make sense.
    following = next_firing(Schedule(text, timezone), now(), ends_at)
    return {**times, "is_rescheduled": is_rescheduled, "next_run_date": following}


def _refuse_misplaced(before: Record, patch: CronPatch) -> None:
    if patch.on_run_completed is not None and before["thread_id"] is not None:
        raise refuse_field("on_run_completed", "a cron on a thread leaves its thread alone")
    if patch.multitask_strategy is not None and before["thread_id"] is None:
        raise refuse_field("multitask_strategy", "each run of this cron has a thread of its own")


def _matching(query: CronFilter) -> dict[str, Any]:
    return {name: getattr(query, name) for name in CronFilter.__struct_fields__}


def _select(cron: Cron, query: CronSearch) -> SelectedCron:
    return SelectedCron(**{name: getattr(cron, name) for name in query.select or Cron.__struct_fields__})
