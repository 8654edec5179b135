"""The routes that write the examples of a dataset to a file."""

from uuid import UUID

from starlette.responses import StreamingResponse

from portside.datasets import datasets, files
from portside.datasets.errors import DatasetNotFound, VersionNotFound
from portside.datasets.types import AtVersion
from portside.datasets.versions import find_fixed_moment, resolve_moment
from portside.kernel.errors import Invalid
from portside.kernel.http.downloads import download
from portside.kernel.large_reads import TooManyLargeReads
from portside.kernel.spool import DownloadTooLarge, TooManyDownloads
from portside.tracing.services import Context, Routes

routes = Routes("datasets")
_READS = (DatasetNotFound, VersionNotFound, Invalid)
_DOWNLOADS = (*_READS, TooManyLargeReads, DownloadTooLarge, TooManyDownloads)
_LINES = "application/jsonl"


@routes.get(
    "/datasets/{dataset_id}/csv",
    operation="dataset_csv_download",
    permission="datasets:read",
    raises=_DOWNLOADS,
    media_type="text/csv",
)
async def download_csv(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write the examples as CSV, a column for each key."""
    version = await _get_version(ctx, dataset_id, query)
    return await download(files.write_csv(ctx.db, version), "dataset.csv", "text/csv")


@routes.get(
    "/datasets/{dataset_id}/jsonl",
    operation="dataset_jsonl_download",
    permission="datasets:read",
    raises=_DOWNLOADS,
    media_type=_LINES,
)
async def download_jsonl(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write the examples as lines of JSON."""
    lines = files.write_lines(ctx.db, await _get_version(ctx, dataset_id, query), files.to_line)
    return await download(lines, "dataset.jsonl", _LINES)


@routes.get(
    "/datasets/{dataset_id}/openai_ft",
    operation="dataset_openai_finetuning_download",
    permission="datasets:read",
    raises=(*_DOWNLOADS, files.NotConversations),
    media_type=_LINES,
)
async def download_openai_finetuning(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write conversations in the format of OpenAI's fine-tuning."""
    version = await _get_version(ctx, dataset_id, query)
    await files.check_conversations(ctx.db, version)
    lines = files.write_lines(ctx.db, version, files.to_finetuning)
    return await download(lines, "dataset.jsonl", _LINES)


@routes.get(
    "/datasets/{dataset_id}/openai",
    operation="dataset_openai_evaluation_download",
    permission="datasets:read",
    raises=(*_DOWNLOADS, files.NotConversations),
    media_type=_LINES,
)
async def download_openai_evaluation(ctx: Context, dataset_id: UUID, query: AtVersion) -> StreamingResponse:
    """Write conversations in the format of OpenAI's evaluations."""
    version = await _get_version(ctx, dataset_id, query)
    await files.check_conversations(ctx.db, version)
    lines = files.write_lines(ctx.db, version, files.to_evaluation)
    return await download(lines, "dataset.jsonl", _LINES)


async def _get_version(ctx: Context, dataset_id: UUID, query: AtVersion) -> files.DatasetVersion:
    """Return the version that a download reads, from its first statement to its last."""
    workspace_id = ctx.actor.workspace_id
    await datasets.get_dataset(ctx.db, workspace_id, dataset_id)
    moment = await resolve_moment(ctx.db, workspace_id, dataset_id, query.as_of)
    fixed_moment = await find_fixed_moment(ctx.db, workspace_id, dataset_id, moment)
    return files.build_version(workspace_id, dataset_id, fixed_moment)
