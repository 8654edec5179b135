"""The routes of source archives: an address for one, the address itself, and the way of listeners to it."""

from uuid import UUID

from starlette.responses import FileResponse

from portside.control.archive_store import MAX_ARCHIVE_BYTES, ArchiveStore, NoArchive, UploadUnderWay
from portside.control.archives import (
    ArchiveNotFound,
    UploadNotExpected,
    UploadTooSlow,
    expect_archive,
    find_archive,
    receive_archive,
)
from portside.control.errors import BeingDeleted, DeploymentNotFound, RevisionNotFound
from portside.control.http.scoping import reached_at, scope_of
from portside.control.types.archives import UploadAddress, UploadQuery, UploadRequest
from portside.kernel.errors import BodyTooLarge
from portside.kernel.http.routes import Context, Routes

routes = Routes("archives")
NO_WISHES = UploadRequest()


@routes.post(
    "/v2/deployments/{deployment_id}/upload-url",
    permission="deployments:update",
    raises=(DeploymentNotFound, BeingDeleted),
)
async def make_upload_url(ctx: Context, deployment_id: UUID, body: UploadRequest = NO_WISHES) -> UploadAddress:
    """Return an address for the archive of a deployment's next revision."""
    return await expect_archive(scope_of(ctx), deployment_id, reached_at(ctx), body)


@routes.put(
    "/v2/uploads/{archive_id}",
    public=True,
    status=204,
    raises=(UploadNotExpected, UploadUnderWay, UploadTooSlow, NoArchive, BodyTooLarge),
    max_body_bytes=MAX_ARCHIVE_BYTES,
)
async def put_archive(ctx: Context, archive_id: UUID, query: UploadQuery) -> None:
    """Take in an archive at an address that `upload-url` answered; the token in it is the key."""
    await receive_archive(ctx.db, ctx.get(ArchiveStore), archive_id, query.token, ctx.request.stream())


@routes.get(
    "/internal/deployments/{deployment_id}/revisions/{revision_id}/archive",
    permission="listeners:work",
    raises=(DeploymentNotFound, RevisionNotFound, ArchiveNotFound),
    media_type="application/gzip",
)
async def get_archive(ctx: Context, deployment_id: UUID, revision_id: UUID) -> FileResponse:
    """Return the archive that a revision is made of."""
    file = await find_archive(scope_of(ctx), ctx.get(ArchiveStore), deployment_id, revision_id)
    return FileResponse(file, media_type="application/gzip")
