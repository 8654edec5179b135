"""Following a revision through a platform that is away for a moment, as one behind a proxy is while it restarts."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from portside.cli import following
from portside.cli.client import Platform
from portside.cli.following import follow_revision
from portside.kernel.errors import UserMistake

STATUSES: list[int] = []


class Proxy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = STATUSES.pop(0) if STATUSES else 200
        answer = {"id": "r", "status": "DEPLOYED", "logs": [], "next_offset": None, "detail": "nobody is behind this"}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

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


def test_a_platform_that_is_away_for_a_moment_is_asked_again(platform: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(following, "POLL_S", 0)
    STATUSES[:] = [503, 502, 200, 504]
    said: list[str] = []
    follow_revision(platform, "d", "r", say=said.append)
    assert (said, STATUSES) == (["DEPLOYED"], [])


def test_one_that_stays_away_is_given_up(platform: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(following, "PATIENCE_S", 0)
    STATUSES[:] = [503] * 100
    with pytest.raises(UserMistake, match="503: nobody is behind this"):
        follow_revision(platform, "d", "r", say=print)


def test_a_refusal_is_one_at_once(platform: Platform):
    STATUSES[:] = [404]
    with pytest.raises(UserMistake, match="404"):
        follow_revision(platform, "d", "r", say=print)
    assert STATUSES == []
