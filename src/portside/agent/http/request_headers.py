"""What the headers of a request say: the address that the client called, and the versions that it has."""

import re

from starlette.requests import Request

from portside.agent.http.context import Context
from portside.kernel.http.proxies import get_prefix

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SCHEMES = frozenset({"http", "https"})


def get_base_url(ctx: Context) -> str:
    """Return the public URL of this server: the operator's setting, else the address that the client itself called.

    A client that forges its Host header gets it back, and nobody else does: such responses must not be stored.
    """
    settings = ctx.services.settings
    request = ctx.request

    prefix = get_prefix(request.scope)
    if settings.public_url:
        return settings.public_url.rstrip("/") + prefix

    scheme = _first(request, "x-forwarded-proto")
    host = _first(request, "x-forwarded-host") or request.headers.get("host", "")
    if scheme not in _SCHEMES:
        scheme = request.url.scheme
    if not _HOST.fullmatch(host):
        host = f"{settings.host}:{settings.port}"

    return f"{scheme}://{host}{prefix}"


def _first(request: Request, header: str) -> str:
    return request.headers.get(header, "").split(",")[0].strip()


def names_etag(if_none_match: str, etag: str) -> bool:
    """Whether the header If-None-Match names a version."""
    if if_none_match.strip() == "*":
        return True

    return etag in {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
