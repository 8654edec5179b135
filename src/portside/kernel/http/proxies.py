"""The headers of trusted proxies (setting TRUSTED_PROXIES): the client's address, and the prefix of the path."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from portside.kernel.errors import UserMistake
from portside.kernel.http.headers import get_header
from portside.kernel.http.in_process import PREFIX, ROOT_PATH
from portside.kernel.local_addresses import parse_ip_address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_UNKNOWN = "unknown"
# On a socket for both families the address of an IPv4 peer begins so. Networks are compared with what follows.
_MAPPED = "::ffff:"
_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-prefix"})
_PREFIX_FORM = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*){1,10}")


def read_networks(text: str) -> list[Network]:
    """Parse addresses and networks, separated by commas. Raises UserMistake."""
    try:
        return [ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()]
    except ValueError as exc:
        raise UserMistake(f"setting TRUSTED_PROXIES: {exc}; separate addresses and networks by commas") from exc


def get_client_address(scope: Any, trusted: Sequence[Network]) -> str:
    """Return the address of a request's sender.

    Of `X-Forwarded-For` only the part that trusted proxies wrote counts: the last address that is not one of them. IPv6
    callers usually own a whole /64, so they are identified by that network.
    """
    peer = (scope.get("client") or (_UNKNOWN,))[0]
    values = Headers(scope=scope).getlist("x-forwarded-for")
    addresses = [address.strip() for value in values for address in value.split(",")]
    while addresses and _is_in(peer, trusted):
        peer = addresses.pop()

    return _to_canonical(peer)


def _is_in(text: str, networks: Sequence[Network]) -> bool:
    try:
        address = parse_ip_address(text)
    except ValueError:
        return False

    return any(address in network for network in networks)


def _to_canonical(text: str) -> str:
    """Convert an address to one form: an IPv6 address to its /64, and what is no address to "unknown"."""
    try:
        address = parse_ip_address(text.strip("[]"))
    except ValueError:
        return _UNKNOWN

    if address.version == 4:
        return str(address)

    return str(ipaddress.ip_network((address, 64), strict=False))


class ForwardedHeaders(ProxyHeadersMiddleware):
    """Takes the client's address, the scheme and the prefix of the path from trusted proxies.

    The prefix is what a proxy has taken off the path (`X-Forwarded-Prefix`). The path itself stays as it is: code that
    compares it sees the same path on every way to the server, so no way leads around such a check.
    """

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        """Pass the request on."""
        # First, because it is cheaper than to look who sends the request, and most have no such header.
        if scope["type"] == "lifespan" or _FORWARDED.isdisjoint([name for name, _ in scope["headers"]]):
            return self.app(scope, receive, send)
        return self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> None:
        client = scope.get("client")
        if client and client[0].startswith(_MAPPED):
            scope["client"] = (client[0].removeprefix(_MAPPED), *client[1:])

        peer = (scope.get("client") or (None,))[0]
        if peer in self.trusted_hosts:
            prefix = get_header(scope, b"x-forwarded-prefix") or ""
            # The stock SDK recognizes requests of the server to itself by this path. A client must not imitate them.
            if _PREFIX_FORM.fullmatch(prefix) and not f"{prefix}/".startswith(f"{ROOT_PATH}/"):
                add_prefix(scope, prefix)

        await super().__call__(scope, receive, send)


def add_prefix(scope: Any, prefix: str) -> None:
    """Note that a prefix was taken off the path of a request."""
    scope[PREFIX] = get_prefix(scope) + prefix


def get_prefix(scope: Any) -> str:
    """Return what proxies and this server have taken off the path of a request, or ""."""
    prefix: str = scope.get(PREFIX, "")
    return prefix


def with_prefix(location: str, prefix: str, host: str) -> str:
    """Return the address of a redirect below a prefix, unless it has the prefix already or is not on this host."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return location

    is_path = location.startswith("/") and location[1:2] not in {"/", "\\"}
    is_here = is_path or (parts.scheme in {"http", "https"} and parts.netloc == host)
    if not is_here or f"{parts.path}/".startswith(f"{prefix}/"):
        return location

    return parts._replace(path=prefix + (parts.path or "/")).geturl()
