"""The routes that create and change examples with their attachments, in a multipart body."""

from uuid import UUID

from portside.datasets import examples, files
from portside.datasets.errors import DatasetNotFound, ExampleElsewhere, ExampleExists, ExampleNotFound
from portside.datasets.types import Changed, WrittenAt
from portside.kernel.clock import read_utc
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.routes import MULTIPART
from portside.tracing.bodies import BODY_ERRORS, read_body
from portside.tracing.services import Context, Routes

routes = Routes("datasets")


@routes.post(
    "/platform/datasets/{dataset_id}/examples",
    "/v1/platform/datasets/{dataset_id}/examples",
    status=201,
    permission="datasets:update",
    raises=(DatasetNotFound, ExampleExists, *BODY_ERRORS),
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
    raises=(DatasetNotFound, ExampleNotFound, ExampleElsewhere, *BODY_ERRORS),
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
    raises=(DatasetNotFound, ExampleExists, ExampleElsewhere, *BODY_ERRORS),
    consumes=MULTIPART,
    audit=Action("example.create"),
)
async def put_examples(ctx: Context, query: WrittenAt) -> Changed:
    """Create or change the examples of a multipart body that names their datasets.

    `as_of` gives the new version the time that it has at another server.
    """
    services = ctx.services
    moment = read_utc(query.as_of, ["query", "as_of"]) if query.as_of else None
    async with read_body(
        ctx.request, services.read_budget, services.ingest_limits, files.parse_owned_examples
    ) as owned:
        return await examples.put_examples(ctx.db, ctx.actor.workspace_id, owned, moment)
