"""The routes of datasets, examples, versions and experiments."""

from typing import Annotated
from uuid import UUID

import msgspec
from starlette.responses import Response, StreamingResponse

from portside.datasets import attachments, datasets, examples, experiments, files, versions
from portside.datasets.attachments import ExampleAttachmentNotFound
from portside.datasets.errors import (
    ComparisonExists,
    ComparisonNotFound,
    DatasetExists,
    DatasetNotFound,
    ExampleElsewhere,
    ExampleExists,
    ExampleNotFound,
    SharedDatasetNotFound,
    VersionNotFound,
)
from portside.datasets.experiments import (
    Comparison,
    ComparisonQuery,
    ComparisonRequest,
    ExampleWithRuns,
    ExperimentPage,
    ExperimentRuns,
    ExperimentRunsQuery,
)
from portside.datasets.types import (
    AtVersion,
    Changed,
    Dataset,
    DatasetPatch,
    DatasetQuery,
    DatasetRequest,
    DatasetShare,
    DatasetVersionsQuery,
    Difference,
    DiffQuery,
    Example,
    ExampleDeletion,
    ExamplePatch,
    ExampleQuery,
    ExampleRequest,
    ExamplesChanged,
    ExamplesToDelete,
    NamedPatch,
    SharedExampleQuery,
    SplitsRequest,
    Version,
    VersionAt,
    VersionTagRequest,
)
from portside.datasets.versions import find_fixed_moment, resolve_moment
from portside.kernel.errors import BodyTooLarge, Invalid
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.downloads import download
from portside.kernel.http.routes import MULTIPART
from portside.kernel.large_reads import TooManyLargeReads
from portside.kernel.spool import DownloadTooLarge, TooManyDownloads
from portside.tracing.attachments import DownloadQuery, LinkInvalid
from portside.tracing.bodies import UNKNOWN_TYPE, EncodingBroken, EncodingUnknown, read_body
from portside.tracing.cursors import CursorInvalid
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.http import build_links
from portside.tracing.projects import ProjectQuery
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted, TracerSession

routes = Routes("datasets")

_READS = (DatasetNotFound, VersionNotFound, Invalid)
_DOWNLOADS = (*_READS, TooManyLargeReads, DownloadTooLarge, TooManyDownloads)
# What `read_body` raises.
_ENCODED = (BodyTooLarge, EncodingBroken, EncodingUnknown, Invalid, TooManyLargeReads)
_LINES = "application/jsonl"
_MAX_EXAMPLES = 10_000
ExampleRequests = Annotated[list[ExampleRequest], msgspec.Meta(min_length=1, max_length=_MAX_EXAMPLES)]
NamedPatches = Annotated[list[NamedPatch], msgspec.Meta(min_length=1, max_length=_MAX_EXAMPLES)]


# Datasets and their files


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
    raises=(DatasetExists, ExampleExists, *_ENCODED),
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


# Versions and splits


@routes.get("/datasets/{dataset_id}/versions", permission="datasets:read", raises=(DatasetNotFound,))
async def list_dataset_versions(ctx: Context, dataset_id: UUID, query: DatasetVersionsQuery) -> list[Version]:
    """List the versions of a dataset, newest first."""
    return await versions.list_versions(ctx.db, ctx.actor.workspace_id, dataset_id, query)


@routes.get(
    "/datasets/{dataset_id}/versions/diff",
    permission="datasets:read",
    raises=(DatasetNotFound, VersionNotFound, Invalid),
)
async def diff_dataset_versions(ctx: Context, dataset_id: UUID, query: DiffQuery) -> Difference:
    """Return the examples that were added, changed and removed between two versions."""
    return await versions.diff_versions(ctx.db, ctx.actor.workspace_id, dataset_id, query)


@routes.get("/datasets/{dataset_id}/version", permission="datasets:read", raises=(VersionNotFound, Invalid))
async def get_dataset_version(ctx: Context, dataset_id: UUID, query: VersionAt) -> Version:
    """Return the version that has a tag, or the last one until a moment."""
    return await versions.get_version(ctx.db, ctx.actor.workspace_id, dataset_id, query)


@routes.put(
    "/datasets/{dataset_id}/tags",
    permission="datasets:update",
    raises=(DatasetNotFound, VersionNotFound, Invalid),
    audit=Action("dataset.tag"),
)
async def tag_dataset_version(ctx: Context, dataset_id: UUID, body: VersionTagRequest) -> Version:
    """Tag a version; the tag leaves its previous version."""
    return await versions.tag_version(ctx.db, ctx.actor.workspace_id, dataset_id, body)


