"""`POST /runs/stats`: what the runs are together that filters find (contract: hosted API, section f.4)."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.tracing.conditions import Conditions, narrow
from portside.tracing.run_queries import RunFilters, conditions_of
from portside.tracing.sql import sql


class StatsRequest(RunFilters):
    """Which runs; groups and selected figures are refused."""

    group_by: dict[str, Any] | None = None
    groups: list[Any] | None = None
    select: list[str] | None = None


class FeedbackStats(msgspec.Struct):
    """How often feedback of one key was given, and its average score."""

    n: int
    avg: float | None


class RunStats(msgspec.Struct, kw_only=True):
    """Figures of runs; times in seconds, costs as decimal text, null where nothing tells."""

    run_count: int
    latency_p50: float | None
    latency_p99: float | None
    first_token_p50: float | None
    first_token_p99: float | None
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_cost: str | None
    completion_cost: str | None
    total_cost: str | None
    error_rate: float | None
    streaming_rate: float | None
    last_run_start_time: datetime | None
    feedback_stats: dict[str, FeedbackStats]


async def stats_of_runs(db: Session, workspace_id: UUID, body: StatsRequest) -> RunStats:
    """Return the figures of the runs that are asked for. Raises FilterInvalid, and Invalid for groups."""
    for name in ("group_by", "groups", "select"):
        if getattr(body, name):
            raise Invalid.field(["body", name], "this is not supported", "not_supported")
    condition = conditions_of(body, workspace_id, Conditions())
    statement, values = narrow(sql.stats_of_runs, condition)
    (figures,) = await db.fetch(statement, **values)
    statement, values = narrow(sql.feedback_of_runs, condition)
    feedback = {row["key"]: FeedbackStats(row["n"], row["avg"]) for row in await db.fetch(statement, **values)}
    return RunStats(**dict(figures), feedback_stats=feedback)
