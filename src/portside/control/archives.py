"""Source archives: an address to put one at, where they are kept, and which revision may be made of which.

An address belongs to one deployment, is opened by the token in it alone, and takes one archive. What is put there
becomes part of a revision by its path, which nobody can make up. Unpacking is the data plane's business.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

from portside.control.archive_store import ArchiveStore
from portside.control.errors import BadCombination, BeingDeleted
from portside.control.revisions import find_revision, lock_deployment
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.archives import UploadAddress, UploadRequest
from portside.control.types.statuses import DeploymentStatus
from portside.kernel.db import Database, Transaction
from portside.kernel.errors import BadRequest, NotFound, Unauthorized
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task

UPLOAD_WITHIN_S = 3600.0
UNUSED_KEPT = 10
UNUSED_FOR_S = 24 * 3600.0
_HEADERS = {"Content-Type": "application/gzip"}
_PREFIX, _SUFFIX = "uploads/", ".tar.gz"


class UploadNotExpected(Unauthorized):
    """Nothing is expected at this address, or no longer; ask for a new one with POST …/upload-url."""

    code = "upload_not_expected"


class UploadTooSlow(BadRequest):
    """The archive did not arrive within an hour."""

    code = "upload_too_slow"


class ArchiveNotFound(NotFound):
    """The revision was not made of an archive, or its archive is gone."""

    code = "archive_not_found"


async def expect_archive(scope: Scope, deployment_id: UUID, base_url: str, body: UploadRequest) -> UploadAddress:
    """Make an address for one archive of a deployment. Raises DeploymentNotFound and BeingDeleted."""
    archive_id, token = uuid7(), secrets.token_urlsafe(32)
    async with scope.db.transaction() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted
        await tx.execute(
            sql.insert_archive,
            id=archive_id,
            deployment_id=deployment_id,
            token_hash=_hash(token),
            lifetime_s=UPLOAD_WITHIN_S,
        )
        await tx.execute(sql.drop_surplus_archives, deployment_id=deployment_id, keep=UNUSED_KEPT)
    address = UploadAddress(f"{base_url}/v2/uploads/{archive_id}?token={token}", object_path(deployment_id, archive_id))
    if body.supports_upload_headers:
        address.upload_headers = _HEADERS
    return address


async def receive_archive(
    db: Database, store: ArchiveStore, archive_id: UUID, token: str, chunks: AsyncIterator[bytes]
) -> None:
    """Take in the archive that is expected at an address, once.

    Raises UploadNotExpected, UploadUnderWay, UploadTooSlow, NoArchive and BodyTooLarge.
    """
    if await db.fetchval(sql.awaited_archive, id=archive_id, token_hash=_hash(token)) is None:
        raise UploadNotExpected
    async with store.arriving(archive_id) as arriving:
        try:
            async with asyncio.timeout(UPLOAD_WITHIN_S):
                size = await arriving.write(chunks)
        except TimeoutError as exc:
            raise UploadTooSlow from exc
        async with db.transaction() as tx:
            if await tx.fetchval(sql.finish_archive, id=archive_id, size_bytes=size) is None:
                raise UploadNotExpected
            await asyncio.to_thread(arriving.keep)


def object_path(deployment_id: UUID, archive_id: UUID) -> str:
    """Return the path by which `source_tarball_path` names an archive."""
    return f"{_PREFIX}{deployment_id}/{archive_id}{_SUFFIX}"


def _archive_id(deployment_id: UUID, path: str) -> UUID | None:
    """Return the id in an archive's path, or None for a path that is not one of the deployment's."""
    try:
        found = UUID(path.removesuffix(_SUFFIX).rsplit("/", 1)[-1])
    except ValueError:
        return None
    return found if path == object_path(deployment_id, found) else None


async def check_issued(tx: Transaction, deployment_id: UUID, path: str) -> None:
    """Let a revision of the deployment be made of the archive, which is kept from now on.

    Raises BadCombination for a path that was not issued to this deployment, or at which nothing was put.
    """
    archive_id = _archive_id(deployment_id, path)
    is_there = archive_id is not None and await tx.fetchval(sql.use_archive, id=archive_id, deployment_id=deployment_id)
    if not is_there:
        raise BadCombination(
            "source_revision_config.source_tarball_path must be the object_path that POST …/upload-url answered for "
            "this deployment, after the archive was put to its upload_url."
        )


async def find_archive(scope: Scope, store: ArchiveStore, deployment_id: UUID, revision_id: UUID) -> Path:
    """Return the file of a revision's archive. Raises DeploymentNotFound, RevisionNotFound and ArchiveNotFound."""
    await find_revision(scope.db, scope, deployment_id, revision_id)
    path = await scope.db.fetchval(
        sql.archive_of_revision,
        revision_id=revision_id,
        deployment_id=deployment_id,
        workspace_id=scope.workspace_id,
    )
    archive_id = _archive_id(deployment_id, path or "")
    file = store.path(archive_id) if archive_id else None
    if file is None or not await asyncio.to_thread(file.is_file):
        raise ArchiveNotFound
    return file


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class UnusedArchives(Task):
    """Forget archives that no revision was made of, and remove the files of those that are forgotten."""

    every_s = 60.0

    def __init__(self, db: Database, store: ArchiveStore) -> None:
        super().__init__()
        self._db, self._store = db, store

    async def activate(self) -> Status:
        """Rows first: a file without a row is nobody's."""
        forgotten = await self._db.execute(sql.drop_unused_archives, older_than_s=UNUSED_FOR_S)
        kept = await asyncio.to_thread(self._store.settled)
        rows = await self._db.fetch(sql.archives_known, ids=kept)
        known = {row["id"] for row in rows}
        removed = await asyncio.to_thread(self._store.remove, [found for found in kept if found not in known])
        return Status({"forgotten": forgotten, "removed": removed})
