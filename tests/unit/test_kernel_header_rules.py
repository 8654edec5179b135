from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from portside.kernel.errors import Invalid
from portside.kernel.http.front import Front
from portside.kernel.http.header_rules import VALUE_LIMIT, ForwardHeaders, HeaderRules, forwarded_headers
from tests.unit.test_kernel_cors import hello

SENT = [
    (b"X-User", b"ada"), (b"x-mine-a", b"1"), (b"x-mine-b", b"2"), (b"X-Mine-A", b"3"), (b"accept", b"*/*"),
    (b"x-api-key", b"key"), (b"x-tenant-id", b"t"), (b"x-service-key", b"s"), (b"authorization", b"Bearer x"),
    (b"x-forwarded-authorization", b"y"), (b"cookie", b"c"), (b"thread_id", b"mine"), (b"__pregel_x", b"y"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "chosen"),
    [
        (HeaderRules(), {}),
        (HeaderRules(includes=["x-user"]), {"x-user": "ada"}),
        (HeaderRules(include=["X-MINE-*"]), {"x-mine-a": "1, 3", "x-mine-b": "2"}),
        (HeaderRules(includes=["*"], excludes=["x-mine-*"]), {"x-user": "ada", "accept": "*/*"}),
        (HeaderRules(includes=["x-user", "x-mine-a"], exclude=["*-user"]), {"x-mine-a": "1, 3"}),
        (HeaderRules(includes=["x-us"]), {}),
        (HeaderRules(includes=["x.user"]), {}),
        (HeaderRules(includes=["x-api-key", "authorization", "thread_id", "cookie"]), {}),
    ],
)
def test_names_are_chosen_by_patterns_and_secrets_never(rules: HeaderRules, chosen: dict[str, str]) -> None:
    assert rules.choose(SENT) == chosen


def test_secrets_that_are_asked_for_are_told() -> None:
    assert HeaderRules(includes=["x-user", "Authorization", "*"], include=["x-api-key"]).never == [
        "Authorization", "x-api-key",
    ]  # fmt: skip


def test_many_stars_cost_no_time() -> None:
    assert not HeaderRules(includes=["*" * 100 + "z"]).choose([(b"a" * 8000, b"")])


@pytest.mark.parametrize("given", [{"includes": "x"}, {"includes": [""]}, {"inclusive": []}])
def test_rules_without_sense_are_refused(given: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, HeaderRules)


async def test_headers_are_there_for_what_a_request_starts_and_not_after() -> None:
    found: list[dict[str, str]] = []

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        found.append(forwarded_headers())

    await ForwardHeaders(app, HeaderRules(includes=["x-user"]))({"type": "http", "headers": SENT}, None, None)
    assert [*found, forwarded_headers()] == [{"x-user": "ada"}, {}]


async def test_a_long_header_is_refused_by_its_name() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        forwarded_headers()

    scope = {"type": "websocket", "headers": [(b"x-user", b"a" * (VALUE_LIMIT + 1))]}
    with pytest.raises(Invalid, match=r"x-user"):
        await ForwardHeaders(app, HeaderRules(includes=["x-user"]))(scope, None, None)


async def test_a_log_shows_chosen_headers_and_no_command_for_a_terminal() -> None:
    async def send(_message: Any) -> None:
        """Take the answer."""

    headers = [(b"x-user", b"\x9b31mada" + b"a" * 1000), (b"authorization", b"Bearer x")]
    headers.append((b"host", b"agents"))
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/x", "headers": headers}
    structlog.contextvars.clear_contextvars()
    with capture_logs() as logged:
        await Front(hello, logged_headers=HeaderRules(includes=["*"]))(scope, None, send)
    (line,) = logged
    assert line["headers"]["x-user"].startswith("\\x9b31mada")
    assert len(line["headers"]["x-user"]) < 300
    assert list(line["headers"]) == ["x-user", "host"]
