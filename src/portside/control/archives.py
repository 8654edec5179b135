"""Source archives: upload addresses, the folder that stores the files, and the revisions that are built from them.

An upload address belongs to one deployment, needs the token in its URL and accepts one archive. A revision names the
archive by its path, which is unguessable and checked against the deployment. The data plane unpacks archives.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from portside.control.errors import BadCombination, BeingDeleted
from portside.control.revisions import find_revision, lock_deployment
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types import UploadAddress, UploadRequest
from portside.kernel.db import Database, Transaction
from portside.kernel.errors import BadRequest, BodyTooLarge, Conflict, NotFound, Unauthorized
from portside.kernel.files import make_private_dir
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task
from portside.kernel.timeouts import timeout
from portside.listener_api import DeploymentStatus

MAX_ARCHIVE_BYTES = 200 * 1024 * 1024
_SUFFIX = ".tar.gz"
_PARTIAL_SUFFIX = ".partial"
# Younger files are not garbage yet: a finished file exists shortly before its row is committed, and a slow client may
# write to a partial file for an hour.
GARBAGE_AFTER_S = {_SUFFIX: 60.0, _PARTIAL_SUFFIX: 7200.0}
_GZIP = b"\x1f\x8b"
_WRITE_BYTES = 1024 * 1024


class UploadUnderWay(Conflict):
    """Another upload to this address is in progress; request a new address with POST …/upload-url."""

    code = "upload_under_way"


class NotGzip(BadRequest):
    """The uploaded file is not a gzip file; send a .tar.gz."""

    code = "no_archive"


class PartialArchive:
    """An archive that is being uploaded, in a temporary file."""

    def __init__(self, file: BinaryIO, temporary: Path, final: Path) -> None:
        self._file = file
        self._temporary = temporary
        self._final = final

    async def write(self, chunks: AsyncIterator[bytes]) -> int:
        """Write the chunks to the file, at most 1 MB of them in memory, and return the size.

        Raises BodyTooLarge and NotGzip.
        """
        size = 0
        buffer = bytearray()
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_ARCHIVE_BYTES:
                raise BodyTooLarge(
                    f"The archive is larger than {MAX_ARCHIVE_BYTES} bytes; leave out unneeded files.",
                    headers={"Connection": "close"},
                )

            buffer += chunk
            if len(buffer) >= _WRITE_BYTES:
                await asyncio.to_thread(self._file.write, buffer)
                buffer = bytearray()

        await asyncio.to_thread(self._file.write, buffer)
        await asyncio.to_thread(self._check)
        return size

    def _check(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)

        if self._file.read(len(_GZIP)) != _GZIP:
            raise NotGzip

    def publish(self) -> None:
        """Move the complete file to its final path."""
        self._temporary.replace(self._final)


class ArchiveStore:
    """A folder with one file for each archive. A file appears under its final name only when it is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, archive_id: UUID) -> Path:
        """Return the path of an archive's file."""
        return self._folder / f"{archive_id}{_SUFFIX}"

    @contextlib.asynccontextmanager
    async def open_upload(self, archive_id: UUID) -> AsyncIterator[PartialArchive]:
        """Open a partial archive; it is deleted at the end unless it was published. Raises UploadUnderWay."""
        temporary = self._folder / f"{archive_id}{_PARTIAL_SUFFIX}"
        await asyncio.to_thread(make_private_dir, self._folder)
        try:
            file = await asyncio.to_thread(_create_private, temporary)
        except FileExistsError as exc:
            raise UploadUnderWay from exc

        try:
            yield PartialArchive(file, temporary, self.path(archive_id))
        finally:
            try:
                # Writes what is still in its buffer, which fails on a full disk.
                file.close()
            finally:
                temporary.unlink(missing_ok=True)

    def stored(self) -> list[UUID]:
        """Return the ids of all archives whose files are old enough to be garbage if they have no row."""
        if not self._folder.is_dir():
            return []

        now = time.time()
        found = set()
        for file in self._folder.iterdir():
            name, _, ending = file.name.partition(".")
            after_s = GARBAGE_AFTER_S.get(f".{ending}")

            # Not the name of an archive, or an upload that has just ended.
            with contextlib.suppress(ValueError, FileNotFoundError):
                if after_s is not None and file.stat().st_mtime < now - after_s:
                    found.add(UUID(name))

        return list(found)

    def remove(self, archive_ids: Iterable[UUID]) -> int:
        """Remove archives and their partial files; return how many files were removed."""
        removed = 0

        for archive_id in archive_ids:
            for file in (self.path(archive_id), self._folder / f"{archive_id}{_PARTIAL_SUFFIX}"):
                if file.exists():
                    file.unlink(missing_ok=True)
                    removed += 1

        return removed


def _create_private(path: Path) -> BinaryIO:
    """Create a file that only its owner can read. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")


UPLOAD_WITHIN_S = 3600.0
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
    """Store the archive that is uploaded to an address; an address works once.

    Raises UploadNotExpected, UploadUnderWay, UploadTooSlow, NotGzip and BodyTooLarge.
    """
    if await db.fetchval(sql.find_open_upload, id=archive_id, token_hash=_hash(token)) is None:
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


async def claim_archive(tx: Transaction, deployment_id: UUID, path: str) -> None:
    """Check that a revision of the deployment may use the archive, and mark the archive as used so that it is kept.

    Raises BadCombination for a path that was not issued to this deployment, or whose upload is missing.
    """
    archive_id = _archive_id(deployment_id, path)
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
    """Deletes archives that no revision uses, then files that have no row."""

    every_s = 60.0
    deletes = True

    def __init__(self, db: Database, store: ArchiveStore) -> None:
        super().__init__()
        self._db = db
        self._store = store

    async def activate(self) -> Status:
        """Delete rows first: a file without a row is garbage."""
        deleted = await self._db.execute(sql.drop_unused_archives, older_than_s=UNUSED_FOR_S)
        stored = await asyncio.to_thread(self._store.stored)
        rows = await self._db.fetch(sql.known_archives, ids=stored)
        known = {row["id"] for row in rows}
        removed = await asyncio.to_thread(self._store.remove, [found for found in stored if found not in known])

        return Status({"deleted": deleted, "removed": removed})
