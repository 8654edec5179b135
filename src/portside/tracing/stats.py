"""Statistics of runs: counts, latencies, tokens, costs and feedback; in total, by group, or over time.

One statement computes them for `POST /runs/stats`, for projects and for charts. When a query filters on nothing but the
project, the start time and root runs, it uses daily rollups instead, so months are not added up run by run.

Percentiles of days cannot be added up. So a rollup counts the values of a day by bins that grow by 5 %, and a
percentile is the middle of its bin. When the finished days hold few runs, rollups are not used and percentiles are
exact.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import among
from portside.kernel.reconcile import Status, Task
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition
from portside.tracing.fields import to_utc
from portside.tracing.runs import RunFilters, build_run_condition
from portside.tracing.sql import sql

# Up to this many runs in finished days, percentiles are computed exactly.
EXACT_MAX_RUNS = 1_000
COMMIT_MARGIN_S = 600.0
LOCK = "portside.tracing.statistics"
_GROWTH = 1.05
# The number of bins of a measure, and the bin of the value 1; `histogram_bin` has the same numbers.
_BINS = 2000
_ONE = 1000
# The measures in the order of `run_measurements`, each with its percentiles in the order of `run_stats`.
_SPREADS = {
    "latency": {"latency_p50": 0.5, "latency_p99": 0.99, "latency_p95": 0.95},
    "first_token": {"first_token_p50": 0.5, "first_token_p99": 0.99},
    "prompt_tokens_spread": {"prompt_tokens_p50": 0.5, "prompt_tokens_p99": 0.99},
    "completion_tokens_spread": {"completion_tokens_p50": 0.5, "completion_tokens_p99": 0.99},
    "total_tokens_spread": {"median_tokens": 0.5, "tokens_p99": 0.99},
    "cost": {"cost_p50": 0.5, "cost_p99": 0.99},
}
# Token counts are integers.
_WHOLE = frozenset({2, 3, 4})
_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
_MICROSECOND = timedelta(microseconds=1)
# The first whole day that no time zone moves out of the range of times.
_BEGINNING = datetime(1, 1, 2, tzinfo=UTC)
_BATCH = 1_000
_ROLLUP_FIELDS = frozenset({"session", "start_time", "end_time", "is_root", "data_source_type"})
_ROOTS = re.compile(r"\s*eq\(\s*is_root\s*,\s*true\s*\)\s*")
_UNSET: tuple[Any, ...] = (None, "", [])
MAX_SLICES = 20_000
MAX_GROUPS = 100
GroupKey = tuple[datetime | None, str]
"""The bucket and the name of a group."""
GroupName = Annotated[str, msgspec.Meta(max_length=2000)]


class RollupQuery(msgspec.Struct, kw_only=True, frozen=True):
    """A filter that daily rollups can answer. `start` and `end` are inclusive."""

    workspace_id: UUID
    projects: list[UUID] | None = None
    start: datetime | None = None
    end: datetime | None = None
    is_root: bool | None = None


class RollupGrouping(msgspec.Struct, kw_only=True, frozen=True):
    """How rollups are grouped: by project or not, in buckets of whole days; the largest groups first."""

    by_project: bool
    stride: timedelta | None
    origin: datetime | None
    limit: int


def to_rollup_query(body: RunFilters, workspace_id: UUID) -> RollupQuery | None:
    """Return filters as a rollup query; None if they ask for more than project, start time and root runs."""
    is_roots_filter = body.filter is not None and _ROOTS.fullmatch(body.filter) is not None
    allowed_fields = _ROLLUP_FIELDS
    if is_roots_filter and body.is_root is not False:
        allowed_fields = _ROLLUP_FIELDS | {"filter"}

    other_fields = set(RunFilters.__struct_fields__) - allowed_fields
    if any(getattr(body, name) not in _UNSET for name in other_fields):
        return None

    return RollupQuery(
        workspace_id=workspace_id,
        projects=body.session or None,
        start=body.start_time and to_utc(body.start_time, "start_time"),
        end=body.end_time and to_utc(body.end_time, "end_time"),
        is_root=True if is_roots_filter else body.is_root,
    )


async def read_rollups(db: Session, query: RollupQuery, grouping: RollupGrouping) -> list[dict[str, Any]] | None:
    """Return statistics from rollups, the largest group first; None when they must be computed from each run."""
    first_day, last_day = _find_whole_days(query, await db.fetchval(sql.rollups_until))
    if first_day >= last_day:
        return None

    rows = await db.fetch(sql.projects_of_workspace, workspace_id=query.workspace_id, ids=query.projects)
    projects = [row["id"] for row in rows]

    scope = {"projects": projects, "first_day": first_day, "last_day": last_day, "is_root": query.is_root}
    if await db.fetchval(sql.count_rollup_runs, **scope) <= EXACT_MAX_RUNS:
        return None

    rest = {
        "workspace_id": query.workspace_id,
        "start": query.start or first_day,
        "before": query.end and query.end + _MICROSECOND,
    }

    rows = await db.fetch(sql.read_rollups, **scope, **rest, **msgspec.structs.asdict(grouping))
    return [_to_statistics(row) for row in rows]


def _find_whole_days(query: RollupQuery, until: datetime | None) -> tuple[datetime, datetime]:
    """Return the first day and the end (exclusive) of the days that a query covers fully and that are counted."""
    if until is None or (query.start is not None and query.start >= until):
        return _BEGINNING, _BEGINNING

    first = _BEGINNING if query.start is None else start_of_day(query.start + _DAY - _MICROSECOND)
    last = until if query.end is None or query.end >= until else start_of_day(query.end + _MICROSECOND)
    return first, last


async def find_counted_days(db: Session, start: datetime, end: datetime) -> dict[str, datetime]:
    """Split `[start, end)` at the whole days that are counted so far; return the arguments of `usage_between`."""
    query = RollupQuery(workspace_id=UUID(int=0), start=start, end=end - _MICROSECOND)
    first, last = _find_whole_days(query, await db.fetchval(sql.rollups_until))
    if first >= last:
        first = last = start

    return {"start_time": start, "first_day": first, "last_day": last, "end_time": end}


def start_of_day(moment: datetime) -> datetime:
    """Return the start of a moment's day in UTC."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _to_statistics(row: Record) -> dict[str, Any]:
    fields = dict(row)
    fields.update(compute_percentiles(fields.pop("bins"), fields.pop("counts")))
    return fields


