"""Requests to URLs of users: which hosts they may reach."""

import asyncio
import contextlib
import gzip
import socket
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from portside.kernel import outbound
from portside.kernel.outbound import (
    AddressNotAllowed,
    HostUnknown,
    HostUnreachable,
    OutboundRules,
    classify_address,
    fetch,
    get_dns_host,
    post,
    resolve,
)
from tests.tcp_server import serve_connections

DAY = timedelta(days=1)
HERE = OutboundRules(allow_loopback=True, timeout_s=600)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("64:ff9b::808:808", "public"),
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fd00::1", "private"),
        ("fec0::1", "private"),
        ("::ffff:10.0.0.1", "private"),
        ("169.254.169.254", "reserved"),
        ("::ffff:169.254.169.254", "reserved"),
        ("fe80::1%eth0", "reserved"),
        ("fd00:ec2::254", "reserved"),
        ("168.63.129.16", "reserved"),
        ("100.100.100.200", "reserved"),
        ("192.0.0.192", "reserved"),
        ("0.0.0.0", "reserved"),
        ("::", "reserved"),
        ("224.0.0.1", "reserved"),
        ("ff02::1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("192.0.2.1", "reserved"),
        ("240.0.0.1", "reserved"),
        ("2002:7f00:1::", "reserved"),
        ("2001:0:7f00:1::", "reserved"),
        ("::7f00:1", "reserved"),
    ],
)
def test_network_of_classifies_addresses(address: str, expected: str) -> None:
    assert classify_address(address) == expected


# Only numeric hosts, so that no name server is used. The resolver of the system decides which spellings are valid and
# what they mean; the check applies to its result.
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "::1", "::ffff:127.0.0.1"]
)
async def test_unusual_spellings_of_loopback_are_refused(host: str) -> None:
    with pytest.raises(AddressNotAllowed, match="loopback"):
        await resolve(host, OutboundRules(allow_private=True))


@pytest.mark.parametrize("host", ["169.254.169.254", "0.0.0.0", "[::]".strip("[]"), "0", "224.0.0.1", "fd00:ec2::254"])
async def test_reserved_addresses_are_always_refused(host: str) -> None:
    with pytest.raises(AddressNotAllowed):
        await resolve(host, OutboundRules(allow_private=True, allow_loopback=True))


async def test_fetch_refuses_an_invalid_url() -> None:
    with pytest.raises(HostUnknown, match="Invalid URL"):
        await fetch("http://ü⒈.com/", {}, OutboundRules(timeout_s=600))


async def test_invalid_host_names_are_unknown() -> None:
    for host in ("a" * 64 + ".example", ""):
        with pytest.raises((HostUnknown, AddressNotAllowed)):
            await resolve(host, OutboundRules())


async def test_unknown_host_is_the_callers_mistake() -> None:
    """Retry-After would make clients repeat a request that cannot succeed."""
    with pytest.raises(HostUnknown) as unknown:
        await fetch(f"http://{'a' * 64}.example/", {}, OutboundRules(timeout_s=600))
    assert (unknown.value.status, unknown.value.headers) == (400, {})


async def test_hosts_without_a_name_server_do_not_block_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One dead host blocks one thread, however many calls it has; a call that gives up leaves the rest waiting."""
    goes_on = threading.Event()
    asked = Counter[str]()
    system = outbound.socket.getaddrinfo

    def blocking(host: str, *args: object, **options: object) -> object:
        asked[host] += 1
        if host.startswith("dead"):
            goes_on.wait(600)

        return system("127.0.0.1", *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", blocking)
    dead = [asyncio.create_task(resolve(f"dead{each % 8}.example", HERE)) for each in range(400)]
    assert set(await asyncio.wait_for(resolve("alive.example", HERE), 600)) == {"127.0.0.1"}
    dead[0].cancel()
    await asyncio.wait([dead[0]])
    goes_on.set()
    assert await asyncio.gather(*dead[1:]) == [["127.0.0.1"]] * 399

    assert asked == {"alive.example": 1, **{f"dead{each}.example": 1 for each in range(8)}}


async def test_dead_hosts_do_not_hold_up_hosts_that_were_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = outbound._Lookups(2)
    goes_on = threading.Event()

    def look_up(host: str, *_: object, **__: object) -> list[Any]:
        if host.startswith("dead"):
            goes_on.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")

        return [(None, None, None, None, ("203.0.113.1", 0))]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", look_up)
    assert await lookups.look_up("alive") == ["203.0.113.1"]
    dead = [asyncio.create_task(lookups.look_up(f"dead{number}")) for number in range(4)]
    await asyncio.sleep(0)
    assert await lookups.look_up("alive") == ["203.0.113.1"]
    goes_on.set()
    assert all(isinstance(each, socket.gaierror) for each in await asyncio.gather(*dead, return_exceptions=True))


async def test_lookup_without_callers_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = outbound._Lookups(1)
    goes_on = threading.Event()
    asked = list[str]()

    def blocking(host: str, *_args: object, **_options: object) -> object:
        asked.append(host)
        goes_on.wait(600)
        return []

    monkeypatch.setattr(outbound.socket, "getaddrinfo", blocking)
    first = asyncio.create_task(lookups.look_up("first"))
    given_up, kept = (asyncio.create_task(lookups.look_up(each)) for each in ("given up", "kept"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    goes_on.set()

    await asyncio.gather(first, kept)
    assert (asked, lookups._running, lookups._callers) == (["first", "kept"], {}, {})


def test_host_of_normalizes_hosts() -> None:
    assert get_dns_host(httpx.URL("http://Example.COM./x")) == "example.com"
    assert get_dns_host(httpx.URL("http://127。0。0。1/x")) == "127.0.0.1"
    assert get_dns_host(httpx.URL("http://bücher.example/")) == "xn--bcher-kva.example"


@asynccontextmanager
async def answer_with(raw: bytes, seen: list[bytes]) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(raw)
        await writer.drain()

    async with serve_connections(answer) as port:
        yield port


async def test_redirects_are_not_followed_and_large_bodies_refused() -> None:
    seen: list[bytes] = []
    away = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 9000000\r\n\r\nx"
    async with answer_with(away, seen) as port:
        assert await post(f"http://localhost:{port}/a?b=c", {"X-A": "1"}, b"{}", HERE) == 302

    assert (len(seen), seen[0].startswith(b"POST /a?b=c "), f"localhost:{port}".encode() in seen[0]) == (1, True, True)
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000
    async with answer_with(long, seen) as port:
        with pytest.raises(HostUnreachable, match="more than"):
            await fetch(f"http://127.0.0.1:{port}/", {}, OutboundRules(False, True, 600, max_bytes=1000))

    pieces = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + 4 * (b"190\r\n" + b"x" * 400 + b"\r\n")
    async with answer_with(pieces + b"0\r\n\r\n", seen) as port:
        with pytest.raises(HostUnreachable, match="more than"):
            await fetch(f"http://127.0.0.1:{port}/", {}, OutboundRules(False, True, 600, max_bytes=1500))
        assert len((await fetch(f"http://127.0.0.1:{port}/", {}, OutboundRules(True, True, 600, 1600))).body) == 1600


async def test_response_that_never_ends_is_given_up() -> None:
    """Also one whose next byte comes before each wait for it ends."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

    async with serve_connections(drip) as port, asyncio.timeout(60):
        with pytest.raises(HostUnreachable, match="does not answer"):
            await fetch(f"http://127.0.0.1:{port}/", {}, OutboundRules(allow_loopback=True, timeout_s=0.5))


