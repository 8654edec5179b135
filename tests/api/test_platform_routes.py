"""Every route of the platform.

The application is called as a server calls it, without a connection: a client of HTTP and its server would take four
times as long as what answers. A route that is not on the checked-in list of public ones answers 401 without a key.
Invalid JSON values are refused with the name of their field, and every error has one shape: `{"detail": …}`.
"""

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote, urlencode
from uuid import UUID

import httpx2
import msgspec
import pytest
import pytest_asyncio

from portside.console import site
from portside.identity.first_start import get_first_owner
from portside.identity.keys import create_key
from portside.identity.types import KeyRequest
from portside.kernel.db import Database
from portside.kernel.http.routes import Route
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.modules import PREFIXES, ROUTES
from portside.platform.settings import PlatformSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")
PUBLIC = Path(__file__).parents[1] / "public_routes.txt"
PERMISSIONS = Path(__file__).parents[1] / "permissions_of_routes.txt"
ON_FULL_DISK = Path(__file__).parents[1] / "routes_on_a_full_disk.txt"
SOME_ID = "0190a0c0-0000-7000-8000-000000000001"
# Routes that any key may use, and that therefore have to say nothing but what concerns the key itself.
FOR_ANY_KEY = {
    "GET /auth",
    "GET /auth/public",
    "GET /workspaces",
    "POST /logout",
    "PUT /users/me/password",
    "GET /v2/deployments/{deployment_id}/auth",
    "POST /v2/deployments/{deployment_id}/token",
}
# Public routes whose callers show something else than a key: they are refused like those without one.
SIGNED = {"POST /v1/webhooks/{integration_id}", "PUT /v2/uploads/{archive_id}"}
# The status of public routes for a request that names nothing that exists.
ABOUT_NOTHING = {
    "POST /login": 422,
    # No provider is configured.
    "GET /login/oidc": 403,
    "GET /login/oidc/callback": 403,
    # The address was never made.
    "GET /login/link": 401,
    # Only browsers are sent to the console.
    "GET /": 404,
    "GET /console": 307,
    "GET /o/{workspace_id}/{path...}": 307,
    "GET /prompts/{prompt_name}/{commit}": 307,
    "GET /context/{prompt_name}/{commit}": 307,
    "GET /console/{path...}": 200 if site.is_built() else 503,
    "GET /help": 307,
    "GET /help/{path...}": 404,
    # Forms must come from a page of the platform.
    "POST /login/key": 403,
    "POST /login/out": 403,
    "POST /login/password": 403,
    "POST /device": 403,
    "POST /device/decision": 403,
    "POST /oauth/authorize": 403,
    # Nobody is signed in, and the terminal says nothing.
    "GET /device": 303,
    "GET /oauth/authorize": 422,
    "POST /oauth/device": 422,
    "POST /oauth/token": 422,
    "GET /feedback/tokens/{token}": 404,
    "POST /feedback/tokens/{token}": 404,
    "GET /internal/front/names": 422,
    "GET /public/download": 422,
    "GET /public/{share_token}/feedbacks": 404,
    "GET /public/download/examples": 422,
    "GET /public/{share_token}/datasets": 404,
    "GET /public/{share_token}/datasets/sessions": 404,
    "GET /public/{share_token}/examples": 404,
    "GET /public/{share_token}/run": 404,
    "POST /public/{share_token}/runs/query": 404,
    "POST /v2/public/{share_token}/runs/query": 404,
    "GET /public/{share_token}/run/{run_id}": 404,
    "GET /public/{share_token}/run/{run_id}/values": 404,
    "GET /public/{share_token}/run/{run_id}/values/{name}": 404,
    "GET /public/{share_token}/r": 307,
}
# These answer 501 to any request: the platform has no such feature.
NOT_BUILT = {"POST /generate", "POST /runs/rules/trigger", "POST /runs/rules/{rule_id}/trigger"}
MAX_BODY = 2000


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


def address(route: Route, value: str = SOME_ID) -> str:
    return re.sub(r"{\w+}", value, route.path)


