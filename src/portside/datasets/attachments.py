"""Attachments of examples: stored once, named by the versions of examples, served by signed links."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from starlette.responses import Response

from portside.datasets.sql import sql
from portside.datasets.types import ExampleAttachment, NewAttachment
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.tracing.attachments import (
    DownloadLinks,
    DownloadQuery,
    DownloadTicket,
    build_file_response,
    compute_link_expiry,
    open_ticket,
)

PATH = "public/download/examples"
MAX_ATTACHMENTS = 100
MAX_NAME_CHARS = 200
AttachmentIds = dict[str, UUID]
"""The attachments of one version of an example: ids by name."""


class ExampleAttachmentNotFound(NotFound):
    """The attachment was deleted with its example or dataset."""

    code = "example_attachment_not_found"


class _ExampleAttachmentTicket(DownloadTicket, array_like=True):
    attachment_id: UUID
    name: str


async def link_attachments(
    db: Session, workspace_id: UUID, by_example: Mapping[UUID, AttachmentIds], links: DownloadLinks
) -> dict[UUID, dict[str, ExampleAttachment]]:
    """Return the attachments of examples with links, by example and by the name `attachment.…` that SDKs read."""
    ids = sorted({attachment_id for names in by_example.values() for attachment_id in names.values()})
    rows = await db.fetch(sql.attachment_types, workspace_id=workspace_id, ids=ids) if ids else []
    types = {row["id"]: row["mime_type"] for row in rows}
    expires_at = compute_link_expiry()

    return {
        example_id: {
            f"attachment.{name}": ExampleAttachment(
                links.url(PATH, _ExampleAttachmentTicket(expires_at, attachment_id, name)), types[attachment_id]
            )
            for name, attachment_id in sorted(names.items())
            if attachment_id in types
        }
        for example_id, names in by_example.items()
    }


async def store_attachments(
    db: Session, workspace_id: UUID, dataset_id: UUID, files: Iterable[NewAttachment]
) -> list[UUID]:
    """Store files and return their ids in the same order."""
    rows = [(uuid7(), file) for file in files]
    if rows:
        await db.execute(
            sql.write_attachments,
            workspace_id=workspace_id,
            dataset_id=dataset_id,
            id=[attachment_id for attachment_id, _ in rows],
            mime_type=[file.mime_type for _, file in rows],
            data=[file.data for _, file in rows],
        )

    return [attachment_id for attachment_id, _ in rows]


async def download(db: Session, box: SecretBox, query: DownloadQuery) -> Response:
    """Return the attachment that a link names. Raises LinkInvalid and ExampleAttachmentNotFound."""
    ticket = open_ticket(box, PATH, query.token, _ExampleAttachmentTicket)
    row = await db.fetchrow(sql.attachment, attachment_id=ticket.attachment_id)
    if row is None:
        raise ExampleAttachmentNotFound

    return build_file_response(row["data"], row["mime_type"], ticket.name)


def check_names(names: Iterable[str], where: list[str | int]) -> None:
    """Check the names of an example's attachments and their number. Raises Invalid."""
    distinct = list(names)
    if len(distinct) > MAX_ATTACHMENTS:
        raise Invalid.field(where, f"an example has at most {MAX_ATTACHMENTS} attachments")

    for name in distinct:
        if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
            raise Invalid.field([*where, name[:MAX_NAME_CHARS]], f"a name has 1 to {MAX_NAME_CHARS} characters")
