"""The routes of archives: the sources that clients upload, and listeners build."""

from uuid import UUID

from starlette.responses import FileResponse

from portside.control.archive_store import MAX_ARCHIVE_BYTES, NotGzip, UploadUnderWay
from portside.control.archives import (
    ArchiveNotFound,
    UploadNotExpected,
    UploadTooSlow,
    create_upload_address,
    find_archive,
    receive_archive,
)
from portside.control.errors import BeingDeleted, DeploymentNotFound, RevisionNotFound
from portside.control.services import Context, Routes, get_scope
from portside.control.types import UploadAddress, UploadQuery, UploadRequest
from portside.kernel.errors import BodyTooLarge
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.headers import get_base_url

routes = Routes("archives")
_NO_UPLOAD_OPTIONS = UploadRequest()


@routes.post(
    "/v2/deployments/{deployment_id}/upload-url",
    permission="deployments:update",
    raises=(DeploymentNotFound, BeingDeleted),
    audit=Action("upload_url.create"),
)
async def create_upload_url(
    ctx: Context, deployment_id: UUID, body: UploadRequest = _NO_UPLOAD_OPTIONS
) -> UploadAddress:
    """Return an upload address for the archive of a deployment's next revision."""
    return await create_upload_address(get_scope(ctx), deployment_id, get_base_url(ctx.request), body)


@routes.put(
    "/v2/uploads/{archive_id}",
    public=True,
    status=204,
    raises=(UploadNotExpected, UploadUnderWay, UploadTooSlow, NotGzip, BodyTooLarge),
    max_body_bytes=MAX_ARCHIVE_BYTES,
    audit=Action("archive.upload"),
)
async def upload_archive(ctx: Context, archive_id: UUID, query: UploadQuery) -> None:
    """Upload an archive to an address from `upload-url`; its token replaces an API key."""
    await receive_archive(ctx.db, ctx.services.archives, archive_id, token=query.token, chunks=ctx.request.stream())


@routes.get(
    "/internal/deployments/{deployment_id}/revisions/{revision_id}/archive",
    permission="listeners:work",
    raises=(DeploymentNotFound, RevisionNotFound, ArchiveNotFound),
    media_type="application/gzip",
)
async def get_archive(ctx: Context, deployment_id: UUID, revision_id: UUID) -> FileResponse:
    """Return the archive of a revision."""
    file = await find_archive(get_scope(ctx), ctx.services.archives, deployment_id, revision_id)
    return FileResponse(file, media_type="application/gzip")
