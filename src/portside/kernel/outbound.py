"""Requests to addresses that users name: where they may lead, and that they lead nowhere else.

A name is resolved once, what it stands for is checked, and the connection goes to that very address: a name that means
something else a moment later gains nothing. Redirects are not followed.
"""

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from portside.kernel.errors import BadRequest, Unavailable


class AddressNotAllowed(BadRequest):
    """The address leads into a private network, to which this installation makes no requests."""

    code = "address_not_allowed"


class HostUnreachable(Unavailable):
    """The host does not answer, or not as it should; try again later."""

    code = "host_unreachable"


@dataclass(frozen=True)
class OutboundRules:
    """What requests to users' addresses are allowed."""

    allow_private: bool = False
    timeout_s: float = 10.0
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """What a host answered: the status, and a body within bounds."""

    status: int
    body: bytes


async def fetch(url: str, headers: dict[str, str], rules: OutboundRules) -> Answer:
    """GET an address. Raises AddressNotAllowed and HostUnreachable."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        async with asyncio.timeout(rules.timeout_s):
            address, is_private = await _resolve(host, rules)
            pinned = httpx2.URL(url).copy_with(host=address)
            named = {**headers, "Host": parts.netloc.rpartition("@")[2]}
            # A proxy leads to the world outside, not to this network.
            async with httpx2.AsyncClient(trust_env=not is_private, timeout=rules.timeout_s) as client:
                extensions = {"sni_hostname": host}
                async with client.stream("GET", pinned, headers=named, extensions=extensions) as answer:
                    return Answer(answer.status_code, await _read(answer, host, rules.max_bytes))
    except (httpx2.HTTPError, TimeoutError, OSError) as exc:
        raise HostUnreachable(f"{host} does not answer: {str(exc) or type(exc).__name__}") from exc


async def _resolve(host: str, rules: OutboundRules) -> tuple[str, bool]:
    """Return one address of a host, and whether it is a private one. Raises AddressNotAllowed."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    private = [address for address in addresses if not is_public(address)]
    if private and not rules.allow_private:
        raise AddressNotAllowed(
            f"{host} is in a private network ({private[0]}), where this platform makes no requests."
        )
    return addresses[0], bool(private)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet; a mapped IPv4 address counts as what it stands for."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    return bool(mapped.is_global and not mapped.is_multicast)


async def _read(answer: Any, host: str, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > max_bytes:
            raise HostUnreachable(f"{host} answered with more than {max_bytes} bytes.")
    return bytes(body)
