"""Attachments of runs, handed out by links that need no key and end (contract: hosted API, section f.4).

A link holds, sealed, which attachment it is for and until when: it can be neither guessed nor changed, and nothing has
to be remembered for it. Links go with a run that somebody may read, and are made anew each time.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from urllib.parse import quote
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Session
from portside.kernel.errors import Forbidden, NotFound, UserMistake
from portside.tracing.sql import sql

PATH = "public/download"
_OWNER = "public/download"
_LASTS = timedelta(hours=1)
_SAFE_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}")
_UNKNOWN_TYPE = "application/octet-stream"


class LinkInvalid(Forbidden):
    """The link has ended or was changed; read the run again for a new one."""

    code = "link_invalid"


class AttachmentNotFound(NotFound):
    """The attachment was deleted."""

    code = "attachment_not_found"


class DownloadQuery(msgspec.Struct):
    """What a link holds."""

    token: str


class Attachment(msgspec.Struct):
    """Where an attachment is read, and what it is."""

    presigned_url: str
    mime_type: str


class _Ticket(msgspec.Struct, array_like=True):
    workspace_id: UUID
    run_id: UUID
    name: str
    expires_at: datetime


class Links:
    """Makes links to attachments, below the address that a client used."""

    def __init__(self, box: SecretBox, base_url: str) -> None:
        self._box = box
        self._base_url = base_url.rstrip("/")

    def link(self, workspace_id: UUID, run_id: UUID, name: str) -> str:
        """Return the address of an attachment; it is good for an hour."""
        ticket = _Ticket(workspace_id, run_id, name, now() + _LASTS)
        sealed = self._box.seal(msgspec.json.encode(ticket), _OWNER)
        return f"{self._base_url}/{PATH}?token={base64.urlsafe_b64encode(sealed).decode()}"


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
    """Return the bytes that a link is for. Raises LinkInvalid and AttachmentNotFound.

    What clients stored may be a page with scripts: it is saved, never shown, whatever it says it is.
    """
    ticket = _open(box, query.token)
    row = await db.fetchrow(sql.attachment, workspace_id=ticket.workspace_id, run_id=ticket.run_id, name=ticket.name)
    if row is None:
        raise AttachmentNotFound
    kind = row["content_type"] if _SAFE_TYPE.fullmatch(row["content_type"]) else _UNKNOWN_TYPE
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(ticket.name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-store",
    }
    return Response(row["data"], headers=headers, media_type=kind)


def _open(box: SecretBox, token: str) -> _Ticket:
    try:
        ticket = msgspec.json.decode(box.open(base64.urlsafe_b64decode(token.encode()), _OWNER), type=_Ticket)
    except (ValueError, binascii.Error, UserMistake, msgspec.MsgspecError) as exc:
        raise LinkInvalid from exc
    if ticket.expires_at < now():
        raise LinkInvalid
    return ticket
