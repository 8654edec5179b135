"""Which routes an agent server serves, and what its OpenAPI document and its console page contain."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, get_args

import httpx2
import pytest

from portside.agent import api_description
from portside.agent.api_description import describe_api
from portside.agent.config import HttpConfig
from portside.agent.http.services import Traffic
from portside.agent.http.system import ApiMetrics, HealthQuery, Metrics, check_health, join_metrics, say_ok
from portside.agent.middleware import wrap_for_clients
from portside.agent.queue.backlog import Backlog, Slots
from portside.agent.served_routes import OPTIONAL, ROUTES, list_served_routes
from portside.agent.settings import AgentSettings
from portside.agent.streams.events import ThreadMode
from portside.agent.types.access import AuthOpenApi
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.openapi import read_reference_page


def paths(http: HttpConfig, *, has_diagnostics: bool = False) -> set[str]:
    return {route.path for route in list_served_routes(ROUTES, http, has_diagnostics=has_diagnostics)}


def test_every_group_is_known() -> None:
    assert set(OPTIONAL) <= {route.tag for route in ROUTES}


def test_diagnostic_routes_are_off_by_default() -> None:
    assert {route.path for route in ROUTES} - paths(HttpConfig()) == {"/heapdump", "/profile"}
    assert paths(HttpConfig(), has_diagnostics=True) == {route.path for route in ROUTES}


@pytest.mark.parametrize(
    ("flag", "gone", "left"),
    [
        ("disable_assistants", "/assistants/search", "/threads"),
        ("disable_threads", "/threads/{thread_id}/state", "/threads/{thread_id}/runs"),
        ("disable_threads", "/threads", "/runs/wait"),
        ("disable_threads", "/threads/{thread_id}/stream", "/threads/{thread_id}/runs/{run_id}/stream"),
        ("disable_threads", "/threads/{thread_id}/stream/events", "/runs/stream"),
        ("disable_threads", "/threads/{thread_id}/commands", "/runs/stream"),
        ("disable_runs", "/threads/{thread_id}/runs", "/threads"),
        ("disable_runs", "/runs/crons", "/threads"),
        ("disable_runs", "/threads/{thread_id}/runs/crons", "/threads"),
        ("disable_store", "/store/items", "/threads"),
        ("disable_mcp", "/mcp", "/threads"),
        ("disable_a2a", "/a2a/{assistant_id}", "/threads"),
        ("disable_a2a", "/.well-known/agent-card.json", "/threads"),
        ("disable_ui", "/ui/{name}", "/threads"),
        ("disable_meta", "/info", "/ok"),
    ],
)
def test_groups_can_be_left_out(flag: str, gone: str, left: str) -> None:
    assert {gone, left} <= paths(HttpConfig())
    assert gone not in paths(HttpConfig(**{flag: True}))
    assert left in paths(HttpConfig(**{flag: True}))


def test_without_the_system_routes_the_server_says_no_more_than_that_it_is_there() -> None:
    system = [
        route
        for route in list_served_routes(ROUTES, HttpConfig(disable_meta=True), has_diagnostics=False)
        if route.tag == "system"
    ]

    assert [(route.path, route.handler.__name__) for route in system] == [("/ok", "say_ok")]


def test_only_the_routes_of_the_contract_need_no_key() -> None:
    public = {route.path for route in ROUTES if route.public}
    assert public == {"/ok", "/", "/info", "/docs", "/openapi.json", "/metrics", "/ui/{name}/{file}"}


def test_requests_name_the_graphs_there_are_and_answers_any() -> None:
    described = json.loads(describe_api(ROUTES, ["one", "two"]).openapi)
    schemas = described["components"]["schemas"]
    drawn, read = (described["paths"][f"/assistants/{{assistant_id}}{end}"]["get"] for end in ("/graph", ""))
    assert {"type": "string", "enum": ["one", "two"]} in drawn["parameters"][0]["schema"]["anyOf"]
    assert read["parameters"][0]["schema"] == {"type": "string", "format": "uuid"}
    modes = described["paths"]["/threads/{thread_id}/stream"]["get"]["parameters"][1]["schema"]["items"]["enum"]
    assert modes == list(get_args(ThreadMode))

    assert schemas["AssistantCreate"]["properties"]["graph_id"]["enum"] == ["one", "two"]
    assert "enum" not in schemas["Assistant"]["properties"]["graph_id"]


def test_description_says_how_callers_authenticate_and_which_routes_are_public() -> None:
    token = {"type": "http", "scheme": "bearer"}
    of_one = {"/threads": {"post": [{"token": ["threads:write"]}]}}
    security = AuthOpenApi(securitySchemes={"token": token}, security=[{"token": []}], paths=of_one)
    described = json.loads(describe_api(ROUTES, ["one"], security=security).openapi)

    assert described["components"]["securitySchemes"] == {"token": token}
    assert described["security"] == [{"token": []}]
    assert described["paths"]["/threads"]["post"]["security"] == [{"token": ["threads:write"]}]
    without = {
        (path, method)
        for path, by_method in described["paths"].items()
        for method, operation in by_method.items()
        if operation.get("security") == []
    }
    assert without == {(route.path, route.method.lower()) for route in ROUTES if route.public}


def test_debugging_routes_need_the_permission_to_deploy() -> None:
    assert {route.permission for route in ROUTES if route.tag == "debugging"} == {"deployments:update"}


def test_metrics_of_all_processes_are_those_of_one_server() -> None:
    def build(active: int, idle_s: float | None, *requests: tuple[str, int], problem: str = "") -> Metrics:
        rows = [{"method": "GET", "path": path, "status": "200", "count": count} for path, count in requests]
        return Metrics(
            queue=Backlog(n_pending=3, n_running=2),
            api=ApiMetrics(rows),  # type: ignore[arg-type]
            workers=Slots(max=10, active=active, available=10 - active),
            problems=[problem] if problem else [],
            idle_s=idle_s,
        )

    first = build(1, 60.0, ("/a", 1), ("/b", 2), problem="p")
    second = build(4, 5.0, ("/a", 10), ("/c", 3), problem="p")
    joined = join_metrics([first, second])
    assert joined.queue == first.queue
    assert [(row["path"], row["count"]) for row in joined.api.http_requests_total] == [("/a", 11), ("/b", 2), ("/c", 3)]
    assert joined.workers == Slots(max=20, active=5, available=15)
    assert (joined.problems, joined.idle_s) == (["p"], 5.0)

    # A server that may be busy does not go to sleep.
    assert join_metrics([first, build(0, None)]).idle_s is None
    assert [row["count"] for row in first.api.http_requests_total] == [1, 2]


@pytest.mark.parametrize(
    ("is_up", "is_served", "query", "statuses"),
    [
        (True, True, HealthQuery(), (200, 200)),
        (False, True, HealthQuery(), (500, 200)),
        (False, True, HealthQuery(check_db=False), (200, 200)),
        (True, False, HealthQuery(), (200, 200)),
        (True, False, HealthQuery(serving=True), (500, 500)),
        (True, True, HealthQuery(serving=True), (200, 200)),
    ],
)
async def test_health_needs_the_dependencies_and_on_request_traffic(
    *, is_up: bool, is_served: bool, query: HealthQuery, statuses: tuple[int, int]
) -> None:
    async def answers() -> bool:
        return is_up

    traffic = Traffic()
    traffic.is_served = is_served
    services = SimpleNamespace(health=HealthChecks({"postgres": answers}), traffic=traffic)
    ctx: Any = SimpleNamespace(services=services)
    checked, said = [await handler(ctx, query) for handler in (check_health, say_ok)]
    assert (checked.status_code, said.status_code) == statuses
    assert json.loads(checked.body)["services"] == ({"postgres": is_up} if query.check_db else {})


def test_reference_page_loads_nothing_from_elsewhere() -> None:
    page, policy = read_reference_page()
    assert b"//" not in page.replace(b"http://www.w3.org", b"").replace(b"<!--", b"")
    assert b" style=" not in page
    assert b"innerHTML" not in page
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_the_description_is_written_once_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    document = api_description.build_document

    def note(*args: object) -> object:
        written.append(args)
        return document(*args)

    monkeypatch.setattr(api_description, "build_document", note)
    manual = describe_api(ROUTES, ["one"])
    assert not written
    assert manual.openapi is manual.openapi
    assert len(written) == 1


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "address"),
    [
        ("127.0.0.1,::1", "127.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("127.0.0.1,::1", "127.0.0.1", "127.0.0.1, 203.0.113.1", "203.0.113.1"),
        ("127.0.0.1,::1", "203.0.113.9", "127.0.0.1", "203.0.113.9"),
        ("10.0.0.0/8", "10.1.2.3", "203.0.113.1", "203.0.113.1"),
        ("10.0.0.0/8", "127.0.0.1", "203.0.113.1", "127.0.0.1"),
        ("", "127.0.0.1", "203.0.113.1", "127.0.0.1"),
    ],
)
async def test_trusted_proxies_tell_where_requests_come_from(
    trusted: str, peer: str, forwarded: str, address: str
) -> None:
    seen: list[str] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def nothing(*_: Any) -> Any:
        return {"type": "http.disconnect"}

    settings = AgentSettings(trusted_proxies=trusted)
    headers = [(b"host", b"a"), (b"x-forwarded-for", forwarded.encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "headers": headers,
        "client": (peer, 1),
        "scheme": "http",
        "http_version": "1.1",
        "query_string": b"",
    }

    await wrap_for_clients(app, HttpConfig(), settings, draining=asyncio.Event(), traffic=Traffic())(
        scope, nothing, nothing
    )
    assert seen == [address]


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("agent.example, *.mine.example", "agent.example:8123", 200),
        ("agent.example, *.mine.example", "a.mine.example", 200),
        ("agent.example, *.mine.example", "page.example", 400),
        ("*", "page.example", 200),
    ],
)
async def test_requests_may_only_name_hosts_that_the_setting_allows(allowed: str, host: str, status: int) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    settings = AgentSettings(allowed_hosts=allowed)
    wrapped = wrap_for_clients(app, HttpConfig(), settings, draining=asyncio.Event(), traffic=Traffic())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(wrapped), base_url="http://a") as client:
        assert (await client.get("/threads", headers={"host": host})).status_code == status
        assert (await client.get("/ok", headers={"host": host})).status_code == 200
