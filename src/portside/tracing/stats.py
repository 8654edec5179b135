"""Statistics of runs: counts, latencies, tokens, costs and feedback; in total, by group, or over time.

One statement computes them for `POST /runs/stats`, for projects and for charts. Days that were counted before come from
`rollups.py`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import among
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition
from portside.tracing.percentiles import SPREADS
from portside.tracing.rollups import RollupGrouping, RollupQuery, has_whole_days, read_rollups, to_rollup_query
from portside.tracing.runs import RunFilters, build_run_condition
from portside.tracing.sql import sql

MAX_SLICES = 20_000
MAX_GROUPS = 100
GroupKey = tuple[datetime | None, str]
"""The bucket and the name of a group."""
GroupName = Annotated[str, msgspec.Meta(max_length=2000)]


class FeedbackStats(msgspec.Struct):
    """The number of feedback items of one key, their average score, and the count of each value."""

    n: int
    avg: float | None
    values: dict[str, int] = {}


class RunStats(msgspec.Struct, kw_only=True):
    """Statistics of runs; times in seconds, costs as decimal text, null without data."""

    run_count: int = 0
    latency_p50: float | None = None
    latency_p95: float | None = None
    latency_p99: float | None = None
    latency_avg: float | None = None
    first_token_p50: float | None = None
    first_token_p99: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_p50: float | None = None
    prompt_tokens_p99: float | None = None
    completion_tokens_p50: float | None = None
    completion_tokens_p99: float | None = None
    median_tokens: float | None = None
    tokens_p99: float | None = None
    prompt_cost: str | None = None
    completion_cost: str | None = None
    total_cost: str | None = None
    cost_p50: float | None = None
    cost_p99: float | None = None
    error_rate: float | None = None
    streaming_rate: float | None = None
    last_run_start_time: datetime | None = None
    feedback_stats: dict[str, FeedbackStats] = msgspec.field(default_factory=dict)


class StatsGrouping(msgspec.Struct, kw_only=True, frozen=True):
    """How runs are grouped, by attribute and time bucket; at most `limit` groups, the largest ones."""

    attribute: str | None = None
    path: str | None = None
    groups: list[str] | None = None
    stride: timedelta | None = None
    origin: datetime | None = None
    limit: int = MAX_SLICES


ALL = StatsGrouping()


class Grouping(msgspec.Struct):
    """The attribute to group runs by; `path` is a metadata key. The largest groups are returned.

    `node` is the metadata `langgraph_node`; `thread` is `thread_id`, `session_id` or `conversation_id`; `user` is
    `user_id` or `langgraph_auth_user_id`.
    """

    attribute: Literal["name", "run_type", "tag", "metadata", "model", "node", "thread", "user", "project"]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None = None
    max_groups: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)] = 5


class StatsRequest(RunFilters):
    """Filters of runs, the statistics to return, and the groups to return (`groups`)."""

    group_by: Grouping | None = None
    groups: Annotated[list[GroupName], msgspec.Meta(max_length=MAX_GROUPS)] | None = None
    select: Annotated[list[Annotated[str, among(RunStats.__struct_fields__)]], msgspec.Meta(max_length=100)] | None = (
        None
    )


async def get_stats(db: Session, workspace_id: UUID, body: StatsRequest) -> dict[str, Any]:
    """Return statistics of the runs that match filters, by group if `group_by` is given.

    Raises FilterInvalid, and Invalid for an unknown statistic and for groups without a grouping.
    """
    statistics = _select_statistics(body.select)
    condition = build_run_condition(body, workspace_id, ConditionBuilder())
    if body.group_by is None:
        if body.groups:
            raise Invalid.field(["body", "groups"], "groups require group_by", "missing")

        total = await compute_total_stats(db, condition, to_rollup_query(body, workspace_id))
        return _to_fields(total, statistics)

    grouping = read_grouping(body.group_by, body.groups, "group_by")
    stats_by_group = await compute_stats(db, condition, grouping)
    return {group: _to_fields(stats, statistics) for (_, group), stats in stats_by_group.items()}


def read_grouping(grouping: Grouping, groups: list[str] | None, where: str) -> StatsGrouping:
    """Return the grouping of runs. Raises Invalid if a path is missing or given without the attribute metadata."""
    if (grouping.attribute == "metadata") != (grouping.path is not None):
        raise Invalid.field(
            ["body", where, "path"], "is required with the attribute metadata, and not allowed with others"
        )

    return StatsGrouping(
        attribute=grouping.attribute, path=grouping.path, groups=groups or None, limit=grouping.max_groups
    )


def _select_statistics(select: list[str] | None) -> frozenset[str]:
    names = frozenset(RunStats.__struct_fields__)
    if not select:
        return names
    if unknown := [name for name in select if name not in names]:
        raise Invalid.field(["body", "select"], f"unknown statistic {unknown[0][:100]}")

    return frozenset(select)


def _to_fields(stats: RunStats, statistics: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(stats).items() if name in statistics}


async def compute_stats(
    db: Session, condition: Condition, grouping: StatsGrouping = ALL, rollup: RollupQuery | None = None
) -> dict[GroupKey, RunStats]:
    """Return statistics of the runs that meet a condition by bucket and group, the largest first.

    `rollup` is the same condition as a rollup query, if rollups can answer it.
    """
    stats = await compute_run_stats(db, condition, grouping, rollup)
    if stats:
        statement, values = apply_condition(sql.feedback_stats, condition, **_to_parameters(grouping))
        _add_feedback(stats, await db.fetch(statement, **values))

    return stats


async def compute_run_stats(
    db: Session, condition: Condition, grouping: StatsGrouping = ALL, rollup: RollupQuery | None = None
) -> dict[GroupKey, RunStats]:
    """Return the same statistics without feedback."""
    rows: list[Any] | None = None
    rollup_grouping = None if rollup is None else _to_rollup_grouping(grouping)
    if rollup is not None and rollup_grouping is not None:
        rows = await read_rollups(db, rollup, rollup_grouping)

    if rows is None:
        statement, values = apply_condition(sql.run_stats, condition, **_to_parameters(grouping), limit=grouping.limit)
        rows = await db.fetch(statement, **values)

    return {(row["bucket"], row["group_name"]): _to_run_stats(row) for row in rows}


async def compute_total_stats(db: Session, condition: Condition, rollup: RollupQuery | None = None) -> RunStats:
    """Return the statistics of all runs that meet a condition."""
    stats_by_group = await compute_stats(db, condition, rollup=rollup)
    return stats_by_group.get((None, ""), RunStats())


def _to_parameters(grouping: StatsGrouping) -> dict[str, Any]:
    return {name: getattr(grouping, name) for name in ("attribute", "path", "groups", "stride", "origin")}


def _to_rollup_grouping(grouping: StatsGrouping) -> RollupGrouping | None:
    """Return the grouping of rollups; None for groups and buckets that rollups do not have."""
    if grouping.attribute not in {None, "project"} or grouping.groups is not None:
        return None
    if not has_whole_days(grouping.stride, grouping.origin):
        return None

    return RollupGrouping(
        by_project=grouping.attribute == "project", stride=grouping.stride, origin=grouping.origin, limit=grouping.limit
    )


def _to_run_stats(row: Record | Mapping[str, Any]) -> RunStats:
    fields: dict[str, Any] = dict(row)
    del fields["bucket"], fields["group_name"]
    for spread, shares in SPREADS.items():
        fields.update(zip(shares, fields.pop(spread) or [None] * len(shares), strict=True))

    return RunStats(**fields)


def _add_feedback(stats_by_group: dict[GroupKey, RunStats], rows: list[Record]) -> None:
    """Add the feedback of each group: a row has one value of one key, or the items without a value."""
    totals: dict[tuple[GroupKey, str], tuple[int, float]] = {}
    for row in rows:
        group_key = (row["bucket"], row["group_name"])
        if group_key not in stats_by_group:
            continue

        stats = stats_by_group[group_key].feedback_stats.setdefault(row["key"], FeedbackStats(0, None, {}))
        stats.n += row["n"]

        if row["value"] is not None:
            stats.values[row["value"]] = row["n"]

        score_count, score_sum = totals.get((group_key, row["key"]), (0, 0.0))
        score_count += row["scored"]
        score_sum += row["total"] or 0.0
        totals[group_key, row["key"]] = score_count, score_sum
        stats.avg = score_sum / score_count if score_count else None
