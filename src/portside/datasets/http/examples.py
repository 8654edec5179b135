"""The routes of examples, one by one or several in a JSON body."""

from typing import Annotated
from uuid import UUID

import msgspec

from portside.datasets import examples, files
from portside.datasets.errors import DatasetNotFound, ExampleElsewhere, ExampleExists, ExampleNotFound, VersionNotFound
from portside.datasets.types import (
    AtVersion,
    Example,
    ExampleDeletion,
    ExamplePatch,
    ExampleQuery,
    ExampleRequest,
    ExamplesChanged,
    ExamplesToDelete,
    NamedPatch,
)
from portside.kernel.clock import read_utc
from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.http.links import build_links
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("datasets")
_MAX_EXAMPLES = 10_000
ExampleRequests = Annotated[list[ExampleRequest], msgspec.Meta(min_length=1, max_length=_MAX_EXAMPLES)]
NamedPatches = Annotated[list[NamedPatch], msgspec.Meta(min_length=1, max_length=_MAX_EXAMPLES)]


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
    raises=(Invalid,),
    audit=Action("example.delete", id_fields=("example_ids",)),
)
async def delete_examples(ctx: Context, query: ExamplesToDelete) -> Accepted:
    """Delete several examples; earlier versions keep them. Unknown ids are ignored."""
    moment = read_utc(query.as_of, ["query", "as_of"]) if query.as_of else None
    await examples.delete_examples(ctx.db, ctx.actor.workspace_id, query.example_ids, hard=False, moment=moment)
    return Accepted("Deleted")


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
