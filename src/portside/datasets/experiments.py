"""Experiments: what was run on the examples of a dataset, and experiments judged against each other.

An experiment is a project with a reference dataset; its root runs name the examples that they ran on.
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.datasets.attachments import Links
from portside.datasets.datasets import show_dataset
from portside.datasets.errors import ComparisonExists, ComparisonNotFound
from portside.datasets.examples import EVERYTHING, list_examples, show_examples
from portside.datasets.sql import sql
from portside.datasets.types import Example, ExampleQuery, Ids, Limit, Offset, Text
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7
from portside.tracing.attachments import Links as RunLinks
from portside.tracing.conditions import Condition, Conditions, all_of, any_of, narrow
from portside.tracing.fields import aware
from portside.tracing.filters import read_filter
from portside.tracing.runs import show_runs
from portside.tracing.types import Run

Filter = Annotated[str, msgspec.Meta(max_length=20_000)]
Filters = dict[UUID, Annotated[list[Filter], msgspec.Meta(max_length=20)]]
_OF_RUNS = ["inputs", "outputs", "extra", "feedback_stats"]


class ExperimentPage(msgspec.Struct):
    """Which experiments, and which page of the examples that they ran on. Previews hold everything.

    `filters` are those of runs, by the experiment whose runs have to meet all of them.
    """

    session_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=100)]
    offset: Offset = 0
    limit: Limit = 100
    preview: bool = False
    comparative_experiment_id: UUID | None = None
    filters: Filters | None = None


class ExampleWithRuns(Example, kw_only=True):
    """An example, and what experiments made of it."""

    runs: list[Run]


class ComparisonRequest(msgspec.Struct):
    """Experiments on one dataset to compare."""

    experiment_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=100)]
    reference_dataset_id: UUID
    id: UUID | None = None
    name: Text | None = None
    description: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    extra: dict[str, Any] | None = None
    created_at: datetime | None = None


class ComparisonQuery(msgspec.Struct):
    """Which comparisons to list."""

    id: Ids | None = None
    name: Text | None = None
    name_contains: Text | None = None
    limit: Limit = 100
    offset: Offset = 0


class Comparison(msgspec.Struct):
    """Experiments that were judged against each other."""

    id: UUID
    tenant_id: UUID
    reference_dataset_id: UUID
    name: str | None
    description: str | None
    extra: dict[str, Any] | None
    created_at: datetime
    modified_at: datetime
    experiments_info: list[dict[str, Any]]


async def list_results(
    db: Session, workspace_id: UUID, dataset_id: UUID, page: ExperimentPage, links: tuple[Links, RunLinks]
) -> list[ExampleWithRuns]:
    """List the examples that experiments ran on, with their root runs.

    Raises DatasetNotFound, FilterInvalid and Invalid.
    """
    if page.comparative_experiment_id:
        raise refuse_field("comparative_experiment_id", "this is not supported")
    asked = await experiments_asked(db, workspace_id, dataset_id, page.session_ids, page.filters)
    ran = await examples_of(db, workspace_id, asked)
    query = ExampleQuery(dataset=dataset_id, id=ran, select=["id"], limit=page.limit, offset=page.offset)
    ids = [example.id for example in await list_examples(db, workspace_id, query, links[0])]
    by_example = await runs_of(db, workspace_id, asked, ids)
    shown = await show_runs(db, workspace_id, [run for runs in by_example.values() for run in runs], _OF_RUNS, links[1])
    known = {run.id: run for run in shown}
    examples = await show_examples(db, workspace_id, ids, None, links[0], shown=EVERYTHING)
    return [
        ExampleWithRuns(
            **msgspec.structs.asdict(example),
            runs=[known[run] for run in by_example.get(example.id, []) if run in known],
        )
        for example in examples
    ]


async def experiments_asked(
    db: Session, workspace_id: UUID, dataset_id: UUID, session_ids: list[UUID], filters: Filters | None
) -> Condition:
    """Return the condition on runs of experiments on a dataset. Raises DatasetNotFound and FilterInvalid."""
    await show_dataset(db, workspace_id, dataset_id)
    return _asked(await _experiments_of(db, workspace_id, dataset_id, session_ids), filters or {})


async def examples_of(db: Session, workspace_id: UUID, asked: Condition) -> list[UUID]:
    """Return the examples that such runs were made on."""
    listing, values = narrow(sql.examples_of_experiments, asked, workspace_id=workspace_id)
    return [row["id"] for row in await db.fetch(listing, **values)]


async def runs_of(db: Session, workspace_id: UUID, asked: Condition, examples: list[UUID]) -> dict[UUID, list[UUID]]:
    """Return such runs, by the example that each was made on."""
    listing, values = narrow(sql.runs_of_examples, asked, workspace_id=workspace_id, examples=examples)
    found: dict[UUID, list[UUID]] = {}
    for row in await db.fetch(listing, **values):
        found.setdefault(row["reference_example_id"], []).append(row["id"])
    return found


async def create_comparison(db: Session, workspace_id: UUID, body: ComparisonRequest) -> Comparison:
    """Remember that experiments are compared. Raises DatasetNotFound, ComparisonExists and Invalid."""
    await show_dataset(db, workspace_id, body.reference_dataset_id)
    found = await _experiments_of(db, workspace_id, body.reference_dataset_id, body.experiment_ids)
    if unknown := set(body.experiment_ids) - set(found):
        raise Invalid.field(["body", "experiment_ids"], f"{min(unknown)} is no experiment on this dataset")
    made = await db.fetchval(
        sql.create_comparison,
        workspace_id=workspace_id,
        id=body.id or uuid7(),
        dataset_id=body.reference_dataset_id,
        name=body.name,
        description=body.description,
        extra=body.extra,
        experiment_ids=body.experiment_ids,
        created_at=None if body.created_at is None else aware(body.created_at),
    )
    if made is None:
        raise ComparisonExists
    query = ComparisonQuery(id=[made])
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
    """Forget a comparison; the experiments stay. Raises ComparisonNotFound."""
    if not await db.execute(sql.delete_comparison, workspace_id=workspace_id, comparison_id=comparison_id):
        raise ComparisonNotFound


def _asked(sessions: list[UUID], filters: Filters) -> Condition:
    """Return the condition on runs: of one of the experiments, and what is asked of the runs of that one."""
    conditions = Conditions()
    asked = []
    for session_id in sessions:
        own = conditions.of(sql.when_of_experiment, session_id=session_id)
        asked.append(all_of([own, *(read_filter(text, conditions) for text in filters.get(session_id, []))]))
    return any_of(asked)


async def _experiments_of(db: Session, workspace_id: UUID, dataset_id: UUID, ids: list[UUID]) -> list[UUID]:
    rows = await db.fetch(sql.sessions_of_dataset, workspace_id=workspace_id, dataset_id=dataset_id, ids=ids)
    return [row["id"] for row in rows]
