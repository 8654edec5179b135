"""Crons: created, found, changed and deleted. `firing` makes them run."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg

from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.crons.payloads import patch_payload, refuse_bad_run, to_payload, to_run_request
from portside.agent.crons.schedules import Schedule, find_next_firing, parse_end
from portside.agent.rows import SearchPage, from_row
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
from portside.agent.webhooks.policy import Webhooks
from portside.kernel.clock import now
from portside.kernel.db import Database, Query, Record
from portside.kernel.errors import BadRequest, Conflict, NotFound
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7

DEFAULT_LIMIT = 10
NO_FILTER = CronFilters()
UNRESTRICTED = CronGrant()


class CronNotFound(NotFound):
    """No cron with this id exists."""

    code = "cron_not_found"


class CronExists(Conflict):
    """A cron with this id exists already; leave cron_id out to get a new one."""

    code = "cron_exists"


class CronIsPaused(Conflict):
    """The cron is paused or has ended. Resume it first, or move its end."""

    code = "cron_is_paused"


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
        """Create a cron. Raises Invalid, BadRequest, AssistantNotFound, ThreadNotFound and CronExists."""
        schedule = Schedule(body.schedule, body.timezone)
        ends_at = None if body.end_time is None else parse_end(body.end_time)

        assistant = await self._assistants.resolve(body.assistant_id)
        cron_id = grant.cron_id or body.cron_id or uuid7()
        metadata = body.metadata or {}
        payload = to_payload(body, assistant.assistant_id, cron_id)

        # A cron on a thread never deletes its thread.
        on_run_completed = (body.on_run_completed or "delete") if isinstance(body, CronCreate) else None
        refuse_bad_run(assistant, to_run_request(payload, metadata, on_run_completed))
        if body.webhook is not None:
            await self._webhooks.policy.check(body.webhook)

        cron = await self._write(
            sql.insert_cron,
            cron_id=cron_id,
            assistant_id=assistant.assistant_id,
            thread_id=thread_id,
            user_id=grant.caller.identity,
            owner=_to_owner(grant.caller),
            thread_access=grant.thread,
            schedule=body.schedule,
            timezone=body.timezone,
            end_time=body.end_time,
            ends_at=ends_at,
            payload=payload,
            metadata=metadata,
            on_run_completed=on_run_completed,
            is_enabled=body.is_enabled is not False,
            next_run_date=find_next_firing(schedule, now(), ends_at),
        )

        if cron is None:
            raise CronExists(f"Cron '{cron_id}' already exists")

        return cron

    async def _write(self, query: Query, **values: Any) -> Cron | None:
        """Write a cron and call `on_change`; None if the statement wrote no row."""
        try:
            row = await self._db.fetchrow(query, **values)
        except asyncpg.ForeignKeyViolationError as exc:
            raise _to_not_found(exc, values) from exc

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
            values = await self._build_change(before, patch)
            after = await self._write(sql.change_cron, cron_id=cron_id, version=before["version"], **values)
            if after is not None:
                return after

    async def _build_change(self, before: Record, patch: CronPatch) -> dict[str, Any]:
        _refuse_misplaced(before, patch)
        assistant = await self._assistants.resolve(patch.assistant_id or str(before["assistant_id"]))
        payload = patch_payload(before["payload"], patch, assistant.assistant_id, before["cron_id"])
        metadata = {**before["metadata"], **(patch.metadata or {})}
        on_run_completed = patch.on_run_completed or before["on_run_completed"]
        refuse_bad_run(assistant, to_run_request(payload, metadata, on_run_completed))

        return {
            **_patch_times(before, patch),
            "assistant_id": assistant.assistant_id,
            "payload": payload,
            "metadata": metadata,
            "on_run_completed": on_run_completed,
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
            **_to_parameters(query),
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

        crons = [_select(from_row(Cron, row), query) for row in rows]
        return SearchPage(crons, total)

    async def count(self, query: CronFilter, filters: CronFilters = NO_FILTER) -> int:
        """Count the matching crons that pass the filters."""
        total: int = await self._db.fetchval(sql.count_crons, **_to_parameters(query), **filters._asdict())
        return total


def _to_owner(caller: Caller) -> dict[str, Any] | None:
    """Return the user that the runs of a cron belong to, without permissions: these may change until it fires."""
    if caller.user is None:
        return None
    return {"identity": caller.identity, "display_name": caller.display_name, "is_authenticated": True}


def _to_not_found(exc: asyncpg.ForeignKeyViolationError, values: dict[str, Any]) -> NotFound:
    """Return the error of a cron whose assistant or thread was deleted meanwhile."""
    if exc.constraint_name == "crons_assistant_id_fkey":
        return AssistantNotFound("Thread or assistant not found.")
    return ThreadNotFound(f"Thread with ID '{values['thread_id']}' not found. Please verify that the thread exists.")


def _patch_times(before: Record, patch: CronPatch) -> dict[str, Any]:
    """Return the columns that say when a changed cron fires, and whether its next firing has to be computed again."""
    schedule = before["schedule"] if patch.schedule is None else patch.schedule
    timezone = before["timezone"] if patch.timezone is None else patch.timezone
    is_enabled = before["is_enabled"] if patch.is_enabled is None else patch.is_enabled

    if patch.end_time is None:
        end_time = None
        ends_at = None
    elif isinstance(patch.end_time, str):
        end_time = patch.end_time
        ends_at = parse_end(patch.end_time)
    else:
        end_time = before["end_time"]
        ends_at = before["ends_at"]

    is_resumed = is_enabled and not before["is_enabled"]
    times_before = (before["schedule"], before["timezone"], before["ends_at"])
    is_rescheduled = is_resumed or (schedule, timezone, ends_at) != times_before

    return {
        "schedule": schedule,
        "timezone": timezone,
        "end_time": end_time,
        "ends_at": ends_at,
        "is_enabled": is_enabled,
        "is_rescheduled": is_rescheduled,
        # Computed even if nothing changed, so that an invalid schedule is refused.
        "next_run_date": find_next_firing(Schedule(schedule, timezone), now(), ends_at),
    }


def _refuse_misplaced(before: Record, patch: CronPatch) -> None:
    if patch.on_run_completed is not None and before["thread_id"] is not None:
        raise refuse_field("on_run_completed", "a cron on a thread never deletes its thread")
    if patch.multitask_strategy is not None and before["thread_id"] is None:
        raise refuse_field("multitask_strategy", "each run of this cron has a thread of its own")


def _to_parameters(query: CronFilter) -> dict[str, Any]:
    return {name: getattr(query, name) for name in CronFilter.__struct_fields__}


def _select(cron: Cron, query: CronSearch) -> SelectedCron:
    return SelectedCron(**{name: getattr(cron, name) for name in query.select or Cron.__struct_fields__})