@routes.get(
    "/datasets/{dataset_id}/splits", permission="datasets:read", raises=(DatasetNotFound, VersionNotFound, Invalid)
)
async def list_dataset_splits(ctx: Context, dataset_id: UUID, query: AtVersion) -> list[str]:
    """List the splits of a dataset."""
    await datasets.get_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)
    return await examples.list_splits(ctx.db, ctx.actor.workspace_id, dataset_id, query.as_of)


@routes.put(
    "/datasets/{dataset_id}/splits",
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleNotFound, Invalid),
    audit=Action("dataset.update"),
)
async def update_dataset_splits(ctx: Context, dataset_id: UUID, body: SplitsRequest) -> list[str]:
    """Add examples to a split or remove them, and return all splits."""
    return await examples.move_split(ctx.db, ctx.actor.workspace_id, dataset_id, body)


# Experiments and comparisons


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


# Examples


@routes.get("/examples", permission="datasets:read", raises=(FilterInvalid, VersionNotFound, Invalid))
async def list_examples(ctx: Context, query: ExampleQuery) -> list[Example]:
    """List examples, by default at the latest version."""
    return await examples.list_examples(ctx.db, ctx.actor.workspace_id, query, build_links(ctx))


@routes.post(
    "/examples",
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, Invalid),
    audit=Action("example.create", id_fields=("dataset_id",)),
)
async def create_example(ctx: Context, body: ExampleRequest) -> Example:
    """Create one example."""
    writes = [(files.to_write(body), body.dataset_id)]
    (example_id,) = await examples.add_to_datasets(ctx.db, ctx.actor.workspace_id, writes)
    return await examples.get_example(ctx.db, ctx.actor.workspace_id, example_id, None, build_links(ctx))


@routes.post(
    "/examples/bulk",
    operation="examples_bulk_create",
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, Invalid),
    audit=Action("example.create", id_fields=("dataset_id",)),
)
async def create_examples(ctx: Context, body: ExampleRequests) -> list[Example]:
    """Create several examples, all or none."""
    writes = [(files.to_write(example), example.dataset_id) for example in body]
    ids = await examples.add_to_datasets(ctx.db, ctx.actor.workspace_id, writes)
    fields = examples.EVERYTHING - {examples.ATTACHMENTS}
    return await examples.get_examples(ctx.db, ctx.actor.workspace_id, ids, None, build_links(ctx), fields=fields)


@routes.patch(
    "/examples/bulk",
    operation="examples_bulk_update",
    permission="datasets:update",
    raises=(ExampleNotFound, ExampleElsewhere, Invalid),
    audit=Action("example.update", id_fields=("id",)),
)
async def update_examples(ctx: Context, body: NamedPatches) -> ExamplesChanged:
    """Change several examples, all or none; null leaves a field unchanged."""
    return await examples.change_in_any_dataset(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/examples/{example_id}", permission="datasets:read", raises=(ExampleNotFound, VersionNotFound, Invalid))
async def get_example(ctx: Context, example_id: UUID, query: AtVersion) -> Example:
    """Return one example, by default at the latest version."""
    return await examples.get_example(ctx.db, ctx.actor.workspace_id, example_id, query.as_of, build_links(ctx))


@routes.patch(
    "/examples/{example_id}",
    permission="datasets:update",
    raises=(ExampleNotFound, ExampleElsewhere, Invalid),
    audit=Action("example.update"),
)
async def update_example(ctx: Context, example_id: UUID, body: ExamplePatch) -> ExamplesChanged:
    """Change an example; null leaves a field unchanged."""
    patch = NamedPatch(id=example_id, **msgspec.structs.asdict(body))
    return await examples.change_in_any_dataset(ctx.db, ctx.actor.workspace_id, [patch])


@routes.delete(
    "/examples/{example_id}", permission="datasets:update", raises=(ExampleNotFound,), audit=Action("example.delete")
)
async def delete_example(ctx: Context, example_id: UUID) -> Accepted:
    """Delete an example; earlier versions keep it."""
    await examples.delete_example(ctx.db, ctx.actor.workspace_id, example_id)
    return Accepted("Deleted")


@routes.delete(
    "/examples",
    operation="examples_bulk_delete",
    permission="datasets:update",
    audit=Action("example.delete", id_fields=("example_ids",)),
)
async def delete_examples(ctx: Context, query: ExamplesToDelete) -> Accepted:
    """Delete several examples; earlier versions keep them. Unknown ids are ignored."""
    await examples.delete_examples(ctx.db, ctx.actor.workspace_id, query.example_ids, hard=False)
    return Accepted("Deleted")


@routes.post(
    "/platform/datasets/{dataset_id}/examples",
    "/v1/platform/datasets/{dataset_id}/examples",
    status=201,
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, *_ENCODED),
    consumes=MULTIPART,
    audit=Action("example.create", id_fields=("dataset_id",)),
)
async def upload_examples(ctx: Context, dataset_id: UUID) -> Changed:
    """Create the examples of a multipart body with their attachments, all or none."""
    services = ctx.services
    async with read_body(ctx.request, services.read_budget, services.ingest_limits, files.parse_examples) as writes:
        return await examples.add_examples(ctx.db, ctx.actor.workspace_id, dataset_id, writes)