class Platform:
    """A platform, and keys with every permission and with none that means anything."""

    def __init__(self, application: Any, key: str, powerless: str) -> None:
        self._application = application
        self.key = key
        self.powerless = powerless

    async def send(self, route: Route, path: str | None = None, **request: Any) -> httpx2.Response:
        return await self.call(route.method, path or address(route), **request)

    async def send_as(self, key: str | bytes, route: Route, **request: Any) -> httpx2.Response:
        return await self.send(route, headers={"x-api-key": key}, **request)

    async def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        params: Mapping[str, str] | None = None,
        content: bytes = b"",
        **body: Any,
    ) -> httpx2.Response:
        """Send a request; `json` is its body."""
        if body:
            content = json.dumps(body["json"]).encode()

        given = {"host": "platform", "content-length": str(len(content)), **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(params or {}).encode(),
            "root_path": "",
            "headers": [
                (name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in given.items()
            ],
            "client": ("127.0.0.1", 40000),
            "server": ("127.0.0.1", 80),
        }

        received = iter([{"type": "http.request", "body": content, "more_body": False}])
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return next(received, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._application(scope, receive, send)
        [start] = [message for message in sent if message["type"] == "http.response.start"]
        answer = b"".join(message.get("body", b"") for message in sent)
        return httpx2.Response(start["status"], headers=start["headers"], content=answer)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database, tmp_path_factory) -> AsyncIterator[Platform]:
    settings = PlatformSettings(http_max_request_body_bytes=MAX_BODY, rate_limits=False)
    async with open_platform(Home(tmp_path_factory.mktemp("home")), settings, platform_database) as app:
        assert app.new_key is not None
        yield Platform(app.asgi, app.new_key, await powerless_key(platform_database))
        app.changes.close()


async def powerless_key(url: str) -> str:
    db = await Database.connect(url)
    try:
        return (await create_key(db, await get_first_owner(db), KeyRequest(permissions=["nothing:at-all"]))).key
    finally:
        await db.close()


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def check_shape(response: httpx2.Response, where: str) -> None:
    """The one form that every error has, except on pages for people."""
    if response.headers["content-type"].startswith("text/html"):
        assert where.split()[1].startswith("/login"), where
        return

    assert response.headers["content-type"] == "application/json", where
    assert response.headers["x-request-id"], where
    body = response.json()

    # Some clients look for the word or the text of an error under another name.
    assert set(body) - {"error"} == {"detail"}, where

    if response.status_code != 422:
        assert isinstance(body["detail"], str), where
        assert body["detail"], where
        return

    assert body["detail"], where

    for problem in body["detail"]:
        assert set(problem) == {"loc", "msg", "type"}, where
        assert problem["loc"][0] in {"body", "query", "path", "header"}, where


async def test_the_public_routes_are_those_that_were_agreed_on() -> None:
    assert PUBLIC.read_text().splitlines() == sorted(label(route) for route in ROUTES if route.public)


async def test_the_routes_for_any_key_are_those_that_were_agreed_on() -> None:
    assert {label(route) for route in ROUTES if not route.public and not route.permission} == FOR_ANY_KEY


async def test_each_route_needs_the_permission_that_was_agreed_on() -> None:
    """Whoever makes a route easier to reach writes that into the list too, where it shows in a review."""
    found = sorted(f"{label(route)} {route.permission}" for route in ROUTES if route.permission)
    assert PERMISSIONS.read_text().splitlines() == found


async def test_routes_that_a_full_disk_does_not_refuse_are_those_that_were_agreed_on() -> None:
    """Those that only read, make room or store next to nothing; what reads by its method or deletes is not listed."""
    found = sorted(
        label(route) for route in ROUTES if not route.stores_data and route.method in {"POST", "PUT", "PATCH"}
    )
    assert ON_FULL_DISK.read_text().splitlines() == found
    assert not [label(route) for route in ROUTES if route.stores_data and route.method in {"GET", "DELETE"}]


async def test_only_public_routes_answer_without_a_key(platform) -> None:
    agreed = PUBLIC.read_text().splitlines()
    for number, route in enumerate(ROUTES):
        # Every route without a prefix and with one of them.
        for prefix in ("", PREFIXES[number % len(PREFIXES)]):
            if prefix == "/api" and route.path.startswith("/v1/"):
                continue  # `/api` before `/v1/…` reads as the prefix `/api/v1`

            response = await platform.send(route, prefix + address(route))
            if label(route) in agreed and label(route) not in SIGNED:
                assert response.status_code == ABOUT_NOTHING.get(label(route), 200), label(route)
                continue

            assert response.status_code == 401, prefix + label(route)
            check_shape(response, label(route))


WRONG_KEYS = ["", "wrong", "lsv2_pt_" + "0" * 32 + "_0123456789", "x" * 5000, "é".encode()]


async def check_keys(platform: Platform, keys: Iterator[Any]) -> None:
    """Call each route with the next wrong key."""
    for route in ROUTES:
        if not route.public:
            assert (await platform.send_as(next(keys), route)).status_code == 401, label(route)


@pytest.mark.parametrize("key", WRONG_KEYS)
async def test_wrong_key_is_refused(platform, key) -> None:
    await check_keys(platform, itertools.repeat(key))


async def test_wrong_keys_in_turns_are_refused(platform) -> None:
    """As the three tests of bodies, query values and fields in turns: each meets many routes, for the cost of one."""
    await check_keys(platform, itertools.cycle(WRONG_KEYS))


async def test_key_counts_only_in_its_header(platform) -> None:
    (route,) = [route for route in ROUTES if label(route) == "GET /auth"]
    places = [{"params": {"api_key": platform.key}}, {"headers": {"cookie": f"x-api-key={platform.key}"}}]
    for place in places:
        assert (await platform.send(route, **place)).status_code == 401


async def test_a_key_without_the_permission_is_forbidden_before_anything_is_read(platform) -> None:
    for route in ROUTES:
        if route.permission:
            response = await platform.send_as(platform.powerless, route, content=b"no json")
            assert response.status_code == 403, label(route)
            assert route.permission in response.json()["detail"]
            check_shape(response, label(route))


async def test_invalid_ids_are_422(platform) -> None:
    for route in ROUTES:
        if UUID in route.path_types.values():
            odd = await platform.send_as(platform.key, route, path=address(route, "not-an-id"))
            assert odd.status_code == 422, label(route)
            assert odd.json()["detail"][0]["loc"][0] == "path", label(route)
            check_shape(odd, label(route))


GARBAGE: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b"{}",
    b"\xff\xfe",
    b'{"a":' * 300 + b"1" + b"}" * 300,
    b"[" * 1000,
]


