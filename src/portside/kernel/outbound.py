"""Requests to addresses that users name: where they may lead, and that they lead nowhere else.

A name is resolved once, what it stands for is checked, and the connection goes to that very address: a name that means
something else a moment later gains nothing. However an address is spelled, what counts is what it resolves to.
Redirects are not followed; time and size of an answer are bounded.
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx2

from portside.kernel.errors import BadRequest, Unavailable

Network = Literal["public", "private", "loopback", "reserved"]
# Beside those that the standard library knows: where clouds tell a machine its secrets, and ways to write an IPv4
# address inside of an IPv6 one that lead through a relay of somebody else.
_PRIVATE, _RESERVED = (
    tuple(ipaddress.ip_network(each) for each in networks.split())
    for networks in (
        "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10",
        "168.63.129.16/32 100.100.100.200/32 192.0.0.0/24 fd00:ec2::/32 2002::/16 2001::/32",
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# A name server that does not answer holds a thread for half a minute: these are for nothing else.
_LOOKUPS = ThreadPoolExecutor(4, thread_name_prefix="lookups")


class AddressNotAllowed(BadRequest):
    """The address leads into a private network, to which this installation makes no requests."""

    code = "address_not_allowed"


class HostUnreachable(Unavailable):
    """The host does not answer, or not as it should; try again later."""

    code = "host_unreachable"


class HostUnknown(HostUnreachable):
    """There is no host of this name."""

    code = "host_unknown"


@dataclass(frozen=True)
class OutboundRules:
    """What requests to users' addresses are allowed. Reserved addresses never are, such as the metadata of clouds."""

    allow_private: bool = False
    allow_loopback: bool = False
    timeout_s: float = 10.0
    max_bytes: int = 8 * 1024 * 1024

    def allow(self, network: Network) -> bool:
        """Whether addresses of a kind may be connected to."""
        allowed = {"public": True, "private": self.allow_private, "loopback": self.allow_loopback}
        return allowed.get(network, False)


@dataclass(frozen=True)
class Answer:
    """What a host answered: the status, and a body within bounds."""

    status: int
    body: bytes


async def fetch(url: str, headers: dict[str, str], rules: OutboundRules) -> Answer:
    """GET an address. Raises AddressNotAllowed and HostUnreachable."""
    async with _exchange("GET", url, headers, None, rules) as answer:
        return Answer(answer.status_code, await _read(answer, rules.max_bytes))


async def post(url: str, headers: Mapping[str, str], body: bytes, rules: OutboundRules) -> int:
    """POST to an address and return the status. What else it answers is not read.

    Raises AddressNotAllowed and HostUnreachable.
    """
    async with _exchange("POST", url, headers, body, rules) as answer:
        return int(answer.status_code)


@asynccontextmanager
async def _exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, rules: OutboundRules
) -> AsyncIterator[Any]:
    named = httpx2.URL(url)
    host = host_of(named)
    try:
        async with asyncio.timeout(rules.timeout_s):
            address = (await resolve(host, rules))[0]
            pinned, extensions = named.copy_with(host=address), {"sni_hostname": host}
            sent = {**headers, "Host": named.netloc.decode("ascii")}
            # A proxy leads to the world outside, not to this network.
            is_public_address = network_of(address) == "public"
            async with (
                httpx2.AsyncClient(trust_env=is_public_address, timeout=rules.timeout_s) as client,
                client.stream(method, pinned, headers=sent, content=body, extensions=extensions) as answer,
            ):
                yield answer
    except (httpx2.HTTPError, TimeoutError, OSError) as exc:
        raise HostUnreachable(f"{host} does not answer: {str(exc) or type(exc).__name__}") from exc


def host_of(url: httpx2.URL) -> str:
    """Return the host of an address as it is asked for: in ASCII, lower case, without the root's dot."""
    return url.raw_host.decode("ascii").lower().removesuffix(".")


async def resolve(host: str, rules: OutboundRules) -> list[str]:
    """Return the addresses that a host has, all of which may be connected to.

    Raises AddressNotAllowed, HostUnknown where there is no such host, and OSError where nobody can tell now.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(_LOOKUPS, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except socket.gaierror as exc:
        if exc.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)):
            raise HostUnknown(f"{host} is not the name of any host.") from exc
        raise
    except UnicodeError as exc:
        raise HostUnknown(f"{host} is not the name of any host.") from exc
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        network = network_of(address)
        if not rules.allow(network):
            raise AddressNotAllowed(f"{host} is in a {network} network ({address}), to which no requests are made.")
    return addresses


def network_of(address: str) -> Network:
    """Return which kind of network an IP address is of; one that stands for an IPv4 address counts as that."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if any(ip in network for network in _RESERVED):
        return "reserved"
    if ip.is_loopback:
        return "loopback"
    if any(ip in network for network in _PRIVATE):
        return "private"
    return "public" if ip.is_global and not ip.is_multicast and not ip.is_reserved else "reserved"


async def _read(answer: Any, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > max_bytes:
            raise HostUnreachable(f"{answer.request.headers['Host']} answered with more than {max_bytes} bytes.")
    return bytes(body)
