"""Experiments: the runs that were made on the examples of a dataset, and comparisons of experiments.

An experiment is a project with a reference dataset; its root runs name the examples that they ran on.

The results of version 2 are paged by the ids of examples, with the last id as the cursor, so new examples do not move
pages. A page ends early when the next example with its runs would exceed the byte budget of one response.
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.datasets.datasets import get_dataset, open_share
from portside.datasets.errors import ComparisonExists, ComparisonNotFound
from portside.datasets.examples import EVERYTHING, get_examples, list_examples
from portside.datasets.sql import sql
from portside.datasets.types import Example, ExampleQuery, Ids, Limit, Offset, Text
from portside.kernel.clock import Moment
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import NO_FIELDS, NO_VALUE
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7
from portside.kernel.large_reads import reserve_page
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, require_all, require_any
from portside.tracing.cursors import CursorInvalid
from portside.tracing.fields import to_utc
from portside.tracing.filters import compile_filter
from portside.tracing.project_lists import ProjectQuery, list_projects
from portside.tracing.run_fields import Selects, read_selects
from portside.tracing.runs import get_runs
from portside.tracing.runs_v2 import count_bytes, read_selected
from portside.tracing.types import TracedRun, TracerSession

Filter = Annotated[str, msgspec.Meta(max_length=20_000)]
Filters = Annotated[
    dict[UUID, Annotated[list[Filter], msgspec.Meta(max_length=20)]],
    msgspec.Meta(extra_json_schema={"propertyNames": {"format": "uuid"}}),
]
_RUN_FIELDS = ["inputs", "outputs", "extra", "feedback_stats"]


class ExperimentPage(msgspec.Struct):
    """Experiments, and the page of the examples that they ran on. Previews contain all fields.

    `filters` has filters of runs by experiment; the runs of an experiment have to match all of its filters.
    """

    session_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=100)]
    offset: Offset = 0
    limit: Limit = 100
    preview: bool = False
    comparative_experiment_id: Annotated[UUID | None, NO_VALUE] = None
    filters: Filters | None = None


class ExampleWithRuns(Example, kw_only=True):
    """An example with the runs of experiments on it."""

    runs: list[TracedRun]


class ComparisonRequest(msgspec.Struct):
    """Experiments on one dataset to compare."""

    experiment_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=100)]
    reference_dataset_id: UUID
    id: UUID | None = None
    name: Text | None = None
    description: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    extra: dict[str, Any] | None = None
    created_at: Moment | None = None


class ComparisonQuery(msgspec.Struct):
    """Filters of comparisons."""

    id: Ids | None = None
    name: Text | None = None
    name_contains: Text | None = None
    limit: Limit = 100
    offset: Offset = 0


class Comparison(msgspec.Struct):
    """Experiments that are compared with each other."""

    id: UUID
    tenant_id: UUID
    reference_dataset_id: UUID
    name: str | None
    description: str | None
    extra: dict[str, Any] | None
    created_at: Moment
    modified_at: Moment
    experiments_info: list[dict[str, Any]]


async def list_results(
    db: Session, workspace_id: UUID, dataset_id: UUID, page: ExperimentPage, links: DownloadLinks
) -> list[ExampleWithRuns]:
    """List the examples that experiments ran on, with their root runs.

    Raises DatasetNotFound, FilterInvalid and Invalid.
    """
    if page.comparative_experiment_id:
        raise refuse_field("comparative_experiment_id", "is not supported; leave it out")

    condition = await build_experiments_condition(db, workspace_id, dataset_id, page.session_ids, page.filters)
    example_ids = await list_example_ids(db, workspace_id, condition, ExamplePage())
    query = ExampleQuery(dataset=dataset_id, id=example_ids, select=["id"], limit=page.limit, offset=page.offset)
    ids = [example.id for example in await list_examples(db, workspace_id, query, links)]

    runs_by_example = await list_runs_by_example(db, workspace_id, condition, ids)
    all_run_ids = [run_id for run_ids in runs_by_example.values() for run_id in run_ids]
    runs = await get_runs(db, workspace_id, all_run_ids, _RUN_FIELDS, links)
    runs_by_id = {run.id: run for run in runs}

    results = []
    for example in await get_examples(db, workspace_id, ids, None, links, fields=EVERYTHING):
        run_ids = runs_by_example.get(example.id, [])
        runs_of_example = [runs_by_id[run_id] for run_id in run_ids if run_id in runs_by_id]
        results.append(ExampleWithRuns(**msgspec.structs.asdict(example), runs=runs_of_example))

    return results


async def build_experiments_condition(
    db: Session, workspace_id: UUID, dataset_id: UUID, session_ids: list[UUID], filters: Filters | None
) -> Condition:
    """Return the condition for the runs of experiments on a dataset. Raises DatasetNotFound and FilterInvalid."""
    await get_dataset(db, workspace_id, dataset_id)
    experiment_ids = await _find_experiments(db, workspace_id, dataset_id, session_ids)
    return _build_run_condition(experiment_ids, filters or {})


class ExamplePage(msgspec.Struct, frozen=True):
    """A part of the examples of experiments: after a cursor, only some, at most this many. None does not restrict."""

    after: UUID | None = None
    only: list[UUID] | None = None
    limit: int | None = None


async def list_example_ids(db: Session, workspace_id: UUID, condition: Condition, page: ExamplePage) -> list[UUID]:
    """Return the examples that matching runs were made on, in the order of their ids."""
    parameters = msgspec.structs.asdict(page)
    listing, values = apply_condition(sql.examples_of_experiments, condition, workspace_id=workspace_id, **parameters)
    return [row["id"] for row in await db.fetch(listing, **values)]


async def list_runs_by_example(
    db: Session, workspace_id: UUID, condition: Condition, examples: list[UUID]
) -> dict[UUID, list[UUID]]:
    """Return matching runs by the example that they were made on."""
    listing, values = apply_condition(sql.runs_of_examples, condition, workspace_id=workspace_id, examples=examples)
    run_ids: dict[UUID, list[UUID]] = {}
    for row in await db.fetch(listing, **values):
        run_ids.setdefault(row["reference_example_id"], []).append(row["id"])

    return run_ids


async def list_shared_experiments(db: Session, token: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List the experiments on a shared dataset. Raises SharedDatasetNotFound and Invalid."""
    workspace_id, dataset_id = await open_share(db, token)
    query.reference_dataset = [dataset_id]
    query.reference_free = None
    return await list_projects(db, workspace_id, query)