async def check_bodies(platform: Platform, bodies: Iterator[bytes]) -> None:
    """Call each route with the next body."""
    for route in ROUTES:
        headers = {"x-api-key": platform.key, "content-type": "application/json"}
        response = await platform.send(route, content=next(bodies), headers=headers)
        assert response.status_code < 500 or label(route) in NOT_BUILT, f"{label(route)} {response.text}"

        if response.status_code >= 400:
            check_shape(response, label(route))


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: repr(body[:12]))
async def test_no_body_breaks_a_route(platform, body: bytes) -> None:
    await check_bodies(platform, itertools.repeat(body))


async def test_bodies_in_turns_break_no_route(platform) -> None:
    await check_bodies(platform, itertools.cycle(GARBAGE))


QUERY_VALUES = ["", "x", "-1", "0", "1e9", str(2**31), str(2**70), "null", "a\0b", "\ufffd", "é" * 1000]


async def check_query_values(platform: Platform, values: Iterator[str]) -> None:
    """Call each route once for each field of its query, with the next value."""
    for route in ROUTES:
        if route.query_type is None:
            continue

        for field in msgspec.structs.fields(route.query_type):
            value = next(values)
            response = await platform.send_as(platform.key, route, params={field.encode_name: value})
            where = f"{label(route)} {field.encode_name}={value!r} {response.text}"
            assert response.status_code < 500, where

            if response.status_code >= 400:
                check_shape(response, where)


@pytest.mark.parametrize("value", QUERY_VALUES)
async def test_no_query_value_breaks_a_route(platform, value: str) -> None:
    await check_query_values(platform, itertools.repeat(value))


async def test_query_values_in_turns_break_no_route(platform) -> None:
    await check_query_values(platform, itertools.cycle(QUERY_VALUES))


FIELD_VALUES = [None, 0, -1, 2**31, 2**70, 1.5, True, "", "a\0b", "x" * 1500, [], {}, [None], [{}]]


async def check_field_values(platform: Platform, values: Iterator[Any]) -> None:
    """Call each route once for each field of its body, beside whatever else the body lacks, with the next value."""
    for route in ROUTES:
        kinds = [kind for kind in (route.body_type, *get_args(route.body_type)) if is_struct(kind)]
        for field in (field for kind in kinds for field in msgspec.structs.fields(kind)):
            value = next(values)
            response = await platform.send_as(platform.key, route, json={field.encode_name: value})
            where = f"{label(route)} {field.encode_name}={value!r} {response.text}"
            assert response.status_code < 500, where

            if response.status_code >= 400:
                check_shape(response, where)


@pytest.mark.parametrize("value", FIELD_VALUES)
async def test_no_value_of_a_field_breaks_a_route(platform, value: Any) -> None:
    await check_field_values(platform, itertools.repeat(value))


async def test_field_values_in_turns_break_no_route(platform) -> None:
    await check_field_values(platform, itertools.cycle(FIELD_VALUES))


async def test_a_body_over_the_limit_is_413_on_every_route_that_reads_one(platform) -> None:
    for route in ROUTES:
        if route.method in {"POST", "PATCH", "PUT"} and route.max_body_bytes is None:
            response = await platform.send_as(platform.key, route, content=b"x" * (MAX_BODY + 1))
            assert response.status_code == 413, label(route)
            check_shape(response, label(route))


async def test_routes_without_a_key_read_small_bodies_alone(platform) -> None:
    for route in ROUTES:
        if not route.public or route.method not in {"POST", "PATCH", "PUT"} or label(route) in SIGNED:
            continue

        limit = route.max_body_bytes
        assert limit is not None, label(route)
        assert limit <= 256 * 1024, label(route)
        for prefix in ("", "/api/v1"):
            response = await platform.send(route, prefix + address(route), content=b"x" * (limit + 1))
            assert response.status_code == 413, prefix + label(route)
            check_shape(response, label(route))


async def test_paths_and_methods_that_do_not_exist(platform) -> None:
    known = {path: {route.method for route in ROUTES if route.path == path} for path in {r.path for r in ROUTES}}
    for path, methods in known.items():
        method = next(m for m in ("PUT", "PATCH", "DELETE", "POST") if m not in methods)
        response = await platform.call(method, re.sub(r"{\w+}", SOME_ID, path))
        assert response.status_code == 405, path
        assert methods <= set(response.headers["allow"].split(", ")), path
        check_shape(response, path)

        if path.startswith("/console"):
            continue  # every path below it is a page

        unknown = await platform.call("GET", f"{re.sub(r'{.*', '', path)}/no/such/path/at/all")
        assert unknown.status_code == 404, path
        check_shape(unknown, path)