async def test_proxy_of_the_environment_is_not_asked_for_addresses_of_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async with answer_with(b"HTTP/1.1 204 No Content\r\n\r\n", []) as port:
        assert await post(f"http://127.0.0.1:{port}/", {}, b"", HERE) == 204


async def test_compressed_responses_are_refused() -> None:
    """64 kB of zstd may hold gigabytes, which would be in memory before their size is known."""
    seen: list[bytes] = []
    body = gzip.compress(b"x" * 100)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with answer_with(head + body, seen) as port:
        with pytest.raises(HostUnreachable, match="encoding gzip, which was not requested"):
            await fetch(f"http://127.0.0.1:{port}/", {}, HERE)

    assert b"accept-encoding: identity" in seen[0].lower()


async def test_host_is_resolved_once_and_the_address_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server returns an allowed address first, and a forbidden one afterwards."""
    asked: list[str] = []
    system = outbound.socket.getaddrinfo

    def rebinding(host: str, *args: object, **options: object) -> object:
        if host != "rebound.example":
            return system(host, *args, **options)  # type: ignore[arg-type]

        asked.append(host)
        return system("127.0.0.1" if len(asked) == 1 else "169.254.169.254", None, type=outbound.socket.SOCK_STREAM)

    monkeypatch.setattr(outbound.socket, "getaddrinfo", rebinding)
    seen: list[bytes] = []
    async with answer_with(b"HTTP/1.1 204 No Content\r\n\r\n", seen) as port:
        assert await post(f"http://rebound.example:{port}/", {}, b"", HERE) == 204

    assert (asked, b"rebound.example" in seen[0]) == (["rebound.example"], True)
    with pytest.raises(AddressNotAllowed):
        await post("http://rebound.example/", {}, b"", HERE)


async def test_each_address_of_a_host_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["8.8.8.8", "10.0.0.1"]

    def answer(_host: str, *_args: object, **_options: object) -> object:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", answer)
    with pytest.raises(AddressNotAllowed, match="private"):
        await resolve("both.example", OutboundRules())
    assert await resolve("both.example", OutboundRules(allow_private=True)) == addresses


async def test_the_proxy_of_the_environment_gets_no_request_to_a_local_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    proxied: list[bytes] = []
    reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with answer_with(reply, seen) as port, answer_with(reply, proxied) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert await post(f"http://127.0.0.1:{port}/", {}, b"", HERE) == 204

    assert (len(seen), proxied) == (1, [])


def certificate(folder: Path) -> Path:
    """Write a self-signed certificate for localhost and its key to one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    at = datetime.now(UTC)

    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), at - DAY, at + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )

    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "localhost.pem"
    path.write_bytes(plain + made.public_bytes(Encoding.PEM))

    return path


async def test_certificates_of_the_system_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        await writer.drain()

    async with serve_connections(answer, ssl=context) as port:
        url = f"https://localhost:{port}/"
        outbound.get_ssl_context.cache_clear()
        with pytest.raises(HostUnreachable):
            await fetch(url, {}, HERE)

        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        outbound.get_ssl_context.cache_clear()
        assert (await fetch(url, {}, HERE)).body == b"hi"

    outbound.get_ssl_context.cache_clear()
