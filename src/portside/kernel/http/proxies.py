"""The address of a request's sender behind proxies that the operator trusts (setting TRUSTED_PROXIES)."""

import ipaddress
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers

from portside.kernel.errors import UserMistake

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_UNKNOWN = "unknown"


def read_networks(text: str) -> list[Network]:
    """Parse addresses and networks, separated by commas. Raises UserMistake."""
    try:
        return [ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()]
    except ValueError as exc:
        raise UserMistake(f"setting TRUSTED_PROXIES: {exc}; separate addresses and networks by commas") from exc


def client_address(scope: Any, trusted: Sequence[Network]) -> str:
    """Return the address of a request's sender.

    Of `X-Forwarded-For` only the part that trusted proxies wrote counts: the last address that is not one of them. IPv6
    callers usually own a whole /64, so they are identified by that network.
    """
    peer = (scope.get("client") or (_UNKNOWN,))[0]
    forwarded = [part.strip() for value in Headers(scope=scope).getlist("x-forwarded-for") for part in value.split(",")]
    while forwarded and _is_in(peer, trusted):
        peer = forwarded.pop()
    return _canonical(peer)


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def _canonical(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return _UNKNOWN
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.ipv4_mapped is None else _v4(parsed)
    return str(parsed)


def _v4(address: ipaddress.IPv6Address) -> str:
    return str(address.ipv4_mapped)
