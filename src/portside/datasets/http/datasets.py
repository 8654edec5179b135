"""The routes of datasets and of their shares."""

from uuid import UUID

from portside.datasets import datasets, examples, files
from portside.datasets.errors import DatasetExists, DatasetNotFound, ExampleExists
from portside.datasets.types import Dataset, DatasetPatch, DatasetQuery, DatasetRequest, DatasetShare
from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.routes import MULTIPART
from portside.tracing.bodies import BODY_ERRORS, read_body
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("datasets")


@routes.post(
    "/datasets",
    permission="datasets:create",
    raises=(DatasetExists, Invalid),
    audit=Action("dataset.create", id_query="create_dataset"),
)
async def create_dataset(ctx: Context, body: DatasetRequest) -> Dataset:
    """Create a dataset."""
    return await datasets.create_dataset(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/datasets", permission="datasets:read", raises=(Invalid,))
async def list_datasets(ctx: Context, query: DatasetQuery) -> list[Dataset]:
    """List the workspace's datasets, newest first unless the query sorts them."""
    return await datasets.list_datasets(ctx.db, ctx.actor.workspace_id, query)


@routes.post(
    "/datasets/upload",
    permission="datasets:create",
    raises=(DatasetExists, ExampleExists, *BODY_ERRORS),
    consumes=MULTIPART,
    audit=Action("dataset.create", id_query="create_dataset"),
)
async def upload_dataset(ctx: Context) -> Dataset:
    """Create a dataset from a CSV file, sent as a form with `input_keys` and `output_keys`."""
    services = ctx.services
    async with read_body(ctx.request, services.read_budget, services.ingest_limits, files.parse_csv) as upload:
        return await examples.create_from_file(ctx.db, ctx.actor.workspace_id, upload)


@routes.get("/datasets/{dataset_id}", permission="datasets:read", raises=(DatasetNotFound,))
async def get_dataset(ctx: Context, dataset_id: UUID) -> Dataset:
    """Return one dataset."""
    return await datasets.get_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.patch(
    "/datasets/{dataset_id}",
    permission="datasets:update",
    raises=(DatasetNotFound, DatasetExists, Invalid),
    audit=Action("dataset.update"),
)
async def update_dataset(ctx: Context, dataset_id: UUID, body: DatasetPatch) -> Dataset:
    """Change a dataset. A schema that stored examples violate is refused."""
    return await datasets.update_dataset(ctx.db, ctx.actor.workspace_id, dataset_id, body)


@routes.delete(
    "/datasets/{dataset_id}", permission="datasets:delete", raises=(DatasetNotFound,), audit=Action("dataset.delete")
)
async def delete_dataset(ctx: Context, dataset_id: UUID) -> Accepted:
    """Delete a dataset with its examples; experiments on it stay as projects."""
    await datasets.delete_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)
    return Accepted("Deleted")


@routes.put(
    "/datasets/{dataset_id}/share",
    permission="datasets:share",
    raises=(DatasetNotFound,),
    audit=Action("dataset.share"),
)
async def share_dataset(ctx: Context, dataset_id: UUID) -> DatasetShare:
    """Share a dataset and its examples by a link."""
    return await datasets.share_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.get("/datasets/{dataset_id}/share", permission="datasets:read", raises=(DatasetNotFound,))
async def get_dataset_share(ctx: Context, dataset_id: UUID) -> DatasetShare:
    """Return the share of a dataset; 404 if it is not shared."""
    return await datasets.get_share(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.delete("/datasets/{dataset_id}/share", status=204, permission="datasets:share", audit=Action("dataset.unshare"))
async def unshare_dataset(ctx: Context, dataset_id: UUID) -> None:
    """Stop sharing a dataset."""
    await datasets.unshare_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)
