from contextlib import nullcontext
from typing import Any

import httpx2
import pytest

from portside.kernel.http.front import Front
from portside.kernel.http.hosts import HostUnclear, KnownHosts, check_host
from tests.unit.test_kernel_cors import hello

NAMES = ["localhost", "[::1]", "Agents.example.org", "*.mine.example"]


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("localhost:2024", "/", 200),
        ("LOCALHOST", "/", 200),
        ("[::1]:2024", "/", 200),
        ("[::1]", "/", 200),
        ("agents.example.org", "/", 200),
        ("a.b.mine.example:80", "/", 200),
        ("mine.example", "/", 400),
        ("notmine.example", "/", 400),
        ("evil.example:2024", "/", 400),
        ("localhost.evil.example", "/", 400),
        ("", "/", 400),
        ("10.0.0.7:8000", "/ok", 200),
    ],
)
async def test_a_server_knows_its_names(host: str, path: str, status: int) -> None:
    transport = httpx2.ASGITransport(Front(KnownHosts(hello, NAMES)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get(path, headers={"host": host})).status_code == status


async def test_a_web_socket_by_another_name_is_closed() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"evil.example")]}
    await KnownHosts(hello, NAMES)(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("version", "names", "is_clear"),
    [("1.1", 1, True), ("1.1", 0, False), ("1.1", 2, False), ("1.0", 0, True), ("1.0", 2, False)],
)
def test_it_is_clear_which_host_a_request_is_for(version: str, names: int, *, is_clear: bool) -> None:
    scope = {"http_version": version, "headers": [(b"accept", b"*/*"), *[(b"host", b"a.example")] * names]}
    with nullcontext() if is_clear else pytest.raises(HostUnclear):
        check_host(scope)
