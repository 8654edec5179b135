"""Only configured origins may call from a browser, also by WebSocket."""

from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from portside.kernel.http import middleware
from portside.kernel.http.cors import Cors, CorsRules
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.metrics import REQUESTS

PAGE = "https://page.example"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await Response("hello", headers={"Vary": "Accept"})(scope, receive, send)


async def call(rules: CorsRules, method: str = "GET", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(RequestMiddleware(hello, cors=Cors(rules))), base_url="http://x"
    ) as client:
        return await client.request(method, "/", headers=named)


async def preflight(rules: CorsRules, method: str = "POST", origin: str = PAGE, **headers: str) -> httpx2.Response:
    return await call(rules, "OPTIONS", origin=origin, access_control_request_method=method, **headers)


async def test_default_allows_any_origin_without_credentials() -> None:
    response = await call(CorsRules(), origin=PAGE)
    assert response.headers["access-control-allow-origin"] == "*"
    assert (
        response.headers["access-control-expose-headers"] == "x-pagination-total, x-pagination-next, content-location"
    )
    assert "access-control-allow-credentials" not in response.headers
    assert response.headers["vary"] == "Accept, Origin"


async def test_request_without_origin_gets_vary_header() -> None:
    response = await call(CorsRules())
    assert "access-control-allow-origin" not in response.headers
    assert "Origin" in response.headers["vary"]


async def test_preflight_lists_what_is_allowed() -> None:
    response = await preflight(CorsRules(), "PATCH", access_control_request_headers="x-api-key, x-odd")
    assert (response.status_code, response.text) == (200, "OK")
    assert response.headers["access-control-allow-methods"] == "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"
    assert response.headers["access-control-allow-headers"] == "x-api-key, x-odd"
    assert response.headers["access-control-max-age"] == "600"
    assert response.headers["access-control-allow-private-network"] == "true"


async def test_options_without_preflight_headers_reaches_the_routes() -> None:
    assert (await call(CorsRules(), "OPTIONS", origin=PAGE)).text == "hello"


@pytest.mark.parametrize(
    ("rules", "origin", "is_allowed"),
    [
        (CorsRules(allow_origins=[PAGE]), PAGE, True),
        (CorsRules(allow_origins=[PAGE]), "https://page.example.evil", False),
        (CorsRules(allow_origins=[PAGE]), "null", False),
        (CorsRules(allow_origins=[]), PAGE, False),
        (CorsRules(allow_origins=[], allow_origin_regex=r"https://.*\.example"), PAGE, True),
        (CorsRules(allow_origins=[], allow_origin_regex=r"https://.*\.example"), PAGE + ".evil", False),
    ],
)
async def test_only_configured_origins_are_allowed(rules, origin: str, is_allowed) -> None:
    response = await call(rules, origin=origin)
    before = await preflight(rules, origin=origin)
    assert response.headers.get("access-control-allow-origin") == (origin if is_allowed else None)
    assert before.status_code == (200 if is_allowed else 400)
    assert before.headers.get("access-control-allow-origin") == (origin if is_allowed else None)


async def test_credentials_need_a_configured_origin() -> None:
    named = await call(CorsRules(allow_origins=[PAGE], allow_credentials=True), origin=PAGE)
    anybody = await call(CorsRules(allow_credentials=True), origin=PAGE)
    assert named.headers["access-control-allow-credentials"] == "true"
    assert "access-control-allow-credentials" not in anybody.headers
    assert anybody.headers["access-control-allow-origin"] == "*"


async def test_methods_and_headers_can_be_restricted() -> None:
    rules = CorsRules(allow_methods=["get"], allow_headers=["X-One"])
    assert (await preflight(rules, "GET", access_control_request_headers="x-one, Content-Type")).status_code == 200
    assert (await preflight(rules, "POST")).text == "Disallowed CORS method"
    assert (await preflight(rules, "GET", access_control_request_headers="x-two")).text == "Disallowed CORS headers"


@pytest.mark.parametrize(
    ("rules", "headers", "is_let_in"),
    [
        (CorsRules(), {"origin": PAGE}, True),
        (CorsRules(allow_origins=[PAGE]), {"origin": PAGE}, True),
        (CorsRules(allow_origins=[PAGE]), {"origin": "https://other.example"}, False),
        (CorsRules(allow_origins=[PAGE]), {"origin": "http://own:2024", "host": "own:2024"}, True),
        (CorsRules(allow_origins=[PAGE]), {}, True),
    ],
)
async def test_websocket_needs_an_allowed_origin(rules, headers, is_let_in) -> None:
    sent: list[str] = []

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        sent.append("accepted")

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    scope = {"type": "websocket", "path": "/", "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}
    await RequestMiddleware(app, cors=Cors(rules))(scope, receive, send)
    assert sent == (["accepted"] if is_let_in else ["websocket.close"])


def test_origins_are_parsed_from_a_setting():
    assert CorsRules.of("*").allow_origins == ["*"]
    assert CorsRules.of("https://a.example, https://b.example,").allow_origins == [
        "https://a.example",
        "https://b.example",
    ]

    assert CorsRules.of("none").allow_origins == []


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"origin": PAGE}, 200),
        ("POST", {}, 200),
        ("POST", {"origin": "https://evil.example"}, 403),
        ("DELETE", {"origin": "null"}, 403),
        ("POST", {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}, 403),
        ("POST", {"origin": "https://evil.example", "sec_fetch_site": "same-site"}, 403),
        ("GET", {"origin": "https://evil.example"}, 200),
        ("POST", {"origin": "http://x"}, 200),
        ("POST", {"origin": "https://behind.a.proxy", "sec_fetch_site": "same-origin"}, 200),
    ],
)
async def test_disallowed_origin_cannot_change_anything(method: str, headers: dict[str, str], status: int) -> None:
    response = await call(CorsRules(allow_origins=[PAGE]), method, **headers)
    assert response.status_code == status
    assert (await call(CorsRules(), method, **headers)).status_code == 200


async def test_refused_requests_and_preflights_have_an_id_and_are_logged_and_counted(monkeypatch) -> None:
    """An operator finds the line of a refusal by the id that its user reports."""

    def count(method: str, status: int) -> float:
        return REQUESTS.labels(method, "unrouted", status)._value.get()

    rules = CorsRules(allow_origins=[PAGE])
    before = count("POST", 403), count("OPTIONS", 200), count("OPTIONS", 400)
    logged: list[Any] = []

    def log(_method: str, _path: str, status: int, *, request_id: str, **_fields: Any) -> None:
        logged.append((request_id, status))

    monkeypatch.setattr(middleware, "log_request", log)
    refused = await call(rules, "POST", origin="https://evil.example", x_request_id="r-1")
    allowed = await preflight(rules, x_request_id="r-2")
    forbidden = await preflight(rules, origin="https://evil.example", x_request_id="r-3")
    assert [one.headers["x-request-id"] for one in (refused, allowed, forbidden)] == ["r-1", "r-2", "r-3"]
    assert (count("POST", 403), count("OPTIONS", 200), count("OPTIONS", 400)) == tuple(one + 1 for one in before)
    assert logged == [("r-1", 403), ("r-2", 200), ("r-3", 400)]

    assert allowed.headers["vary"] == "Origin, Access-Control-Request-Headers"
    assert "access-control-expose-headers" not in allowed.headers
