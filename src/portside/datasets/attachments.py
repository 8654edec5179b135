"""Attachments of examples: kept beside the states that name them, handed out by links that need no key and end."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from uuid import UUID

from starlette.responses import Response

from portside.datasets.sql import sql
from portside.datasets.types import Attachment, NewAttachment
from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.tracing.links import DownloadQuery, Ticket, as_file, open_ticket, seal_ticket

PATH = "public/download/examples"
MAX_ATTACHMENTS = 100
MAX_NAME_CHARS = 200
_LASTS = timedelta(hours=1)
Names = dict[str, UUID]


class ExampleAttachmentNotFound(NotFound):
    """The attachment was deleted with its example or dataset."""

    code = "example_attachment_not_found"


class _Ticket(Ticket, array_like=True):
    attachment_id: UUID
    name: str


class Links:
    """Makes links to attachments of examples, below the address that a client used."""

    def __init__(self, box: SecretBox, base_url: str) -> None:
        self._box = box
        self._base_url = base_url.rstrip("/")

    def link(self, attachment_id: UUID, name: str) -> str:
        """Return the address of an attachment; it is good for an hour."""
        token = seal_ticket(self._box, PATH, _Ticket(now() + _LASTS, attachment_id, name))
        return f"{self._base_url}/{PATH}?token={token}"


async def link_attachments(
    db: Session, workspace_id: UUID, named: Mapping[UUID, Names], links: Links
) -> dict[UUID, dict[str, Attachment]]:
    """Return the attachments of examples by example and the name that clients look for, with links."""
    ids = sorted({attachment_id for names in named.values() for attachment_id in names.values()})
    rows = await db.fetch(sql.attachment_types, workspace_id=workspace_id, ids=ids) if ids else []
    types = {row["id"]: row["mime_type"] for row in rows}
    return {
        example_id: {
            f"attachment.{name}": Attachment(links.link(one, name), types[one])
            for name, one in sorted(names.items())
            if one in types
        }
        for example_id, names in named.items()
    }


async def keep_attachments(
    db: Session, workspace_id: UUID, dataset_id: UUID, files: Iterable[NewAttachment]
) -> list[UUID]:
    """Store files and return their ids, in this order."""
    kept = [(uuid7(), file) for file in files]
    if kept:
        await db.execute(
            sql.write_attachments,
            workspace_id=workspace_id,
            dataset_id=dataset_id,
            id=[one for one, _ in kept],
            mime_type=[file.mime_type for _, file in kept],
            data=[file.data for _, file in kept],
        )
    return [one for one, _ in kept]


async def download(db: Session, box: SecretBox, query: DownloadQuery) -> Response:
    """Return the bytes that a link is for. Raises LinkInvalid and ExampleAttachmentNotFound."""
    ticket = open_ticket(box, PATH, query.token, _Ticket)
    row = await db.fetchrow(sql.attachment, attachment_id=ticket.attachment_id)
    if row is None:
        raise ExampleAttachmentNotFound
    return as_file(row["data"], row["mime_type"], ticket.name)


def check_names(names: Iterable[str], where: list[str | int]) -> None:
    """Raise Invalid unless attachments can be called so, and there are not too many."""
    found = list(names)
    if len(found) > MAX_ATTACHMENTS:
        raise Invalid.field(where, f"an example has at most {MAX_ATTACHMENTS} attachments")
    for name in found:
        if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
            raise Invalid.field([*where, name[:MAX_NAME_CHARS]], f"a name has 1 to {MAX_NAME_CHARS} characters")
