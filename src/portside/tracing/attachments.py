"""Attachments of runs, and the signed links that serve files without an API key.

A link carries an encrypted ticket that names one file and an expiry, so it can be neither guessed nor changed, and the
server stores nothing for it. `datasets` uses the same links for the attachments of examples. Responses that contain a
run or an example create fresh links each time.
"""

import base64
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Session
from portside.kernel.errors import Forbidden, NotFound, UserMistake
from portside.tracing.bodies import UNKNOWN_TYPE
from portside.tracing.sql import sql

PATH = "public/download"
_LINK_LIFETIME = timedelta(hours=1)
T = TypeVar("T", bound="DownloadTicket")
_SAFE_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}")


class LinkInvalid(Forbidden):
    """The download link has expired or was changed; read the run or example again to get a new link."""

    code = "link_invalid"


class AttachmentNotFound(NotFound):
    """The attachment was deleted."""

    code = "attachment_not_found"


class DownloadQuery(msgspec.Struct):
    """The token of a download link."""

    token: str


class RunAttachment(msgspec.Struct):
    """The download link and the media type of an attachment."""

    presigned_url: str
    mime_type: str


class DownloadTicket(msgspec.Struct, array_like=True):
    """The expiry of a link; subclasses add the identity of the file."""

    expires_at: datetime


class _RunAttachmentTicket(DownloadTicket, array_like=True):
    workspace_id: UUID
    run_id: UUID
    name: str


def compute_link_expiry() -> datetime:
    """Return when a link that is created now expires."""
    return now() + _LINK_LIFETIME


def open_ticket(box: SecretBox, path: str, token: str, kind: type[T]) -> T:
    """Return the ticket in the token of a link to `path`. Raises LinkInvalid."""
    try:
        ticket = msgspec.json.decode(box.decrypt(base64.urlsafe_b64decode(token.encode()), path), type=kind)
    except (ValueError, UserMistake, msgspec.MsgspecError) as exc:
        raise LinkInvalid from exc

    if ticket.expires_at < now():
        raise LinkInvalid

    return ticket


class DownloadLinks:
    """Creates links to files, below the address that the client used."""

    def __init__(self, box: SecretBox, base_url: str) -> None:
        self._box = box
        self.base_url = base_url.rstrip("/")

    def url(self, path: str, ticket: DownloadTicket) -> str:
        """Return a link to `path` that carries the encrypted ticket."""
        # The ticket is bound to the path: a ticket for one kind of file opens no other kind.
        token = base64.urlsafe_b64encode(self._box.encrypt(msgspec.json.encode(ticket), path)).decode()
        return f"{self.base_url}/{path}?token={token}"


async def find_attachments(
    db: Session, workspace_id: UUID, run_ids: Iterable[UUID], links: DownloadLinks
) -> dict[UUID, dict[str, RunAttachment]]:
    """Return the attachments of runs by run and name, with links."""
    attachments: dict[UUID, dict[str, RunAttachment]] = {}
    for row in await db.fetch(sql.attachments_of_runs, workspace_id=workspace_id, ids=sorted(run_ids)):
        ticket = _RunAttachmentTicket(compute_link_expiry(), workspace_id, row["run_id"], row["name"])
        attachments.setdefault(row["run_id"], {})[row["name"]] = RunAttachment(
            links.url(PATH, ticket), row["content_type"]
        )

    return attachments


async def download(db: Session, box: SecretBox, query: DownloadQuery) -> Response:
    """Return the attachment that a link names. Raises LinkInvalid and AttachmentNotFound."""
    ticket = open_ticket(box, PATH, query.token, _RunAttachmentTicket)
    row = await db.fetchrow(sql.attachment, workspace_id=ticket.workspace_id, run_id=ticket.run_id, name=ticket.name)
    if row is None:
        raise AttachmentNotFound

    return build_file_response(row["data"], row["content_type"], ticket.name)


def build_file_response(data: bytes, mime_type: str, name: str) -> Response:
    """Return a response that makes browsers save the file.

    The file comes from an untrusted client and may be a page with scripts: browsers must never render it, whatever its
    type.
    """
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-store",
    }

    kind = mime_type if _SAFE_TYPE.fullmatch(mime_type) else UNKNOWN_TYPE
    return Response(data, headers=headers, media_type=kind)