def compute_percentiles(bins: list[int], counts: list[int]) -> Iterator[tuple[str, list[float] | None]]:
    """Yield the percentiles of each measure from the number of values in each bin; None without values."""
    for measure, (name, shares) in enumerate(_SPREADS.items()):
        first = bisect_right(bins, measure * _BINS - 1)
        last = bisect_right(bins, (measure + 1) * _BINS - 1)
        if first == last:
            yield name, None
        else:
            yield name, _interpolate_percentiles(measure, bins[first:last], counts[first:last], shares.values())


def _interpolate_percentiles(measure: int, bins: list[int], counts: list[int], shares: Iterable[float]) -> list[float]:
    """Return what Postgres' `percentile_cont` returns if each value is the middle of its bin."""
    ends = list(accumulate(counts))

    def get_value(rank: int) -> float:
        return _get_bin_middle(measure, bins[bisect_right(ends, rank)])

    percentiles = []
    for share in shares:
        rank, rest = divmod(share * (ends[-1] - 1), 1)
        percentile = get_value(int(rank))
        if rest:
            percentile += rest * (get_value(int(rank) + 1) - percentile)

        percentiles.append(percentile)

    return percentiles


def _get_bin_middle(measure: int, bin_number: int) -> float:
    """Return the middle of a bin."""
    power = bin_number % _BINS
    middle = _GROWTH ** (power - _ONE + 0.5) if power else 0.0
    return float(round(middle)) if measure in _WHOLE else middle


class DailyRollups(Task):
    """Counts the next finished day, and again the days whose runs were written or deleted since."""

    every_s = 300.0
    # A stale day is counted again once it has not changed for this long.
    quiet_s = 900.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Count one day of all projects and some stale days, unless another process is counting."""
        async with self._db.transaction() as tx:
            if not await tx.fetchval(sql.try_lock, name=LOCK):
                return Status()

            days = await self._count_next(tx)
            stale = await tx.fetch(sql.take_stale_days, quiet_s=self.quiet_s, batch=_BATCH)
            await _count(tx, stale)

        counts = {"days": days, "stale_days": len(stale)}
        has_more = bool(days) or len(stale) == _BATCH
        return Status({name: count for name, count in counts.items() if count}, again=has_more)

    async def _count_next(self, tx: Session) -> int:
        # Read first: transactions that began before this moment are visible when the runs are read.
        committed_until = await tx.fetchval(sql.committed_until, settled_s=COMMIT_MARGIN_S)
        day = await tx.fetchval(sql.next_day_of_runs)

        # A run that began less than an hour ago leaves no mark when it changes, so its day is not counted yet.
        if day is None or day > committed_until - _DAY - _HOUR:
            return 0

        await _count(tx, await tx.fetch(sql.days_to_count, day=day))
        await tx.execute(sql.set_rollups_until, day=day)
        return 1


async def _count(tx: Session, days: list[Record]) -> None:
    """Count days of projects and replace their rollups."""
    for first in range(0, len(days), _BATCH):
        batch = days[first : first + _BATCH]
        columns = {"project_ids": [row["project_id"] for row in batch], "days": [row["day"] for row in batch]}
        await tx.execute(sql.delete_rollups, **columns)
        await tx.execute(sql.insert_rollups, **columns)
        await tx.execute(sql.delete_daily_usage, **columns)
        await tx.execute(sql.insert_daily_usage, **columns)


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

    has_whole_days = grouping.stride is None or (
        not grouping.stride % _DAY and grouping.origin is not None and grouping.origin == start_of_day(grouping.origin)
    )
    if not has_whole_days:
        return None

    return RollupGrouping(
        by_project=grouping.attribute == "project", stride=grouping.stride, origin=grouping.origin, limit=grouping.limit
    )


def _to_run_stats(row: Record | Mapping[str, Any]) -> RunStats:
    fields: dict[str, Any] = dict(row)
    del fields["bucket"], fields["group_name"]
    for spread, shares in _SPREADS.items():
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
