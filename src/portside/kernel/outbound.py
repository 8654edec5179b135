"""HTTP requests to URLs that users enter, protected against server-side request forgery.

The host is resolved once, its addresses are checked, and the connection goes to a checked address. So a DNS answer that
changes between check and connection has no effect. The resolved address counts, not how the URL spells it. Redirects
are not followed, responses must not be compressed, and their time and size are limited.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import socket
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import httpx
from cachetools import LRUCache

from portside.kernel.errors import BadRequest, Unavailable
from portside.kernel.local_addresses import parse_ip_address
from portside.kernel.timeouts import timeout

Network = Literal["public", "private", "loopback", "reserved"]
# Networks that the standard library does not classify. The reserved ones hold metadata services of clouds, which return
# credentials, and IPv6 prefixes (6to4, Teredo) that reach an IPv4 address through a third party's relay.
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10")
)
_RESERVED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",
        "100.100.100.200/32",
        "192.0.0.0/24",
        "fd00:ec2::/32",
        "2002::/16",
        "2001::/32",
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Hosts that are looked up at once. A lookup blocks its thread for half a minute if no name server answers.
MAX_LOOKUPS = 64
# Hosts that had addresses when they were last looked up have threads of their own, which names that nobody answers for
# cannot take.
_MAX_KNOWN_LOOKUPS = 16
_MAX_KNOWN_HOSTS = 10_000


class AddressNotAllowed(BadRequest):
    """The address is in a private network, to which this installation sends no requests."""

    code = "address_not_allowed"


class HostUnreachable(Unavailable):
    """The host does not answer, or its response is invalid; try again later."""

    code = "host_unreachable"


class HostUnknown(BadRequest):
    """No host has this name; correct the address."""

    code = "host_unknown"


@dataclass(frozen=True)
class OutboundRules:
    """Which networks requests may reach, and their limits. Reserved addresses are never allowed."""

    allow_private: bool = False
    allow_loopback: bool = False
    timeout_s: float = 10.0
    max_bytes: int = 8 * 1024 * 1024

    def allow(self, network: Network) -> bool:
        """Whether requests may connect to addresses in a kind of network."""
        permissions = {"public": True, "private": self.allow_private, "loopback": self.allow_loopback}
        return permissions.get(network, False)


@dataclass(frozen=True)
class OutboundResponse:
    """A response: its status, its body and its Location header."""

    status: int
    body: bytes
    location: str | None = None


async def fetch(url: str, headers: dict[str, str], rules: OutboundRules) -> OutboundResponse:
    """GET a URL. Raises AddressNotAllowed, HostUnknown and HostUnreachable."""
    return await exchange("GET", url, headers=headers, body=None, rules=rules)


async def exchange(
    method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, rules: OutboundRules
) -> OutboundResponse:
    """Send a request and read the response. Raises AddressNotAllowed, HostUnknown and HostUnreachable."""
    async with _open(method, url, headers=headers, body=body, rules=rules) as response:
        content = await _read(response, rules.max_bytes)
        return OutboundResponse(response.status_code, content, location=response.headers.get("location"))


async def post(url: str, headers: Mapping[str, str], body: bytes, rules: OutboundRules) -> int:
    """POST to a URL and return the status, without reading the body.

    Raises AddressNotAllowed, HostUnknown and HostUnreachable.
    """
    async with _open("POST", url, headers=headers, body=body, rules=rules) as response:
        return int(response.status_code)


def build_signature_headers(secrets: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery: its id, its time, and a signature of both and the body by each secret.

    The form is that of Standard Webhooks (standardwebhooks.com): HMAC-SHA256. A call cannot be replayed later, or for
    another run.
    """
    headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
    if secrets:
        content = f"{delivery_id}.{timestamp}.".encode() + body
        digests = [hmac.digest(secret, content, hashlib.sha256) for secret in secrets]
        signatures = [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
        headers["webhook-signature"] = " ".join(signatures)

    return headers


@asynccontextmanager
async def _open(
    method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, rules: OutboundRules
) -> AsyncIterator[Any]:
    """Send a request to a checked address of its host, and yield the response."""
    try:
        target = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise HostUnknown(f"Invalid URL: {exc}") from exc

    host = get_dns_host(target)
    try:
        async with timeout(rules.timeout_s):
            addresses = await resolve(host, rules)
            address = addresses[0]
            pinned_url = target.copy_with(host=address)
            extensions = {"sni_hostname": host}

            # Uncompressed: a small compressed response could fill the memory before its size is known.
            all_headers = {**headers, "Host": target.netloc.decode("ascii"), "Accept-Encoding": "identity"}
            # The proxy of the environment reaches the internet, not private networks.
            is_public_address = classify_address(address) == "public"
            async with (
                httpx.AsyncClient(
                    verify=get_ssl_context(), trust_env=is_public_address, timeout=rules.timeout_s
                ) as client,
                client.stream(method, pinned_url, headers=all_headers, content=body, extensions=extensions) as response,
            ):
                yield response
    except (httpx.HTTPError, TimeoutError, OSError) as exc:
        raise HostUnreachable(f"{host} does not answer: {str(exc) or type(exc).__name__}") from exc


@cache
def get_ssl_context() -> ssl.SSLContext:
    """Return a context that verifies hosts by the system's certificates, or by those of httpx if it has none.

    By default, httpx knows only its own, and rejects hosts whose certificate a company issued itself.
    """
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        return ssl.create_default_context()

    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def get_dns_host(url: "httpx.URL") -> str:
    """Return the host of a URL for DNS: in ASCII, in lower case, without a trailing dot."""
    return url.raw_host.decode("ascii").lower().removesuffix(".")


class _Lookups:
    """Lookups in threads of their own, one at a time for each host, whose callers share it.

    So a host without an answering name server blocks one thread, however many callers it has, and many such hosts block
    none that was found before.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="lookups")
        self._threads_of_known = ThreadPoolExecutor(_MAX_KNOWN_LOOKUPS, thread_name_prefix="known-lookups")
        self._known: LRUCache[str, bool] = LRUCache(_MAX_KNOWN_HOSTS)
        self._running: dict[str, Future[list[str]]] = {}
        self._callers: Counter[Future[list[str]]] = Counter()

        # Callers may be on several event loops.
        self._lock = threading.Lock()

    async def look_up(self, host: str) -> list[str]:
        """Return the addresses of a host. Raises OSError and UnicodeError."""
        with self._lock:
            lookup = self._running.get(host)
            if lookup is None:
                threads = self._threads_of_known if host in self._known else self._threads
                lookup = self._running[host] = threads.submit(self._look_up, host)

            self._callers[lookup] += 1

        try:
            # Shielded: a caller that gives up must not cancel the lookup of the others.
            return await asyncio.shield(asyncio.wrap_future(lookup))
        finally:
            self._leave(host, lookup)

    def _look_up(self, host: str) -> list[str]:
        addresses: list[str] = []
        try:
            addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        finally:
            with self._lock:
                del self._running[host]

                if addresses:
                    self._known[host] = True
                else:
                    self._known.pop(host, None)

        return addresses

    def _leave(self, host: str, lookup: "Future[list[str]]") -> None:
        with self._lock:
            self._callers[lookup] -= 1

            if not self._callers[lookup]:
                del self._callers[lookup]
                # A lookup that has begun cannot be cancelled, and stays for later callers.
                if lookup.cancel():
                    del self._running[host]


@cache
def _lookups() -> _Lookups:
    """Return the lookups of this process."""
    return _Lookups(MAX_LOOKUPS)


async def resolve(host: str, rules: OutboundRules) -> list[str]:
    """Return the addresses of a host; requests may connect to each of them.

    Raises AddressNotAllowed, HostUnknown, and OSError if the lookup failed temporarily.
    """
    try:
        addresses = await _lookups().look_up(host)
    except socket.gaierror as exc:
        if exc.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)):
            raise HostUnknown(f"{host} is not the name of any host; correct the address.") from exc
        raise
    except UnicodeError as exc:
        raise HostUnknown(f"{host} is not the name of any host; correct the address.") from exc

    for address in addresses:
        network = classify_address(address)
        if not rules.allow(network):
            text = f"{host} is in a {network} network ({address}), to which this installation sends no requests."
            raise AddressNotAllowed(text)

    return addresses


def classify_address(address: str) -> Network:
    """Return the kind of network of an IP address. An IPv6 address that embeds an IPv4 address counts as that."""
    ip = parse_ip_address(address.partition("%")[0])
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)

    if any(ip in network for network in _RESERVED):
        return "reserved"
    if ip.is_loopback:
        return "loopback"
    if any(ip in network for network in _PRIVATE):
        return "private"

    is_public = ip.is_global and not ip.is_multicast and not ip.is_reserved
    return "public" if is_public else "reserved"


async def _read(response: Any, max_bytes: int) -> bytes:
    host = response.request.headers["Host"]
    body = bytearray()

    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HostUnreachable(f"{host} answered with the encoding {encoding[:50]}, which was not requested.")

    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise HostUnreachable(f"{host} answered with more than {max_bytes} bytes.")

    return bytes(body)
