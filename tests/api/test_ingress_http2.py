"""HTTP/2 at the front: what a client can say only there, and what agents get of it, which is HTTP/1.

A client may put into frames what no HTTP/1 request can hold: line breaks in values, a length that is not that of the
body, two names of the host. None of it may become another request, or another path, for an agent.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset

from portside.ingress.front import get_root_certificate
from tests.fronted import Fronted, start_fronted

pytestmark = pytest.mark.timeout(600)
DOMAIN = "localhost"
AGENT = "/agents/fake"
Headers = list[tuple[str, str]]


class Answer(NamedTuple):
    """The status of a response and its body; the status is 0 if the front reset the stream or the connection."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


class Front(NamedTuple):
    """A platform with HTTPS."""

    platform: Fronted
    trust: ssl.SSLContext

    def send(self, path: str, *more: tuple[str, str], body: bytes = b"", authority: str | None = None) -> Answer:
        """Send a POST that nothing has checked, on a connection of its own."""
        named = f"{DOMAIN}:{self.platform.ports['https']}" if authority is None else authority
        pseudo = [(":method", "POST"), (":scheme", "https"), (":path", path)]
        return self._exchange([*pseudo, *([(":authority", named)] if named else []), *more], body)

    def wait_for_certificate(self) -> None:
        """Wait until the front has the certificate of the domain, which it issues after its ports are open."""
        deadline = time.monotonic() + 120
        while True:
            try:
                assert self.send("/ok").status == 405
            except (ssl.SSLError, ConnectionError):
                assert time.monotonic() < deadline, "the front has no certificate"
                time.sleep(0.05)
            else:
                return

    def _exchange(self, headers: Headers, body: bytes) -> Answer:
        config = H2Configuration(
            validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding="utf-8"
        )

        with (
            socket.create_connection(("127.0.0.1", self.platform.ports["https"]), timeout=300) as plain,
            self.trust.wrap_socket(plain, server_hostname=DOMAIN) as secured,
        ):
            assert secured.selected_alpn_protocol() == "h2"
            connection = H2Connection(config)
            connection.initiate_connection()
            connection.send_headers(1, headers)
            connection.send_data(1, body, end_stream=True)
            secured.sendall(connection.data_to_send())

            return _receive(secured, connection)


def _receive(secured: ssl.SSLSocket, connection: H2Connection) -> Answer:
    status = 0
    parts = []
    while data := secured.recv(65_536):
        for event in connection.receive_data(data):
            if isinstance(event, ResponseReceived):
                status = int(dict(event.headers)[":status"])
            elif isinstance(event, DataReceived):
                parts.append(event.data)
            elif isinstance(event, StreamEnded):
                return Answer(status, b"".join(parts))
            elif isinstance(event, StreamReset | ConnectionTerminated):
                return Answer(0)

        secured.sendall(connection.data_to_send())

    return Answer(0)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, platform_database: str) -> Iterator[Front]:
    home = tmp_path_factory.mktemp("http2") / "portside"
    with start_fronted(home, platform_database, "--domain", DOMAIN, "--tls", "internal") as platform:
        platform.deploy("fake")
        opened = Front(platform, create_tls_context(platform))
        opened.wait_for_certificate()
        yield opened


def create_tls_context(platform: Fronted) -> ssl.SSLContext:
    trust = ssl.create_default_context(cafile=str(get_root_certificate(platform.home)))
    trust.set_alpn_protocols(["h2"])
    return trust


def check_next_requests(front: Front) -> None:
    """The connections to the agent are used again: nothing may be left on them."""
    for number in range(3):
        answer = front.send(f"{AGENT}/next-{number}", body=b"x" * number)
        assert answer.status == 200
        assert (answer.json()["path"], answer.json()["size"]) == (f"/next-{number}", number)


def test_requests_reach_the_agent(front: Front):
    seen = front.send(f"{AGENT}/x?q=a/../b", ("x-forwarded-prefix", "/evil"), ("x-forwarded-for", "203.0.113.9")).json()
    headers = seen["headers"]
    assert (seen["path"], headers["x-forwarded-prefix"], headers["x-forwarded-for"]) == ("/x", AGENT, "127.0.0.1")


@pytest.mark.parametrize(
    "path",
    [
        f"{AGENT}/../fake/x",
        f"{AGENT}/..",
        f"{AGENT}/%2e%2e/x",
        f"{AGENT}/a%2fb",
        f"{AGENT}/a\\b",
        f"{AGENT}/%00",
        f"/x/..{AGENT}/y",
        f"{AGENT}/x HTTP/1.1\r\nX-A: b",
        f"{AGENT}/x\nGET /hidden",
        "agents/fake/x",
        "",
        f"https://evil.example{AGENT}/x",
        "*",
        f"/{AGENT}/x",
        "/%61gents/fake/x",
    ],
)
def test_paths_with_two_readings_reach_no_agent(front: Front, path: str):
    answer = front.send(path)
    assert answer.status in {0, 400, 404, 405, 421}, answer
    assert b'"path"' not in answer.body
    check_next_requests(front)


@pytest.mark.parametrize(
    "header",
    [
        ("transfer-encoding", "chunked"),
        ("connection", "keep-alive, x-forwarded-prefix"),
        ("upgrade", "websocket"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "chunked"),
        ("x-a", f"b\r\nContent-Length: 0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: {DOMAIN}\r\n\r\n"),
        ("x-a", "b\n\nGET /hidden"),
        ("x-a", "b\0c"),
        ("x-a\r\nx-b", "c"),
        ("x-a: b", "c"),
        ("X-A", "b"),
        (":path", "/hidden"),
        (":unknown", "x"),
        ("content-length", "0"),
        ("content-length", "60"),
        ("content-length", "+5"),
        ("content-length", "5, 5"),
    ],
)
def test_headers_that_http1_cannot_hold_cannot_smuggle_requests(front: Front, header: tuple[str, str]):
    answer = front.send(f"{AGENT}/one", header, body=b"GET /hidden HTTP/1.1\r\n\r\n"[:5])
    # 502: the body is not as long as the header says, so the front gives up the request to the agent.
    assert answer.status in {0, 200, 400, 431, 502}, answer
    assert b"/hidden" not in answer.body

    if answer.status == 200:
        headers = answer.json()["headers"]
        assert answer.json()["path"] == "/one"
        assert headers["x-forwarded-prefix"] == AGENT
        assert {"transfer-encoding", "upgrade", "x-b", "content-length"} & headers.keys() <= {"content-length"}

    check_next_requests(front)


@pytest.mark.parametrize(
    "authority", ["evil.example", "", f"{DOMAIN}@evil.example", f"{DOMAIN}\r\nX-A: b", "localhost,evil"]
)
def test_another_authority_is_refused(front: Front, authority: str):
    assert front.send(f"{AGENT}/x", authority=authority).status in {0, 400, 421}


def test_second_host_header_is_not_used(front: Front):
    answer = front.send(f"{AGENT}/x", ("host", "evil.example"))
    assert answer.status in {0, 200, 400, 421}
    assert b"evil.example" not in answer.body
