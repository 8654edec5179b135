"""Which headers of a request a graph may read and a log may contain."""

from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from portside.kernel.errors import Invalid
from portside.kernel.http.forwarded_headers import VALUE_LIMIT, ForwardHeaders, HeaderRules, get_forwarded_headers
from portside.kernel.http.headers import parse_cookies
from portside.kernel.http.middleware import RequestMiddleware
from tests.unit.test_kernel_cors import hello

SENT = [
    (b"X-User", b"ada"),
    (b"x-mine-a", b"1"),
    (b"x-mine-b", b"2"),
    (b"X-Mine-A", b"3"),
    (b"accept", b"*/*"),
    (b"x-api-key", b"key"),
    (b"x-tenant-id", b"t"),
    (b"x-service-key", b"s"),
    (b"authorization", b"Bearer x"),
    (b"x-forwarded-authorization", b"y"),
    (b"cookie", b"c"),
    (b"thread_id", b"mine"),
    (b"__pregel_x", b"y"),
]


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
def test_header_patterns_never_select_secrets(rules: HeaderRules, chosen: dict[str, str]) -> None:
    assert rules.select(SENT) == chosen


def test_patterns_that_name_secrets_are_reported() -> None:
    assert HeaderRules(includes=["x-user", "Authorization", "*"], include=["x-api-key"]).ignored == [
        "Authorization",
        "x-api-key",
    ]


def test_pattern_with_many_stars_is_matched_in_linear_time() -> None:
    assert not HeaderRules(includes=["*" * 100 + "z"]).select([(b"a" * 8000, b"")])


@pytest.mark.parametrize("given", [{"includes": "x"}, {"includes": [""]}, {"inclusive": []}])
def test_invalid_header_rules_are_refused(given: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, HeaderRules)


async def test_headers_are_bound_for_the_request_only() -> None:
    found: list[dict[str, str]] = []

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        found.append(get_forwarded_headers())

    await ForwardHeaders(app, HeaderRules(includes=["x-user"]))({"type": "http", "headers": SENT}, None, None)
    assert [*found, get_forwarded_headers()] == [{"x-user": "ada"}, {}]


async def test_long_header_is_refused_by_name() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        get_forwarded_headers()

    scope = {"type": "websocket", "headers": [(b"x-user", b"a" * (VALUE_LIMIT + 1))]}
    with pytest.raises(Invalid, match=r"x-user"):
        await ForwardHeaders(app, HeaderRules(includes=["x-user"]))(scope, None, None)


async def test_logged_headers_are_selected_and_escaped() -> None:
    async def send(_message: Any) -> None:
        """Receive the response."""

    headers = [(b"x-user", b"\x9b31mada" + b"a" * 1000), (b"authorization", b"Bearer x")]
    headers.append((b"host", b"agents"))
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/x", "headers": headers}
    structlog.contextvars.clear_contextvars()

    with capture_logs() as logged:
        await RequestMiddleware(hello, logged_headers=HeaderRules(includes=["*"]))(scope, None, send)

    (line,) = logged
    assert line["headers"]["x-user"].startswith("\\x9b31mada")
    assert len(line["headers"]["x-user"]) < 300
    assert list(line["headers"]) == ["x-user", "host"]


def test_no_other_blank_hides_in_the_name_of_a_cookie():
    """Another host of the domain may set a cookie whose name only begins like one with the prefix `__Host-`."""
    name = "__Host-portside_session"
    assert parse_cookies(f'a=1;{name}=x;\t {name} ="y" ; b=2', name) == ["x", "y"]
    for blank in ("\xa0", "\x85", "\x1c", "\x0b"):
        assert parse_cookies(f"{blank}{name}=evil; {name}{blank}=evil", name) == []