async def create_comparison(db: Session, workspace_id: UUID, body: ComparisonRequest) -> Comparison:
    """Create a comparison of experiments. Raises DatasetNotFound, ComparisonExists and Invalid."""
    await get_dataset(db, workspace_id, body.reference_dataset_id)
    experiment_ids = await _find_experiments(db, workspace_id, body.reference_dataset_id, body.experiment_ids)
    if unknown := set(body.experiment_ids) - set(experiment_ids):
        raise Invalid.field(["body", "experiment_ids"], f"{min(unknown)} is not an experiment on this dataset")

    comparison_id = await db.fetchval(
        sql.create_comparison,
        workspace_id=workspace_id,
        id=body.id or uuid7(),
        dataset_id=body.reference_dataset_id,
        name=body.name,
        description=body.description,
        extra=body.extra,
        experiment_ids=body.experiment_ids,
        created_at=None if body.created_at is None else to_utc(body.created_at, "created_at"),
    )
    if comparison_id is None:
        raise ComparisonExists

    query = ComparisonQuery(id=[comparison_id])
    return (await list_comparisons(db, workspace_id, body.reference_dataset_id, query))[0]


async def list_comparisons(
    db: Session, workspace_id: UUID, dataset_id: UUID, query: ComparisonQuery
) -> list[Comparison]:
    """List the comparisons of experiments on a dataset, newest first."""
    rows = await db.fetch(
        sql.list_comparisons,
        workspace_id=workspace_id,
        dataset_id=dataset_id,
        ids=query.id,
        name=query.name,
        name_contains=query.name_contains,
        limit=query.limit,
        offset=query.offset,
    )

    return [Comparison(**dict(row)) for row in rows]


async def delete_comparison(db: Session, workspace_id: UUID, comparison_id: UUID) -> None:
    """Delete a comparison; the experiments stay. Raises ComparisonNotFound."""
    if not await db.execute(sql.delete_comparison, workspace_id=workspace_id, comparison_id=comparison_id):
        raise ComparisonNotFound


def _build_run_condition(sessions: list[UUID], filters: Filters) -> Condition:
    """Return the condition for runs: they belong to one of the experiments and match its filters."""
    builder = ConditionBuilder()
    conditions = []
    for session_id in sessions:
        in_experiment = builder.build(sql.when_of_experiment, session_id=session_id)
        conditions.append(
            require_all([in_experiment, *(compile_filter(text, builder) for text in filters.get(session_id, []))])
        )

    return require_any(conditions)


async def _find_experiments(db: Session, workspace_id: UUID, dataset_id: UUID, ids: list[UUID]) -> list[UUID]:
    rows = await db.fetch(sql.sessions_of_dataset, workspace_id=workspace_id, dataset_id=dataset_id, ids=ids)
    return [row["id"] for row in rows]


