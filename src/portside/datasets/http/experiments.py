"""The routes of the experiments on a dataset, and of comparisons of them."""

from uuid import UUID

from portside.datasets import experiments
from portside.datasets.errors import ComparisonExists, ComparisonNotFound, DatasetNotFound
from portside.datasets.experiments import (
    Comparison,
    ComparisonQuery,
    ComparisonRequest,
    ExampleWithRuns,
    ExperimentPage,
    ExperimentRuns,
    ExperimentRunsQuery,
)
from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing.cursors import CursorInvalid
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.http.links import build_links
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("datasets")


@routes.post(
    "/datasets/{dataset_id}/runs",
    permission="datasets:read",
    read_only=True,
    raises=(DatasetNotFound, FilterInvalid, Invalid),
)
async def list_experiment_results(ctx: Context, dataset_id: UUID, body: ExperimentPage) -> list[ExampleWithRuns]:
    """List the examples that experiments ran on, each with its runs."""
    links = build_links(ctx)
    return await experiments.list_results(ctx.db, ctx.actor.workspace_id, dataset_id, body, links)


@routes.post(
    "/v2/datasets/{dataset_id}/experiment-runs",
    permission="datasets:read",
    read_only=True,
    raises=(DatasetNotFound, FilterInvalid, CursorInvalid, Invalid),
)
async def query_experiment_runs(ctx: Context, dataset_id: UUID, body: ExperimentRunsQuery) -> ExperimentRuns:
    """Find the examples that experiments ran on, each with the selected fields of its runs."""
    links = build_links(ctx)
    return await experiments.query_results(ctx.db, ctx.actor.workspace_id, dataset_id, body, links)


@routes.post(
    "/datasets/comparative",
    permission="datasets:update",
    raises=(DatasetNotFound, ComparisonExists, Invalid),
    audit=Action("comparison.create", id_query="create_comparison"),
)
async def create_comparison(ctx: Context, body: ComparisonRequest) -> Comparison:
    """Create a comparison of experiments on a dataset."""
    return await experiments.create_comparison(ctx.db, ctx.actor.workspace_id, body)


@routes.delete(
    "/datasets/comparative/{comparison_id}",
    permission="datasets:update",
    raises=(ComparisonNotFound,),
    audit=Action("comparison.delete"),
)
async def delete_comparison(ctx: Context, comparison_id: UUID) -> Accepted:
    """Delete a comparison; the experiments stay."""
    await experiments.delete_comparison(ctx.db, ctx.actor.workspace_id, comparison_id)
    return Accepted("Deleted")


@routes.get("/datasets/{dataset_id}/comparative", permission="datasets:read")
async def list_comparisons(ctx: Context, dataset_id: UUID, query: ComparisonQuery) -> list[Comparison]:
    """List the comparisons of experiments on a dataset."""
    return await experiments.list_comparisons(ctx.db, ctx.actor.workspace_id, dataset_id, query)
