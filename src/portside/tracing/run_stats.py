"""`POST /runs/stats`: what runs that filters find are together, or by group (contract: hosted API, section f.4)."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.tracing.conditions import Conditions
from portside.tracing.figures import RunStats, Slicing, measure, measure_all
from portside.tracing.run_queries import RunFilters, conditions_of, plain_question

MAX_GROUPS = 100
_FIGURES = frozenset(RunStats.__struct_fields__)
GroupName = Annotated[str, msgspec.Meta(max_length=2000)]


class Grouping(msgspec.Struct):
    """What runs are grouped by; `path` is the key of the metadata. The largest groups are told."""

    attribute: Literal["name", "run_type", "tag", "metadata"]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None = None
    max_groups: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)] = 5


class StatsRequest(RunFilters):
    """Which runs, and which figures of them; `groups` names the groups to tell."""

    group_by: Grouping | None = None
    groups: Annotated[list[GroupName], msgspec.Meta(max_length=MAX_GROUPS)] | None = None
    select: Annotated[list[str], msgspec.Meta(max_length=100)] | None = None


async def stats_of_runs(db: Session, workspace_id: UUID, body: StatsRequest) -> dict[str, Any]:
    """Return the figures of the runs that are asked for, by group where `group_by` is given.

    Raises FilterInvalid, and Invalid for an unknown figure and for groups without a grouping.
    """
    figures = _selected(body.select)
    condition = conditions_of(body, workspace_id, Conditions())
    if body.group_by is None:
        if body.groups:
            raise Invalid.field(["body", "groups"], "there are groups only with group_by", "missing")
        return _shown(await measure_all(db, condition, plain_question(body, workspace_id)), figures)
    slicing = read_grouping(body.group_by, body.groups, "group_by")
    return {group: _shown(stats, figures) for (_, group), stats in (await measure(db, condition, slicing)).items()}


def read_grouping(grouping: Grouping, groups: list[str] | None, where: str) -> Slicing:
    """Return how runs are grouped. Raises Invalid where a path is missing or makes no sense."""
    if (grouping.attribute == "metadata") != (grouping.path is not None):
        raise Invalid.field(["body", where, "path"], "names a key of the metadata, with the attribute metadata alone")
    return Slicing(attribute=grouping.attribute, path=grouping.path, groups=groups or None, limit=grouping.max_groups)


def _selected(select: list[str] | None) -> frozenset[str]:
    if not select:
        return _FIGURES
    if unknown := [name for name in select if name not in _FIGURES]:
        raise Invalid.field(["body", "select"], f"there is no figure {unknown[0][:100]}")
    return frozenset(select)


def _shown(stats: RunStats, figures: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(stats).items() if name in figures}