class ExperimentRunsQuery(msgspec.Struct, kw_only=True):
    """Experiments, filters, the page, and the fields of runs to return. Unsupported parameters are refused.

    With `include_subtree_usage`, tokens and costs are those of a run and all runs below it.
    """

    experiment_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=100)]
    example_ids: Ids | None = None
    filters: Filters | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    cursor: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    selects: Selects | None = None
    include_subtree_usage: bool = False
    comparative_experiment_id: Annotated[UUID | None, NO_VALUE] = None
    sort: Annotated[dict[str, Any], NO_FIELDS] | None = None


class ExampleRuns(msgspec.Struct, kw_only=True):
    """An example with the selected fields of the runs of experiments on it."""

    id: UUID
    dataset_id: UUID
    name: str
    inputs: msgspec.Raw
    outputs: msgspec.Raw | None
    metadata: dict[str, Any]
    created_at: datetime
    modified_at: datetime
    source_run_id: UUID | None
    attachment_urls: dict[str, str]
    runs: list[dict[str, Any]]


class ExperimentRuns(msgspec.Struct):
    """One page of examples."""

    items: list[ExampleRuns]
    next_cursor: str | None


async def query_results(
    db: Session, workspace_id: UUID, dataset_id: UUID, body: ExperimentRunsQuery, links: DownloadLinks
) -> ExperimentRuns:
    """Return a page of the examples that experiments ran on.

    Raises DatasetNotFound, FilterInvalid, CursorInvalid and Invalid.
    """
    for name in ("sort", "comparative_experiment_id"):
        if getattr(body, name):
            raise refuse_field(name, "is not supported; leave it out")

    selects = read_selects(body.selects, "body")
    after = _read_cursor(body.cursor)
    condition = await build_experiments_condition(db, workspace_id, dataset_id, body.experiment_ids, body.filters)

    # One more than a page has says whether another page follows.
    page = ExamplePage(after=after, only=body.example_ids, limit=body.page_size + 1)
    next_ids = await list_example_ids(db, workspace_id, condition, page)
    ids = next_ids[: body.page_size]
    runs_by_example = await list_runs_by_example(db, workspace_id, condition, ids)
    ids = ids[: await _count_fitting(db, workspace_id, ids, runs_by_example, selects)]

    all_run_ids = [run_id for example_id in ids for run_id in runs_by_example.get(example_id, [])]
    runs = await read_selected(
        db, workspace_id, all_run_ids, {"ID", *selects}, links, with_subtree_usage=body.include_subtree_usage
    )
    runs_by_id = {run["id"]: run for run in runs}

    items = []
    for example in await get_examples(db, workspace_id, ids, None, links, fields=EVERYTHING):
        if example.dataset_id == dataset_id:
            run_ids = runs_by_example.get(example.id, [])
            items.append(_to_item(example, [runs_by_id[run_id] for run_id in run_ids if run_id in runs_by_id]))

    has_more = len(next_ids) > len(ids)
    return ExperimentRuns(items, next_cursor=str(ids[-1]) if has_more else None)


async def _count_fitting(
    db: Session, workspace_id: UUID, ids: list[UUID], runs_by_example: dict[UUID, list[UUID]], selects: set[str]
) -> int:
    """Return how many examples with their runs fit into one response, from the first on."""
    all_run_ids = [run_id for run_ids in runs_by_example.values() for run_id in run_ids]
    run_sizes = await count_bytes(db, workspace_id, all_run_ids, selects)
    rows = await db.fetch(sql.bytes_of_some_examples, workspace_id=workspace_id, ids=ids)
    example_sizes = {row["id"]: row["bytes"] for row in rows}

    sizes = []
    for example_id in ids:
        run_ids = runs_by_example.get(example_id, [])
        sizes.append(example_sizes.get(example_id, 0) + sum(run_sizes.get(run_id, 0) for run_id in run_ids))

    return await reserve_page(sizes)


def _read_cursor(cursor: str | None) -> UUID | None:
    try:
        return None if cursor is None else UUID(cursor)
    except ValueError:
        raise CursorInvalid from None


def _to_item(example: Example, runs: list[dict[str, Any]]) -> ExampleRuns:
    fields = {name: value for name, value in msgspec.structs.asdict(example).items() if name in EVERYTHING}
    attachments = fields.pop("attachment_urls") or {}
    urls = {name.removeprefix("attachment."): attachment.presigned_url for name, attachment in attachments.items()}
    return ExampleRuns(**fields, attachment_urls=urls, runs=runs)
