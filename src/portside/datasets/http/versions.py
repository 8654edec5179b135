"""Versions and splits of datasets (contract: hosted API, section f.4)."""

from uuid import UUID

from portside.datasets import changes, datasets, examples, versions
from portside.datasets.errors import DatasetNotFound, ExampleNotFound, VersionNotFound
from portside.datasets.types import (
    AtVersion,
    Difference,
    DiffQuery,
    SplitsRequest,
    TagRequest,
    Version,
    VersionAt,
    VersionQuery,
)
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes

routes = Routes("datasets")


@routes.get("/datasets/{dataset_id}/versions", permission="datasets:read", raises=(DatasetNotFound,))
async def list_dataset_versions(ctx: Context, dataset_id: UUID, query: VersionQuery) -> list[Version]:
    """List the versions of a dataset, newest first."""
    return await versions.list_versions(ctx.db, ctx.actor.workspace_id, dataset_id, query)


@routes.get(
    "/datasets/{dataset_id}/versions/diff",
    permission="datasets:read",
    raises=(DatasetNotFound, VersionNotFound, Invalid),
)
async def diff_dataset_versions(ctx: Context, dataset_id: UUID, query: DiffQuery) -> Difference:
    """Tell which examples were added, changed and removed between two versions."""
    between = (query.from_version, query.to_version)
    return await versions.diff_versions(ctx.db, ctx.actor.workspace_id, dataset_id, *between)


@routes.get("/datasets/{dataset_id}/version", permission="datasets:read", raises=(VersionNotFound, Invalid))
async def show_dataset_version(ctx: Context, dataset_id: UUID, query: VersionAt) -> Version:
    """Return the version that has a tag, or the last one until a moment."""
    return await versions.show_version(ctx.db, ctx.actor.workspace_id, dataset_id, query)


@routes.put(
    "/datasets/{dataset_id}/tags", permission="datasets:update", raises=(DatasetNotFound, VersionNotFound, Invalid)
)
async def tag_dataset_version(ctx: Context, dataset_id: UUID, body: TagRequest) -> Version:
    """Put a tag on a version; it leaves the one that it was on."""
    return await versions.tag_version(ctx.db, ctx.actor.workspace_id, dataset_id, body)


@routes.get(
    "/datasets/{dataset_id}/splits", permission="datasets:read", raises=(DatasetNotFound, VersionNotFound, Invalid)
)
async def list_dataset_splits(ctx: Context, dataset_id: UUID, query: AtVersion) -> list[str]:
    """List the splits of a dataset."""
    await datasets.show_dataset(ctx.db, ctx.actor.workspace_id, dataset_id)
    return await examples.list_splits(ctx.db, ctx.actor.workspace_id, dataset_id, query.as_of)


@routes.put(
    "/datasets/{dataset_id}/splits", permission="datasets:update", raises=(DatasetNotFound, ExampleNotFound, Invalid)
)
async def update_dataset_splits(ctx: Context, dataset_id: UUID, body: SplitsRequest) -> list[str]:
    """Put examples into a split, or take them out of it; return all splits."""
    return await changes.move_split(ctx.db, ctx.actor.workspace_id, dataset_id, body)