@routes.patch(
    "/platform/datasets/{dataset_id}/examples",
    "/v1/platform/datasets/{dataset_id}/examples",
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleNotFound, ExampleElsewhere, *_ENCODED),
    consumes=MULTIPART,
    audit=Action("example.update", id_fields=("dataset_id",)),
)
async def upload_example_changes(ctx: Context, dataset_id: UUID) -> Changed:
    """Change the examples of a multipart body and their attachments, all or none."""
    services = ctx.services
    async with read_body(ctx.request, services.read_budget, services.ingest_limits, files.parse_examples) as writes:
        return await examples.change_examples(ctx.db, ctx.actor.workspace_id, dataset_id, writes)


@routes.post(
    "/platform/examples/multipart",
    "/v1/platform/examples/multipart",
    status=201,
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, ExampleElsewhere, *_ENCODED),
    consumes=MULTIPART,
    audit=Action("example.create"),
)
async def put_examples(ctx: Context) -> Changed:
    """Create or change the examples of a multipart body that names their datasets."""
    services = ctx.services
    async with read_body(
        ctx.request, services.read_budget, services.ingest_limits, files.parse_owned_examples
    ) as owned:
        return await examples.put_examples(ctx.db, ctx.actor.workspace_id, owned)


@routes.post(
    "/platform/datasets/examples/delete",
    "/v1/platform/datasets/examples/delete",
    permission="datasets:delete",
    audit=Action("example.erase", id_fields=("dataset_id", "example_ids")),
)
async def erase_examples(ctx: Context, body: ExampleDeletion) -> Accepted:
    """Delete several examples; with `hard_delete` from every version."""
    await examples.delete_examples(ctx.db, ctx.actor.workspace_id, body.example_ids, hard=body.hard_delete)
    return Accepted("Deleted")


# Shared datasets and downloads, without an API key


@routes.get("/public/{share_token}/datasets", public=True, raises=(SharedDatasetNotFound,))
async def get_shared_dataset(ctx: Context, share_token: UUID) -> Dataset:
    """Return a shared dataset, without an API key."""
    workspace_id, dataset_id = await datasets.open_share(ctx.db, share_token)
    return await datasets.get_dataset(ctx.db, workspace_id, dataset_id)


@routes.get(
    "/public/{share_token}/examples",
    public=True,
    raises=(SharedDatasetNotFound, VersionNotFound, FilterInvalid, Invalid),
)
async def list_shared_examples(ctx: Context, share_token: UUID, query: SharedExampleQuery) -> list[Example]:
    """List the examples of a shared dataset, without an API key."""
    return await examples.list_shared_examples(ctx.db, share_token, query, build_links(ctx))


@routes.get("/public/{share_token}/datasets/sessions", public=True, raises=(SharedDatasetNotFound, Invalid))
async def list_shared_experiments(ctx: Context, share_token: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List the experiments on a shared dataset, without an API key."""
    return await experiments.list_shared_experiments(ctx.db, share_token, query)


@routes.get(
    f"/{attachments.PATH}", public=True, raises=(LinkInvalid, ExampleAttachmentNotFound), media_type=UNKNOWN_TYPE
)
async def download_example_attachment(ctx: Context, query: DownloadQuery) -> Response:
    """Return the attachment that a link names. Examples contain fresh links, which last an hour."""
    return await attachments.download(ctx.db, ctx.services.box, query)
