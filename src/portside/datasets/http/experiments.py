"""What experiments made of datasets, and experiments compared (contract: hosted API, section f.4)."""

from uuid import UUID

from portside.datasets import experiment_runs, experiments
from portside.datasets.errors import ComparisonExists, ComparisonNotFound, DatasetNotFound
from portside.datasets.experiment_runs import ExperimentRuns, ExperimentRunsQuery
from portside.datasets.experiments import (
    Comparison,
    ComparisonQuery,
    ComparisonRequest,
    ExampleWithRuns,
    ExperimentPage,
)
from portside.datasets.http.examples import links_of
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing.attachments import Links as RunLinks
from portside.tracing.filter_language import FilterInvalid
from portside.tracing.pages import CursorInvalid
from portside.tracing.types import Accepted

routes = Routes("datasets")


@routes.post(
    "/datasets/{dataset_id}/runs", permission="datasets:read", raises=(DatasetNotFound, FilterInvalid, Invalid)
)
async def list_experiment_results(ctx: Context, dataset_id: UUID, body: ExperimentPage) -> list[ExampleWithRuns]:
    """List the examples that experiments ran on, each with its runs."""
    links = (links_of(ctx), RunLinks(ctx.get(SecretBox), str(ctx.request.base_url)))
    return await experiments.list_results(ctx.db, ctx.actor.workspace_id, dataset_id, body, links)


@routes.post(
    "/v2/datasets/{dataset_id}/experiment-runs",
    permission="datasets:read",
    raises=(DatasetNotFound, FilterInvalid, CursorInvalid, Invalid),
)
async def query_experiment_runs(ctx: Context, dataset_id: UUID, body: ExperimentRunsQuery) -> ExperimentRuns:
    """Find the examples that experiments ran on, each with what is selected of its runs, in the newer form."""
    links = (links_of(ctx), RunLinks(ctx.get(SecretBox), str(ctx.request.base_url)))
    return await experiment_runs.query_results(ctx.db, ctx.actor.workspace_id, dataset_id, body, links)


@routes.post("/datasets/comparative", permission="datasets:update", raises=(DatasetNotFound, ComparisonExists, Invalid))
async def create_comparison(ctx: Context, body: ComparisonRequest) -> Comparison:
    """Remember that experiments on a dataset are compared."""
    return await experiments.create_comparison(ctx.db, ctx.actor.workspace_id, body)


@routes.delete("/datasets/comparative/{comparison_id}", permission="datasets:update", raises=(ComparisonNotFound,))
async def delete_comparison(ctx: Context, comparison_id: UUID) -> Accepted:
    """Forget a comparison; the experiments stay."""
    await experiments.delete_comparison(ctx.db, ctx.actor.workspace_id, comparison_id)
    return Accepted("Deleted")


@routes.get("/datasets/{dataset_id}/comparative", permission="datasets:read")
async def list_comparisons(ctx: Context, dataset_id: UUID, query: ComparisonQuery) -> list[Comparison]:
    """List the comparisons of experiments on a dataset."""
    return await experiments.list_comparisons(ctx.db, ctx.actor.workspace_id, dataset_id, query)
