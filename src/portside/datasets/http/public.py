"""What links open to whoever has them: shared datasets and attachments (contract: hosted API, section f.4)."""

from uuid import UUID

from starlette.responses import Response

from portside.datasets import attachments, datasets, sharing
from portside.datasets.attachments import ExampleAttachmentNotFound
from portside.datasets.errors import SharedDatasetNotFound, VersionNotFound
from portside.datasets.http.examples import links_of
from portside.datasets.types import Dataset, Example, SharedExampleQuery
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing.filter_language import FilterInvalid
from portside.tracing.links import UNKNOWN_TYPE, DownloadQuery, LinkInvalid
from portside.tracing.project_lists import ProjectQuery
from portside.tracing.types import TracerSession

routes = Routes("datasets")


@routes.get("/public/{share_token}/datasets", public=True, raises=(SharedDatasetNotFound,))
async def show_shared_dataset(ctx: Context, share_token: UUID) -> Dataset:
    """Return a shared dataset, without a key."""
    return await datasets.show_dataset(ctx.db, *await datasets.open_share(ctx.db, share_token))


@routes.get(
    "/public/{share_token}/examples",
    public=True,
    raises=(SharedDatasetNotFound, VersionNotFound, FilterInvalid, Invalid),
)
async def list_shared_examples(ctx: Context, share_token: UUID, query: SharedExampleQuery) -> list[Example]:
    """List the examples of a shared dataset, without a key."""
    return await sharing.list_shared_examples(ctx.db, share_token, query, links_of(ctx))


@routes.get("/public/{share_token}/datasets/sessions", public=True, raises=(SharedDatasetNotFound, Invalid))
async def list_shared_experiments(ctx: Context, share_token: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List the experiments on a shared dataset, without a key."""
    return await sharing.list_shared_experiments(ctx.db, share_token, query)


@routes.get(
    f"/{attachments.PATH}", public=True, raises=(LinkInvalid, ExampleAttachmentNotFound), media_type=UNKNOWN_TYPE
)
async def download_example_attachment(ctx: Context, query: DownloadQuery) -> Response:
    """Return the attachment that a link is for; links come with examples and are good for an hour."""
    return await attachments.download(ctx.db, ctx.get(SecretBox), query)
