"""Links that need no key and end: what one is for is sealed into it, so that it can be neither guessed nor changed.

Nothing has to be remembered for a link. What is behind one is a stranger's file.
"""

import base64
import re
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import Forbidden, UserMistake

_SAFE_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}")
UNKNOWN_TYPE = "application/octet-stream"


class LinkInvalid(Forbidden):
    """The link has ended or was changed; read what it came with again for a new one."""

    code = "link_invalid"


class DownloadQuery(msgspec.Struct):
    """What a link holds."""

    token: str


class Ticket(msgspec.Struct, array_like=True):
    """What a link is for, and until when."""

    expires_at: datetime


T = TypeVar("T", bound=Ticket)


def seal_ticket(box: SecretBox, purpose: str, ticket: Ticket) -> str:
    """Return the token of a link."""
    return base64.urlsafe_b64encode(box.seal(msgspec.json.encode(ticket), purpose)).decode()


def open_ticket(box: SecretBox, purpose: str, token: str, kind: type[T]) -> T:
    """Return what a token is for. Raises LinkInvalid."""
    try:
        ticket = msgspec.json.decode(box.open(base64.urlsafe_b64decode(token.encode()), purpose), type=kind)
    except (ValueError, UserMistake, msgspec.MsgspecError) as exc:
        raise LinkInvalid from exc
    if ticket.expires_at < now():
        raise LinkInvalid
    return ticket


def as_file(data: bytes, mime_type: str, name: str) -> Response:
    """Make the answer that is a stranger's file.

    It may be a page with scripts: it is saved, never shown, whatever it says it is.
    """
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-store",
    }
    kind = mime_type if _SAFE_TYPE.fullmatch(mime_type) else UNKNOWN_TYPE
    return Response(data, headers=headers, media_type=kind)
