"""The settings and the configuration file reach what stands in front of an agent server's routes."""

import asyncio
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from portside.agent.config import HttpConfig
from portside.agent.http.services import Traffic
from portside.agent.middleware import wrap_for_clients, wrap_for_own_calls
from portside.agent.settings import AgentSettings
from portside.kernel.http.cors import CorsRules
from portside.kernel.http.forwarded_headers import HeaderRules, get_forwarded_headers
from portside.kernel.http.json_validation import value_limit

PAGE = {"origin": "https://page.example"}
PLAIN = HttpConfig()
SETTINGS = AgentSettings(
    allowed_hosts="agents.example",
    cors_allow_origins="https://other.example",
    http_max_request_body_bytes=1024,
    http_max_request_body_values=2000,
)


async def tell(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what is known of the request."""
    body = await Request(scope, receive).body()
    facts = {"bytes": len(body), "values": value_limit.get(), "headers": get_forwarded_headers(), "path": scope["path"]}
    await JSONResponse(facts)(scope, receive, send)


async def call(app: Any, path: str = "/x", host: str = "agents.example", **sent: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=f"http://{host}") as client:
        return await client.post(path, **sent)


def for_clients(http: HttpConfig = PLAIN, settings: AgentSettings = SETTINGS) -> Any:
    return wrap_for_clients(tell, http, settings, draining=asyncio.Event(), traffic=Traffic())


@pytest.mark.parametrize("wrap", [for_clients, lambda: wrap_for_own_calls(tell, PLAIN, SETTINGS)])
async def test_bodies_are_limited_as_the_settings_say(wrap: Any) -> None:
    assert (await call(wrap(), content=b"x" * 1024)).json() == {
        "bytes": 1024,
        "values": 2000,
        "headers": {},
        "path": "/x",
    }
    assert (await call(wrap(), content=b"x" * 1025)).status_code == 413


async def test_only_the_hosts_of_the_settings_are_answered() -> None:
    assert (await call(for_clients(), host="other.example")).status_code == 400
    anywhere = for_clients(settings=AgentSettings())
    assert (await call(anywhere, host="other.example")).status_code == 200


async def test_pages_of_the_configuration_file_win_over_those_of_the_settings() -> None:
    named = HttpConfig(cors=CorsRules(allow_origins=[PAGE["origin"]]))
    assert (await call(for_clients(named), headers=PAGE)).headers["access-control-allow-origin"] == PAGE["origin"]
    assert (await call(for_clients(), headers=PAGE)).status_code == 403
    other = {"origin": "https://other.example"}
    assert (await call(for_clients(), headers=other)).status_code == 200
    assert (await call(for_clients(named), headers=other)).status_code == 403


async def test_headers_of_the_configuration_file_reach_runs() -> None:
    http = HttpConfig(configurable_headers=HeaderRules(includes=["x-user"]))
    for app in (for_clients(http), wrap_for_own_calls(tell, http, SETTINGS)):
        assert (await call(app, headers={"x-user": "ada", "x-other": "1"})).json()["headers"] == {"x-user": "ada"}


async def test_a_prefix_is_for_clients_alone() -> None:
    http = HttpConfig(mount_prefix="/api")
    assert (await call(for_clients(http), "/api/x")).json()["path"] == "/x"
    assert (await call(for_clients(http))).status_code == 404
    assert (await call(wrap_for_own_calls(tell, http, SETTINGS))).json()["path"] == "/x"
