"""Following a revision while the platform does not answer for a moment, for example during a restart."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from portside.cli import revisions
from portside.cli.client import Platform
from portside.cli.deployments import RevisionLogs
from portside.cli.revisions import follow_revision
from portside.kernel.errors import UserMistake

STATUSES: list[int] = []


class Proxy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = STATUSES.pop(0) if STATUSES else 200
        response = {"id": "r", "status": "DEPLOYED", "logs": [], "next_offset": None, "detail": "nobody is behind this"}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(response).encode())

    def log_message(self, *_said: object) -> None:
        """Keep quiet."""


@pytest.fixture
def platform() -> Iterator[Platform]:
    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        platform = Platform(f"http://127.0.0.1:{server.server_port}", "key")
        yield platform
        platform.close()
        server.shutdown()


def test_requests_are_retried_while_the_platform_is_unavailable(platform: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(revisions, "POLL_S", 0)
    STATUSES[:] = [503, 502, 200, 504]
    said: list[str] = []
    follow_revision(platform, "d", "r", say=said.append)
    assert (said, STATUSES) == (["DEPLOYED"], [])


def test_logs_are_followed_while_the_platform_is_unavailable(platform: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(revisions, "POLL_S", 0)
    STATUSES[:] = [503, 200, 502]
    logs = RevisionLogs(platform, "d", "r")
    assert logs.kind() == "deploy"
    assert logs.show_new("deploy", "5") == "5"
    assert STATUSES == []


def test_retries_end_after_a_while(platform: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(revisions, "RETRY_FOR_S", 0)
    STATUSES[:] = [503] * 100
    with pytest.raises(UserMistake, match="503: nobody is behind this"):
        follow_revision(platform, "d", "r", say=print)


def test_refusals_are_not_retried(platform: Platform):
    STATUSES[:] = [404]
    with pytest.raises(UserMistake, match="404"):
        follow_revision(platform, "d", "r", say=print)

    assert STATUSES == []
