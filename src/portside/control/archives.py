"""Source archives: their upload addresses, and the revisions that are built from them.

An upload address belongs to one deployment, needs the token in its URL and accepts one archive. A revision names the
archive by its path, which is unguessable and checked against the deployment. `archive_store.py` stores the files; the
data plane unpacks them.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

from portside.control.archive_store import SUFFIX, ArchiveStore
from portside.control.errors import BadCombination, BeingDeleted
from portside.control.revisions import lock_deployment, read_revision
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types import UploadAddress, UploadRequest
from portside.kernel.db import Database, Transaction
from portside.kernel.errors import BadRequest, NotFound, Unauthorized
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task
from portside.kernel.timeouts import timeout
from portside.listener_api import DeploymentStatus

UPLOAD_WITHIN_S = 3600.0
# How many unused archives a deployment keeps, and for how long.
UNUSED_KEPT = 10
UNUSED_FOR_S = 24 * 3600.0
_HEADERS = {"Content-Type": "application/gzip"}
_PREFIX = "uploads/"


class UploadNotExpected(Unauthorized):
    """The upload address is unknown, used or expired; request a new one with POST …/upload-url."""

    code = "upload_not_expected"


class UploadTooSlow(BadRequest):
    """The upload took longer than an hour; request a new address with POST …/upload-url and try again."""

    code = "upload_too_slow"


class ArchiveNotFound(NotFound):
    """The revision was not built from an archive, or its archive was deleted."""

    code = "archive_not_found"


async def create_upload_address(scope: Scope, deployment_id: UUID, base_url: str, body: UploadRequest) -> UploadAddress:
    """Create an upload address for one archive of a deployment. Raises DeploymentNotFound and BeingDeleted."""
    archive_id = uuid7()
    token = secrets.token_urlsafe(32)
    async with scope.db.transaction() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted

        await tx.execute(
            sql.insert_archive,
            id=archive_id,
            deployment_id=deployment_id,
            token_hash=_hash_token(token),
            lifetime_s=UPLOAD_WITHIN_S,
        )

        await tx.execute(sql.drop_surplus_archives, deployment_id=deployment_id, keep=UNUSED_KEPT)

    address = UploadAddress(
        upload_url=f"{base_url}/v2/uploads/{archive_id}?token={token}",
        object_path=to_object_path(deployment_id, archive_id),
    )
    if body.supports_upload_headers:
        address.upload_headers = _HEADERS

    return address


async def receive_archive(
    db: Database, store: ArchiveStore, archive_id: UUID, *, token: str, chunks: AsyncIterator[bytes]
) -> None:
    """Store the archive that is uploaded to an address; an address works once.

    Raises UploadNotExpected, UploadUnderWay, UploadTooSlow, NotGzip and BodyTooLarge.
    """
    if await db.fetchval(sql.find_open_upload, id=archive_id, token_hash=_hash_token(token)) is None:
        raise UploadNotExpected

    async with store.open_upload(archive_id) as partial:
        try:
            async with timeout(UPLOAD_WITHIN_S):
                size = await partial.write(chunks)
        except TimeoutError as exc:
            raise UploadTooSlow from exc

        async with db.transaction() as tx:
            if await tx.fetchval(sql.finish_archive, id=archive_id, size_bytes=size) is None:
                raise UploadNotExpected

            # Inside the transaction: an archive that counts as uploaded has its file.
            await asyncio.to_thread(partial.publish)


def to_object_path(deployment_id: UUID, archive_id: UUID) -> str:
    """Return the path by which `source_tarball_path` names an archive."""
    return f"{_PREFIX}{deployment_id}/{archive_id}{SUFFIX}"


def _find_archive_id(deployment_id: UUID, path: str) -> UUID | None:
    """Return the id in an archive's path, or None for a path that is not one of the deployment's."""
    try:
        archive_id = UUID(path.removesuffix(SUFFIX).rsplit("/", 1)[-1])
    except ValueError:
        return None

    return archive_id if path == to_object_path(deployment_id, archive_id) else None


async def claim_archive(tx: Transaction, deployment_id: UUID, path: str) -> None:
    """Check that a revision of the deployment may use the archive, and mark the archive as used so that it is kept.

    Raises BadCombination for a path that was not issued to this deployment, or whose upload is missing.
    """
    archive_id = _find_archive_id(deployment_id, path)
    is_usable = archive_id is not None and await tx.fetchval(
        sql.use_archive, id=archive_id, deployment_id=deployment_id
    )
    if not is_usable:
        raise BadCombination(
            "source_revision_config.source_tarball_path must be an object_path that POST …/upload-url returned for "
            "this deployment; upload the archive to its upload_url first."
        )


async def find_archive(scope: Scope, store: ArchiveStore, deployment_id: UUID, revision_id: UUID) -> Path:
    """Return the file of a revision's archive. Raises DeploymentNotFound, RevisionNotFound and ArchiveNotFound."""
    await read_revision(scope.db, scope, deployment_id, revision_id)
    path = await scope.db.fetchval(
        sql.archive_of_revision,
        revision_id=revision_id,
        deployment_id=deployment_id,
        workspace_id=scope.workspace_id,
    )

    archive_id = _find_archive_id(deployment_id, path or "")
    file = store.path(archive_id) if archive_id else None
    if file is None or not await asyncio.to_thread(file.is_file):
        raise ArchiveNotFound

    return file


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class UnusedArchives(Task):
    """Deletes archives that no revision uses, then files that have no row."""

    every_s = 60.0
    deletes = True

    def __init__(self, db: Database, store: ArchiveStore) -> None:
        super().__init__()
        self._db = db
        self._store = store

    async def activate(self) -> Status:
        """Delete rows first: a file without a row is garbage."""
        row_count = await self._db.execute(sql.drop_unused_archives, older_than_s=UNUSED_FOR_S)

        archive_ids = await asyncio.to_thread(self._store.list_archives)
        rows = await self._db.fetch(sql.known_archives, ids=archive_ids)
        ids_with_row = {row["id"] for row in rows}
        garbage = [archive_id for archive_id in archive_ids if archive_id not in ids_with_row]
        file_count = await asyncio.to_thread(self._store.remove, garbage)

        return Status({"deleted": row_count, "removed": file_count})
