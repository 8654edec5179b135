"""The routes of shared datasets and of links to attachments, which need no API key."""

from uuid import UUID

from starlette.responses import Response

from portside.datasets import attachments, datasets, examples, experiments
from portside.datasets.attachments import ExampleAttachmentNotFound
from portside.datasets.errors import SharedDatasetNotFound, VersionNotFound
from portside.datasets.types import Dataset, Example, SharedExampleQuery
from portside.kernel.errors import Invalid
from portside.tracing.attachments import DownloadQuery, LinkInvalid
from portside.tracing.bodies import UNKNOWN_TYPE
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.http.links import build_links
from portside.tracing.project_lists import ProjectQuery
from portside.tracing.services import Context, Routes
from portside.tracing.types import TracerSession

routes = Routes("datasets")


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
