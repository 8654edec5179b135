"""Attachments of runs, handed out by links that need no key and end (contract: hosted API, section f.4).

Links go with a run that somebody may read, and are made anew each time (`links`).
"""

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Session
from portside.kernel.errors import NotFound
from portside.tracing.links import DownloadQuery, Ticket, as_file, open_ticket, seal_ticket
from portside.tracing.sql import sql

PATH = "public/download"
_OWNER = "public/download"
_LASTS = timedelta(hours=1)


class AttachmentNotFound(NotFound):
    """The attachment was deleted."""

    code = "attachment_not_found"


class Attachment(msgspec.Struct):
    """Where an attachment is read, and what it is."""

    presigned_url: str
    mime_type: str


class _Ticket(Ticket, array_like=True):
    workspace_id: UUID
    run_id: UUID
    name: str


class Links:
    """Makes links to attachments, below the address that a client used."""

    def __init__(self, box: SecretBox, base_url: str) -> None:
        self._box = box
        self.base_url = base_url.rstrip("/")

    def link(self, workspace_id: UUID, run_id: UUID, name: str) -> str:
        """Return the address of an attachment; it is good for an hour."""
        ticket = _Ticket(now() + _LASTS, workspace_id, run_id, name)
        return f"{self.base_url}/{PATH}?token={seal_ticket(self._box, _OWNER, ticket)}"


async def find_attachments(
    db: Session, workspace_id: UUID, run_ids: Iterable[UUID], links: Links
) -> dict[UUID, dict[str, Attachment]]:
    """Return the attachments of runs by run and name, with links."""
    found: dict[UUID, dict[str, Attachment]] = {}
    for row in await db.fetch(sql.attachments_of_runs, workspace_id=workspace_id, ids=sorted(run_ids)):
        url = links.link(workspace_id, row["run_id"], row["name"])
        found.setdefault(row["run_id"], {})[row["name"]] = Attachment(url, row["content_type"])
    return found


async def download(db: Session, box: SecretBox, query: DownloadQuery) -> Response:
    """Return the bytes that a link is for. Raises LinkInvalid and AttachmentNotFound."""
    ticket = open_ticket(box, _OWNER, query.token, _Ticket)
    row = await db.fetchrow(sql.attachment, workspace_id=ticket.workspace_id, run_id=ticket.run_id, name=ticket.name)
    if row is None:
        raise AttachmentNotFound
    return as_file(row["data"], row["content_type"], ticket.name)
