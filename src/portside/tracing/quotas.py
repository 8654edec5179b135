"""Usage limits that workspaces set themselves: traces, and long-lived traces, in a month.

Whether a limit is reached is looked up once a minute, so limits hold approximately and cost ingest nothing. A batch is
refused as a whole, because new traces in it are not known before it is stored.
"""

import time
from datetime import datetime
from typing import Annotated, ClassVar, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Database, Session
from portside.kernel.errors import NotFound, TooManyRequests
from portside.kernel.ids import uuid7
from portside.tracing.sql import sql

TRACES = "monthly_traces"
LONGLIVED = "monthly_longlived_traces"
LimitType = Literal["monthly_traces", "monthly_longlived_traces"]
CACHE_S = 60.0
_REASON = "tenant exceeded usage limits: "


class TracesLimitReached(TooManyRequests):
    """The workspace has reached its own limit of traces for this month; raise the usage limit."""

    code = "usage_limit_reached"
    error: ClassVar[str | None] = f"Too many requests: {_REASON}Monthly unique traces usage limit exceeded"


class LonglivedLimitReached(TooManyRequests):
    """The workspace's limit of long-lived traces is reached; raise it, or send `extend_trace_retention: false`."""

    code = "longlived_limit_reached"
    error: ClassVar[str | None] = f"Too many requests: {_REASON}Monthly longlived traces usage limit exceeded"


class UsageLimitNotFound(NotFound):
    """The workspace has no usage limit with this id."""

    code = "usage_limit_not_found"


class UsageLimitRequest(msgspec.Struct):
    """A limit to set."""

    limit_type: LimitType
    limit_value: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000)]


class UsageLimit(msgspec.Struct):
    """A usage limit of a workspace."""

    id: UUID
    tenant_id: UUID
    limit_type: str
    limit_value: int
    created_at: datetime
    updated_at: datetime


class UsageState(msgspec.Struct):
    """Whether new traces are refused, and by which limit."""

    in_reject_set: bool
    usage_limit_type: str | None = None
    tenant_limit: int | None = None


class Quotas:
    """Caches which limits each workspace has reached."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._cached: dict[UUID, tuple[float, frozenset[str]]] = {}

    async def check_traces(self, workspace_id: UUID) -> None:
        """Raise TracesLimitReached if the workspace accepts no more traces this month."""
        if TRACES in await self._find_reached(workspace_id):
            raise TracesLimitReached

    async def check_longlived(self, workspace_id: UUID) -> None:
        """Raise LonglivedLimitReached if no more traces may become long-lived this month."""
        if not await self.allows_longlived(workspace_id):
            raise LonglivedLimitReached

    async def allows_longlived(self, workspace_id: UUID) -> bool:
        """Whether more traces may become long-lived this month."""
        return LONGLIVED not in await self._find_reached(workspace_id)

    async def _find_reached(self, workspace_id: UUID) -> frozenset[str]:
        until, limit_types = self._cached.get(workspace_id, (0.0, frozenset()))
        if until < time.monotonic():
            limit_types = await list_reached_limits(self._db, workspace_id)
            self._cached[workspace_id] = (time.monotonic() + CACHE_S, limit_types)

        return limit_types

    def invalidate(self, workspace_id: UUID) -> None:
        """Drop the cached state of a workspace, because a limit was changed."""
        self._cached.pop(workspace_id, None)


async def list_reached_limits(db: Session, workspace_id: UUID) -> frozenset[str]:
    """Return the limits that a workspace has reached."""
    rows = await db.fetch(sql.limits_reached, workspace_id=workspace_id)
    return frozenset(row["limit_type"] for row in rows)


async def put_limit(db: Session, quotas: Quotas, workspace_id: UUID, body: UsageLimitRequest) -> UsageLimit:
    """Set a limit; it replaces the limit of the same type."""
    await db.execute(
        sql.put_usage_limit,
        id=uuid7(),
        workspace_id=workspace_id,
        limit_type=body.limit_type,
        limit_value=body.limit_value,
    )
    quotas.invalidate(workspace_id)

    limits = await list_limits(db, workspace_id)
    return next(limit for limit in limits if limit.limit_type == body.limit_type)


async def list_limits(db: Session, workspace_id: UUID) -> list[UsageLimit]:
    """List the limits of a workspace."""
    rows = await db.fetch(sql.usage_limits, workspace_id=workspace_id)
    return [UsageLimit(**dict(row)) for row in rows]


async def delete_limit(db: Session, quotas: Quotas, workspace_id: UUID, limit_id: UUID) -> None:
    """Delete a limit. Raises UsageLimitNotFound."""
    if not await db.execute(sql.delete_usage_limit, workspace_id=workspace_id, id=limit_id):
        raise UsageLimitNotFound
    quotas.invalidate(workspace_id)


async def get_state(db: Session, workspace_id: UUID) -> UsageState:
    """Return whether new traces are refused; if not, the first limit, if limit is set."""
    values = {limit.limit_type: limit.limit_value for limit in await list_limits(db, workspace_id)}
    if TRACES in await list_reached_limits(db, workspace_id):
        return UsageState(in_reject_set=True, usage_limit_type=TRACES, tenant_limit=values.get(TRACES))

    first_type = next(iter(values), None)
    return UsageState(
        in_reject_set=False,
        usage_limit_type=first_type,
        tenant_limit=None if first_type is None else values[first_type],
    )
