"""The routes of the versions and the splits of a dataset."""

from uuid import UUID

from portside.datasets import datasets, examples, versions
from portside.datasets.errors import DatasetNotFound, ExampleNotFound, VersionNotFound
from portside.datasets.types import (
    AtVersion,
    DatasetVersionsQuery,
    Difference,
    DiffQuery,
    SplitsRequest,
    Version,
    VersionAt,
    VersionTagRequest,
)
from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing.services import Context, Routes

routes = Routes("datasets")


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
