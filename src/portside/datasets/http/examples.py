"""Examples of datasets (contract: hosted API, section f.4)."""

from typing import Annotated
from uuid import UUID

import msgspec

from portside.datasets import changes, examples, uploads
from portside.datasets.attachments import Links
from portside.datasets.errors import DatasetNotFound, ExampleExists, ExampleNotFound, VersionNotFound
from portside.datasets.types import (
    AtVersion,
    Changed,
    Example,
    ExampleDeletion,
    ExamplePatch,
    ExampleQuery,
    ExampleRequest,
    ExamplesChanged,
    ExamplesToDelete,
    NamedPatch,
)
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import BodyTooLarge, Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing.encodings import EncodingBroken, EncodingUnknown
from portside.tracing.filter_language import FilterInvalid
from portside.tracing.types import Accepted

routes = Routes("datasets")
_ENCODED = (BodyTooLarge, EncodingBroken, EncodingUnknown, Invalid)
_MAX_EXAMPLES = 10_000
ExampleRequests = Annotated[list[ExampleRequest], msgspec.Meta(min_length=1, max_length=_MAX_EXAMPLES)]
NamedPatches = Annotated[list[NamedPatch], msgspec.Meta(min_length=1, max_length=_MAX_EXAMPLES)]


@routes.get("/examples", permission="datasets:read", raises=(FilterInvalid, VersionNotFound, Invalid))
async def list_examples(ctx: Context, query: ExampleQuery) -> list[Example]:
    """List examples as they are, or were at a version."""
    return await examples.list_examples(ctx.db, ctx.actor.workspace_id, query, links_of(ctx))


@routes.post("/examples", permission="datasets:update", raises=(DatasetNotFound, ExampleExists, Invalid))
async def create_example(ctx: Context, body: ExampleRequest) -> Example:
    """Make one example."""
    (made,) = await changes.add_to_datasets(
        ctx.db, ctx.actor.workspace_id, [(uploads.from_request(body), body.dataset_id)]
    )
    return await examples.show_example(ctx.db, ctx.actor.workspace_id, made, None, links_of(ctx))


@routes.delete("/examples", permission="datasets:update")
async def delete_examples(ctx: Context, query: ExamplesToDelete) -> Accepted:
    """Delete several examples; versions before keep them. Those that are not there are passed over."""
    await changes.delete_examples(ctx.db, ctx.actor.workspace_id, query.example_ids, hard=False)
    return Accepted("Deleted")


@routes.post("/examples/bulk", permission="datasets:update", raises=(DatasetNotFound, ExampleExists, Invalid))
async def create_examples(ctx: Context, body: ExampleRequests) -> list[Example]:
    """Make several examples, all or none."""
    owned = [(uploads.from_request(one), one.dataset_id) for one in body]
    made = await changes.add_to_datasets(ctx.db, ctx.actor.workspace_id, owned)
    shown = examples.EVERYTHING - {examples.ATTACHMENTS}
    return await examples.show_examples(ctx.db, ctx.actor.workspace_id, made, None, links_of(ctx), shown=shown)


@routes.patch("/examples/bulk", permission="datasets:update", raises=(ExampleNotFound, Invalid))
async def update_examples(ctx: Context, body: NamedPatches) -> ExamplesChanged:
    """Change several examples, all or none; null means unchanged."""
    return await changes.change_where_they_are(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/examples/{example_id}", permission="datasets:read", raises=(ExampleNotFound, VersionNotFound, Invalid))
async def show_example(ctx: Context, example_id: UUID, query: AtVersion) -> Example:
    """Return one example as it is, or was at a version."""
    return await examples.show_example(ctx.db, ctx.actor.workspace_id, example_id, query.as_of, links_of(ctx))


@routes.patch("/examples/{example_id}", permission="datasets:update", raises=(ExampleNotFound, Invalid))
async def update_example(ctx: Context, example_id: UUID, body: ExamplePatch) -> ExamplesChanged:
    """Change an example; null means unchanged."""
    patch = NamedPatch(id=example_id, **msgspec.structs.asdict(body))
    return await changes.change_where_they_are(ctx.db, ctx.actor.workspace_id, [patch])


@routes.delete("/examples/{example_id}", permission="datasets:update", raises=(ExampleNotFound,))
async def delete_example(ctx: Context, example_id: UUID) -> Accepted:
    """Delete an example; versions before keep it."""
    await changes.delete_example(ctx.db, ctx.actor.workspace_id, example_id)
    return Accepted("Deleted")


@routes.post(
    "/platform/datasets/{dataset_id}/examples",
    "/v1/platform/datasets/{dataset_id}/examples",
    status=201,
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, *_ENCODED),
)
async def upload_examples(ctx: Context, dataset_id: UUID) -> Changed:
    """Make the examples of a multipart body, with their attachments, all or none."""
    request = ctx.request
    writes = await uploads.read_upload(await request.body(), request.headers, uploads.from_multipart)
    return await changes.add_examples(ctx.db, ctx.actor.workspace_id, dataset_id, writes)


@routes.patch(
    "/platform/datasets/{dataset_id}/examples",
    "/v1/platform/datasets/{dataset_id}/examples",
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleNotFound, *_ENCODED),
)
async def upload_changes(ctx: Context, dataset_id: UUID) -> Changed:
    """Change the examples of a multipart body and their attachments, all or none."""
    request = ctx.request
    writes = await uploads.read_upload(await request.body(), request.headers, uploads.from_multipart)
    return await changes.change_examples(ctx.db, ctx.actor.workspace_id, dataset_id, writes)


@routes.post(
    "/platform/examples/multipart",
    "/v1/platform/examples/multipart",
    status=201,
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, *_ENCODED),
)
async def put_examples(ctx: Context) -> Changed:
    """Make or change the examples of a multipart body that names their datasets itself."""
    request = ctx.request
    owned = await uploads.read_upload(await request.body(), request.headers, uploads.from_owned_multipart)
    return await changes.put_examples(ctx.db, ctx.actor.workspace_id, owned)


@routes.post(
    "/platform/datasets/examples/delete", "/v1/platform/datasets/examples/delete", permission="datasets:delete"
)
async def delete_examples_for_good(ctx: Context, body: ExampleDeletion) -> Accepted:
    """Delete several examples; with `hard_delete` from every version."""
    await changes.delete_examples(ctx.db, ctx.actor.workspace_id, body.example_ids, hard=body.hard_delete)
    return Accepted("Deleted")


def links_of(ctx: Context) -> Links:
    """Return what makes links below the address that the request came to."""
    return Links(ctx.get(SecretBox), str(ctx.request.base_url))
