"""Datasets themselves, and the files that they are made of and written to (contract: hosted API, section f.4)."""

from uuid import UUID

from starlette.responses import StreamingResponse

from portside.datasets import changes, datasets, downloads, uploads
from portside.datasets.errors import DatasetExists, DatasetNotFound, ExampleExists, VersionNotFound
from portside.datasets.types import (
    AtVersion,
    Dataset,
    DatasetPatch,
    DatasetQuery,
    DatasetRequest,
    DatasetShare,
)
from portside.datasets.versions import find_moment
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing.encodings import EncodingBroken, EncodingUnknown
from portside.tracing.types import Accepted

routes = Routes("datasets")
_READS = (DatasetNotFound, VersionNotFound, Invalid)
_LINES = "application/jsonl"


@routes.post("/datasets", permission="datasets:create", raises=(DatasetExists, Invalid))
async def create_dataset(ctx: Context, body: DatasetRequest) -> Dataset:
    """Make a dataset."""
    return await datasets.create_dataset(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/datasets", permission="datasets:read", raises=(Invalid,))
async def list_datasets(ctx: Context, query: DatasetQuery) -> list[Dataset]:
    """List the workspace's datasets, newest first unless the query sorts them."""
    return await datasets.list_datasets(ctx.db, ctx.actor.workspace_id, query)


@routes.post(
    "/datasets/upload",
    permission="datasets:create",
    raises=(DatasetExists, ExampleExists, EncodingBroken, EncodingUnknown, Invalid),
)
async def upload_dataset(ctx: Context) -> Dataset:
    """Make a dataset of a CSV file, sent as a form with `input_keys` and `output_keys`."""
    request = ctx.request
    upload = await uploads.read_upload(await request.body(), request.headers, uploads.from_csv)
    return await changes.create_from_file(ctx.db, ctx.actor.workspace_id, upload)


@routes.get("/datasets/{dataset_id}", permission="datasets:read", raises=(DatasetNotFound,))
async def show_dataset(ctx: Context, dataset_id: UUID) -> Dataset:
    """Return one dataset."""
    return await datasets.show_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.patch("/datasets/{dataset_id}", permission="datasets:update", raises=(DatasetNotFound, DatasetExists, Invalid))
async def update_dataset(ctx: Context, dataset_id: UUID, body: DatasetPatch) -> Dataset:
    """Change a dataset; a schema is refused that its examples do not fit."""
    return await datasets.update_dataset(ctx.db, ctx.actor.workspace_id, dataset_id, body)


@routes.delete("/datasets/{dataset_id}", permission="datasets:delete", raises=(DatasetNotFound,))
async def delete_dataset(ctx: Context, dataset_id: UUID) -> Accepted:
    """Delete a dataset with its examples; experiments on it stay as projects."""
    await datasets.delete_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)
    return Accepted("Deleted")


@routes.put("/datasets/{dataset_id}/share", permission="datasets:share", raises=(DatasetNotFound,))
async def share_dataset(ctx: Context, dataset_id: UUID) -> DatasetShare:
    """Share a dataset and its examples with whoever has the link."""
    return await datasets.share_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.get("/datasets/{dataset_id}/share", permission="datasets:read", raises=(DatasetNotFound,))
async def show_dataset_share(ctx: Context, dataset_id: UUID) -> DatasetShare:
    """Return how a dataset is shared; 404 where it is not."""
    return await datasets.show_share(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.delete("/datasets/{dataset_id}/share", status=204, permission="datasets:share")
async def unshare_dataset(ctx: Context, dataset_id: UUID) -> None:
    """Stop sharing a dataset."""
    await datasets.unshare_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)


@routes.get("/datasets/{dataset_id}/csv", permission="datasets:read", raises=_READS, media_type="text/csv")
async def download_csv(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write the examples as CSV, a column for each key."""
    place = await _place(ctx, dataset_id, query)
    return StreamingResponse(downloads.write_csv(ctx.db, place), headers=_saved("csv"), media_type="text/csv")


@routes.get("/datasets/{dataset_id}/jsonl", permission="datasets:read", raises=_READS, media_type=_LINES)
async def download_jsonl(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write the examples as lines of JSON."""
    lines = downloads.write_lines(ctx.db, await _place(ctx, dataset_id, query), downloads.as_line)
    return StreamingResponse(lines, headers=_saved("jsonl"), media_type=_LINES)


@routes.get(
    "/datasets/{dataset_id}/openai_ft",
    permission="datasets:read",
    raises=(*_READS, downloads.NotConversations),
    media_type=_LINES,
)
async def download_openai_finetuning(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write conversations as OpenAI's fine-tuning reads them."""
    place = await _place(ctx, dataset_id, query)
    await downloads.check_conversations(ctx.db, place)
    lines = downloads.write_lines(ctx.db, place, downloads.as_finetuning)
    return StreamingResponse(lines, headers=_saved("jsonl"), media_type=_LINES)


@routes.get(
    "/datasets/{dataset_id}/openai",
    permission="datasets:read",
    raises=(*_READS, downloads.NotConversations),
    media_type=_LINES,
)
async def download_openai_evaluation(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write conversations as OpenAI's evaluations read them."""
    place = await _place(ctx, dataset_id, query)
    await downloads.check_conversations(ctx.db, place)
    lines = downloads.write_lines(ctx.db, place, downloads.as_evaluation)
    return StreamingResponse(lines, headers=_saved("jsonl"), media_type=_LINES)


async def _place(ctx: Context, dataset_id: UUID, query: AtVersion) -> downloads.Place:
    workspace_id = ctx.actor.workspace_id
    await datasets.show_dataset(ctx.db, workspace_id, dataset_id)
    moment = await find_moment(ctx.db, workspace_id, dataset_id, query.as_of)
    return downloads.place_of(workspace_id, dataset_id, moment)


def _saved(ending: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="dataset.{ending}"'}
