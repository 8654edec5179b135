"""Malicious requests to running servers: no attack changes or reveals anything."""

import asyncio
import hmac
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from portside.identity import authentication
from portside.kernel.http.server import MAX_FRAME_BYTES
from tests.servers import ServerProcess, agent_server

BODY = b'{"metadata":{"attack":true}}'
SMUGGLED = b"DELETE /threads/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
LENGTH = str(len(BODY)).encode()
LAST = b"Connection: close\r\n\r\n"
POISON = "x\r\nSet-Cookie: owned=1\r\n\r\n<b>"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="tools") as running:
        yield running


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=300) as client:
        yield client


def exchange(server: ServerProcess, data: bytes) -> list[bytes]:
    """Send bytes and return what is answered until the server closes, as it has to: one entry for each answer."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65536):
            received += piece

    return [b"HTTP/1.1 " + part for part in received.split(b"HTTP/1.1 ")[1:]]


def build_request(*headers: bytes, body: bytes = BODY) -> bytes:
    fixed = (b"POST /threads HTTP/1.1", b"Host: a", b"Content-Type: application/json")
    return b"\r\n".join((*fixed, *headers, b"", b"")) + body + SMUGGLED


@pytest.mark.parametrize(
    "data",
    [
        build_request(b"Content-Length: " + LENGTH, b"Content-Length: 0"),
        build_request(b"Content-Length: " + LENGTH, b"Content-Length: " + LENGTH),
        build_request(b"Content-Length: 0, " + LENGTH),
        build_request(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        build_request(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
        build_request(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
        build_request(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
        build_request(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
        build_request(b"Content-Length: +" + LENGTH),
        build_request(b"Content-Length: -1"),
        build_request(b"Content-Length: 99999999999999999999999"),
        build_request(b"Transfer-Encoding: chunked", body=b"FFFFFFFFFFFFFFFFF1\r\n"),
        build_request(b"Transfer-Encoding: chunked", body=b"-1\r\n"),
        build_request(b"X-A: b\rContent-Length: 5"),
        build_request(b"X-A: b\r\n Content-Length: 5"),
        build_request(b"X-A: b\0c"),
    ],
)
def test_request_smuggling_is_refused(server: ServerProcess, http: httpx2.Client, data: bytes) -> None:
    before = http.post("/threads/count", json={}).json()
    responses = exchange(server, data)
    assert [response.split(b" ")[1] for response in responses] == [b"400"]
    assert http.post("/threads/count", json={}).json() == before


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: b\r\n", b"Host: a\r\nhost: a\r\n"])
def test_request_needs_exactly_one_host_header(server: ServerProcess, hosts: bytes) -> None:
    (response,) = exchange(server, b"GET /info HTTP/1.1\r\n" + hosts + LAST)
    assert response.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "target",
    [
        b"/threads/",
        b"//threads/",
        b"//evil.example/",
        b"//evil.example/threads/",
        b"/\\evil.example/threads/",
        b"http://evil.example/threads/",
        b"/threads/%0d%0aSet-Cookie:%20owned=1/",
        b"/threads/?next=//evil.example",
    ],
)
def test_no_open_redirect(server: ServerProcess, target: bytes) -> None:
    (response,) = exchange(server, b"GET " + target + b" HTTP/1.1\r\nHost: evil.example\r\n" + LAST)
    head = response.partition(b"\r\n\r\n")[0].lower()
    places = [line.partition(b": ")[2] for line in head.split(b"\r\n") if line.startswith(b"location")]
    assert all(place.startswith(b"/") and not place.startswith((b"//", b"/\\")) for place in places), places
    assert b"\nset-cookie" not in head


def test_no_header_injection(http: httpx2.Client) -> None:
    metadata = {POISON: POISON, "a": POISON}
    body = {"metadata": metadata, POISON: 1, "x\nSet-Cookie: owned": 1, "é": 1}
    responses = [
        http.post("/threads", json=body),
        http.post("/threads/search", json={**body, "limit": 1}),
        http.post("/runs/wait", json={"assistant_id": "test_simple_text", "input": {"text": "x"}, **body}),
        http.post("/assistants", json={"graph_id": "echo", "name": POISON, **body}),
        http.get("/threads/" + "%0d%0aSet-Cookie:owned=1"),
        http.get("/info", params={POISON: POISON}),
    ]

    for response in responses:
        assert response.status_code < 500
        assert "set-cookie" not in response.headers
        assert not any("\r" in value or "\n" in value for value in response.headers.values())

    assert responses[0].json()["metadata"] == metadata


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/docs%00.html",
        "/static/....//....//etc/passwd",
        "/openapi.json/../../etc/passwd",
        "/threads/..%2f..%2finfo",
        "/%c0%ae%c0%ae/x",
    ],
)
def test_path_traversal_is_refused(server: ServerProcess, path: str) -> None:
    (response,) = exchange(server, f"GET {path} HTTP/1.1\r\nHost: a\r\n".encode() + LAST)
    assert response.split(b" ")[1] in {b"400", b"404", b"405", b"422"}
    assert b"root:" not in response


@pytest.mark.parametrize(
    "name", ["__proto__", "constructor", "prototype", "__class__", "__dict__", "$where", "{0.__class__}"]
)
def test_names_of_internals_are_stored_as_plain_keys(http: httpx2.Client, name: str) -> None:
    value = {name: {"polluted": True, "toString": "x"}}
    made = http.post("/threads", json={"metadata": value}).json()
    assert made["metadata"] == value
    assert http.post("/threads/search", json={"metadata": value}).json()[0]["thread_id"] == made["thread_id"]
    assert "polluted" not in http.post("/threads", json={}).json()["metadata"]
    put = http.put("/store/items", json={"namespace": ["a", name], "key": name, "value": value})
    assert put.status_code in {204, 422}

    response = http.post("/store/items/search", json={"namespace_prefix": ["a"], "filter": {name: {"$gt": 1}}})
    assert response.status_code < 500
    run = {"assistant_id": "test_simple_text", "input": {"text": "x"}, "config": {"configurable": value}}
    assert "polluted" not in json.dumps(http.post("/runs/wait", json=run).json())


def test_sizes_and_depths_are_limited(http: httpx2.Client) -> None:
    deep = b'{"metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    wide = json.dumps({"metadata": dict.fromkeys(map(str, range(20_000)), 0)}).encode()
    json_type = {"Content-Type": "application/json", "Accept": "application/json"}
    assert http.post("/threads", content=deep, headers=json_type).status_code == 422
    assert http.post("/threads", content=b"[" * 100_000, headers=json_type).status_code == 422
    assert http.post("/threads", content=b"[" * 1_000_000, headers=json_type).status_code == 413
    assert http.post("/threads", content=wide, headers=json_type).status_code < 500

    assert http.post("/mcp", content=b"[" * 100_000, headers=json_type).status_code == 400
    assert http.post("/threads", content=b" " * 25_000_001, headers=json_type).status_code == 413
    number = b'{"metadata":{"a":' + b"9" * 1_000_000 + b"}}"
    assert http.post("/threads", content=number, headers=json_type).status_code == 422
    assert http.get("/ok").status_code == 200


@pytest.mark.parametrize("frame", ["x" * (MAX_FRAME_BYTES + 1), "[" * 100_000, "\0", b"\xff\xfe"])
async def test_websocket_frames_are_limited(server: ServerProcess, frame: Any) -> None:
    url = server.url.replace("http", "ws", 1)
    path = "/threads/6f2c8b1e-0000-4000-8000-000000000000/stream/events"
    async with asyncio.timeout(60), connect(url + path, max_size=None) as opened:
        try:
            await opened.send(frame)
            response = json.loads(await opened.recv())
        except ConnectionClosed as exc:
            assert exc.rcvd is not None
            assert exc.rcvd.code in {1003, 1007, 1008, 1009}
        else:
            assert response["type"] == "error"

    async with httpx2.AsyncClient() as client:
        assert (await client.get(f"{server.url}/ok")).status_code == 200


def test_keys_and_sessions_are_looked_up_by_their_digests_and_compared_in_constant_time() -> None:
    keys = authentication.Authenticator.authenticate
    sessions = authentication.Authenticator.authenticate_session
    assert "hash_token" in keys.__code__.co_names
    assert "compare_digest" in authentication.Authenticator._read_key_actor.__code__.co_names
    assert {"hash_token", "compare_digest"} <= set(sessions.__code__.co_names)
    assert authentication.hmac.compare_digest is hmac.compare_digest
