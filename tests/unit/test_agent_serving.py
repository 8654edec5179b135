import json

import pytest

from portside.agent.app import ROUTES
from portside.agent.config import HttpConfig
from portside.agent.http.serving import OPTIONAL, describe, served_routes
from portside.kernel.http.reference import reference_page


def paths(http: HttpConfig, *, has_diagnostics: bool = False) -> set[str]:
    return {route.path for route in served_routes(ROUTES, http, has_diagnostics=has_diagnostics)}


def test_every_group_is_known() -> None:
    assert set(OPTIONAL) <= {route.tag for route in ROUTES}


def test_by_default_there_is_all_but_the_look_inside() -> None:
    assert {route.path for route in ROUTES} - paths(HttpConfig()) == {"/heapdump", "/profile"}
    assert paths(HttpConfig(), has_diagnostics=True) == {route.path for route in ROUTES}


@pytest.mark.parametrize(
    ("flag", "gone", "left"),
    [
        ("disable_assistants", "/assistants/search", "/threads"),
        ("disable_threads", "/threads/{thread_id}/state", "/threads/{thread_id}/runs"),
        ("disable_threads", "/threads", "/runs/wait"),
        ("disable_runs", "/threads/{thread_id}/runs", "/threads"),
        ("disable_store", "/store/items", "/threads"),
        ("disable_mcp", "/mcp", "/threads"),
        ("disable_a2a", "/a2a/{assistant_id}", "/threads"),
        ("disable_a2a", "/.well-known/agent-card.json", "/threads"),
        ("disable_meta", "/info", "/ok"),
    ],
)
def test_groups_can_be_left_out(flag: str, gone: str, left: str) -> None:
    assert {gone, left} <= paths(HttpConfig())
    assert gone not in paths(HttpConfig(**{flag: True}))
    assert left in paths(HttpConfig(**{flag: True}))


def test_without_the_system_routes_the_server_says_no_more_than_that_it_is_there() -> None:
    system = [route for route in served_routes(ROUTES, HttpConfig(disable_meta=True), has_diagnostics=False)
              if route.tag == "system"]  # fmt: skip
    assert [(route.path, route.handler.__name__) for route in system] == [("/ok", "say_ok")]


def test_what_answers_without_a_key_is_what_the_contract_says() -> None:
    public = {route.path for route in ROUTES if route.public}
    assert public == {"/ok", "/", "/info", "/docs", "/openapi.json", "/metrics"}


def test_requests_name_the_graphs_there_are_and_answers_any() -> None:
    schemas = json.loads(describe(ROUTES, ["one", "two"]).openapi)["components"]["schemas"]
    assert schemas["AssistantCreate"]["properties"]["graph_id"]["enum"] == ["one", "two"]
    assert "enum" not in schemas["Assistant"]["properties"]["graph_id"]


def test_the_page_asks_nobody_else() -> None:
    page, policy = reference_page()
    assert b"//" not in page.replace(b"http://www.w3.org", b"").replace(b"<!--", b"")
    assert b" style=" not in page
    assert b"innerHTML" not in page
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
