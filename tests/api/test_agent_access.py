"""Who may call a deployment's agent with the platform's keys, logins and tokens: real platform, real agent servers.

A refused caller is refused on every route. A change of the setting takes effect while the agent runs.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from portside.agent.served_routes import ROUTES
from portside.control.scope import PlatformAddress
from portside.identity import keys, sessions
from portside.identity.keys import Owner
from portside.identity.types import KeyRequest
from portside.kernel.caller_tokens import CallerClaims, TokenIssuer
from portside.kernel.crypto import SecretBox
from tests.api.control_server import Control, control
from tests.conftest import eventually
from tests.servers import agent_server

pytestmark = pytest.mark.asyncio(loop_scope="module")
ACCEPTS = {"Accept": "application/json, text/event-stream"}
RUN = {"assistant_id": "echo", "input": {"text": "hi"}}
A_THREAD = "01a1fbd3-88f9-7738-8000-00000000acce"
A2A_SEND = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "message/send",
    "params": {"message": {"role": "user", "parts": [{"kind": "text", "text": "hi"}], "messageId": "1"}},
}
# One of each kind of route; `test_every_route_refuses_a_caller` sends nothing that a route would do.
KINDS: list[tuple[str, str, Any]] = [
    ("POST", "/threads", {}),
    ("POST", "/runs/wait", RUN),
    ("POST", "/runs/stream", RUN),
    ("GET", f"/threads/{A_THREAD}/stream", None),
    ("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}),
    ("POST", "/a2a/echo", A2A_SEND),
    ("GET", "/.well-known/agent-card.json?assistant_id=echo", None),
    ("GET", "/warehouse", None),
    ("POST", "/store/items/search", {}),
]


class Site(NamedTuple):
    """A control plane and two agent servers of it: `url` has no authentication of its own, `guarded` has."""

    plane: Control
    deployment: str
    url: str
    guarded: str
    http: httpx2.AsyncClient

    async def allow(self, allow: str, *roles: str, deployment: str | None = None) -> None:
        access = {"allow": allow, "roles": list(roles)}
        changed = await self.plane.patch(deployment or self.deployment, agent_access=access)
        assert changed["agent_access"] == access

    async def key(self, *permissions: str, workspace: str | None = None) -> dict[str, str]:
        """Return the header of a new service key; without permissions it may do everything."""
        actor = self.plane.actor
        request = KeyRequest(permissions=list(permissions) or None)
        made = await keys.create_key(self.plane.db, Owner(actor.organization_id, workspace or actor.workspace), request)
        return {"x-api-key": made.key, "id": str(made.id)}

    async def member(self, role: str) -> "Member":
        """Add a member with a role in the workspace, and return what identifies it."""
        email = f"{uuid4().hex}@example.test"
        workspace = str(self.plane.actor.workspace)
        body = {"email": email, "workspaces": [workspace], "workspace_role": role}
        made = good(await self.plane.client.post("/orgs/current/members", json=body))

        # To sign in with a password takes a slow hash, so the session is made as a sign-in would.
        signed_in = sessions.SignIn(
            kind="bearer", method="password", lifetime=timedelta(hours=1), user_id=UUID(made["user_id"])
        )
        token = (await sessions.begin_session(self.plane.db, self.plane.services.authenticator, signed_in)).token
        login = bearer(token) | {"x-api-key": ""}
        tenant = {"x-tenant-id": workspace}
        key = good(await self.plane.client.post("/api-key/current", json={}, headers=login | tenant))

        return Member(made["user_id"], email, {"x-api-key": key["key"]}, login)

    async def token(self, member: dict[str, str], deployment: str | None = None) -> dict[str, str]:
        """Return the header of a token for one agent that a member gets for a key or login."""
        response = await self.exchange(member, deployment)
        assert response.status_code == 200, response.text
        return bearer(response.json()["access_token"])

    async def exchange(self, member: dict[str, str], deployment: str | None = None) -> httpx2.Response:
        headers = {**member, "x-tenant-id": str(self.plane.actor.workspace)}
        return await self.plane.client.post(f"/v2/deployments/{deployment or self.deployment}/token", headers=headers)

    def forge(self, box: SecretBox | None = None, **claims: Any) -> dict[str, str]:
        """Return the header of a token with other claims, or signed with another key."""
        now = int(time.time())
        user = str(self.plane.actor.user_id)
        right = CallerClaims(**({"aud": self.deployment, "sub": user, "iat": now, "exp": now + 60} | claims))
        return bearer(TokenIssuer((box or self.plane.services.box).keys).sign(right))

    async def call(self, headers: dict[str, str], *route: Any, url: str | None = None) -> httpx2.Response:
        """Call the agent, by default on a route that needs authentication."""
        method, path, body = route or ("POST", "/threads/search", {})
        sent = {**ACCEPTS, **{name: value for name, value in headers.items() if value}}
        return await self.http.request(method, (url or self.url) + path, json=body, headers=sent)

    async def statuses(self, *callers: dict[str, str], url: str | None = None) -> list[int]:
        return [
            response.status_code for response in await asyncio.gather(*(self.call(each, url=url) for each in callers))
        ]


class Member(NamedTuple):
    """A member with a personal key and a login."""

    user_id: str
    email: str
    key: dict[str, str]
    login: dict[str, str]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def good(response: httpx2.Response) -> Any:
    assert response.is_success, response.text
    return response.json()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with control(platform_database) as plane:
        plane.set_services(address=PlatformAddress(str(plane.client.base_url).rstrip("/")))
        made = [await plane.create(name) for name in ("open", "guarded")]
        found = (await plane.listener.desired(await plane.listener.connect()))["deployments"]
        environments = {each["name"]: each["environment"] | {"LANGSMITH_TRACING": "false"} for each in found}
        http = {"app": "../webapp/web.py:app", "enable_custom_route_auth": True}
        environments["open"] |= {"LANGGRAPH_AUTH": "{}", "LANGGRAPH_HTTP": json.dumps(http)}
        own = {"path": "./auth.py:auth", "allow_langsmith_api_keys": True}
        environments["guarded"] |= {"LANGGRAPH_AUTH": json.dumps(own)}

        with ExitStack() as servers:

            def start(name: str) -> str:
                folder = tmp_path_factory.mktemp(name)
                server = agent_server(platform_database, folder, project="guarded", **environments[name])
                return servers.enter_context(server).url

            urls = [await asyncio.to_thread(start, name) for name in ("open", "guarded")]
            async with httpx2.AsyncClient(timeout=300) as http:
                yield Site(plane, made[0]["id"], *urls, http)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def as_at_first(site: Site) -> None:
    await site.allow("workspace")


async def test_any_key_of_the_workspace_calls_by_default(site: Site) -> None:
    assert (await site.plane.create("fresh"))["agent_access"] == {"allow": "workspace", "roles": []}
    viewer = await site.member("Viewer")
    assert await site.statuses(viewer.key, viewer.login, await site.key("nothing:here")) == [200, 200, 200]


async def test_permission_is_required_of_keys_and_members(site: Site) -> None:
    await site.allow("permission")
    viewer = await site.member("Viewer")
    editor = await site.member("Editor")
    allowed = [editor.key, editor.login, await site.key(), await site.key("deployments:call")]
    limited = await site.key("runs:*", "deployments:read", "deployments:update")
    assert await site.statuses(*allowed) == [200] * 4
    assert await site.statuses(viewer.key, viewer.login, limited) == [403] * 3

    refused = await site.call(viewer.key)
    assert refused.json() == {"detail": "Calls of this agent require the permission deployments:call."}


async def test_roles_admit_members_and_their_unlimited_keys(site: Site) -> None:
    await site.allow("roles", "Viewer")
    viewer = await site.member("Viewer")
    editor = await site.member("Editor")
    body = {"permissions": ["runs:read"]}
    tenant = {"x-tenant-id": str(site.plane.actor.workspace)}
    limited = good(await site.plane.client.post("/api-key/current", json=body, headers=viewer.login | tenant))["key"]
    assert await site.statuses(viewer.key, viewer.login) == [200, 200]

    # Neither other roles, whatever they permit, nor keys without a member, nor keys for other purposes.
    others = [editor.key, await site.key(), {"x-api-key": limited}]
    assert await site.statuses(*others) == [403] * 3
    assert "roles may call this agent: Viewer." in (await site.call(editor.key)).json()["detail"]
    await site.allow("roles", "Admin", "Organization Admin")
    assert await site.statuses(await site.token(dict(site.plane.client.headers))) == [200]


async def test_only_the_projects_own_authentication_opens_an_agent(site: Site) -> None:
    guarded = (await site.plane.client.get("/v2/deployments", params={"name": "guarded"})).json()["resources"][0]["id"]
    own = bearer("alice")
    key = await site.key()
    studio = {"x-auth-scheme": "langsmith"}
    assert await site.statuses(own, key, studio | await site.key(), url=site.guarded) == [200] * 3

    for deployment in (site.deployment, guarded):
        await site.allow("none", deployment=deployment)

    admin = {"x-api-key": site.plane.client.headers["x-api-key"]}
    assert await site.statuses(own, await site.key(), studio | await site.key(), url=site.guarded) == [200, 403, 403]
    assert await site.statuses(own, await site.key(), admin) == [401, 403, 403]
    assert (await site.exchange(admin)).status_code == 403


async def test_keys_of_others_are_no_keys(site: Site) -> None:
    other = good(await site.plane.client.post("/workspaces", json={"display_name": f"Other {uuid4()}"}))["id"]
    foreign = await site.key(workspace=other)
    assert await site.statuses(foreign, {"x-api-key": "lsv2_pt_wrong"}, {}) == [401] * 3
    assert (await site.plane.client.get(f"/v2/deployments/{site.deployment}/auth", headers=foreign)).status_code == 404


# Tokens


async def test_token_identifies_its_member(site: Site) -> None:
    editor = await site.member("Editor")
    for given in (editor.key, editor.login):
        token = await site.token(given)
        for headers in (token, {"x-api-key": token["authorization"].removeprefix("Bearer ")}):
            reported = good(await site.call(headers, "POST", "/runs/wait", RUN))["reported"]
            assert (reported["identity"], reported["email"]) == (editor.user_id, editor.email)
            assert "deployments:call" in reported["permissions"]

    by_key = good(await site.call(editor.key, "POST", "/runs/wait", RUN))["reported"]
    assert by_key == reported


async def test_token_is_only_for_members_who_may_call(site: Site) -> None:
    viewer = await site.member("Viewer")
    editor = await site.member("Editor")
    assert (await site.exchange(await site.key())).status_code == 403
    assert (await site.exchange({"x-api-key": ""})).status_code == 401
    assert (await site.exchange(editor.key, str(uuid4()))).status_code == 404
    await site.allow("permission")
    assert [(await site.exchange(each.login)).status_code for each in (viewer, editor)] == [403, 200]

    # The token is nothing to the platform: neither a key nor something to exchange.
    token = await site.token(editor.key)
    assert (await site.exchange({"x-api-key": "", **token})).status_code == 401
    assert (await site.plane.client.get("/auth", headers={"x-api-key": "", **token})).status_code == 401


async def test_forged_tokens_are_refused(site: Site) -> None:
    other = (await site.plane.create(f"other-{uuid4().hex[:8]}"))["id"]
    now = int(time.time())
    valid = await site.token((await site.member("Editor")).key)
    header, claims, signature = valid["authorization"].removeprefix("Bearer ").split(".")
    longer = TokenIssuer(site.plane.services.box.keys).sign
    unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiY2FsbGVyK2p3dCIsImtpZCI6IngifQ"

    forged = [
        await site.token((await site.member("Editor")).key, other),
        site.forge(aud=other),
        site.forge(iat=now - 61, exp=now - 1),
        site.forge(exp=now + 3600),
        site.forge(iat=now + 3600, exp=now + 3660),
        site.forge(SecretBox(b"x" * 32)),
        bearer(f"{header}.{claims}.{signature[:-4]}AAAA"),
        bearer(f"{header}.{claims}."),
        bearer(
            f"{header}.{longer(CallerClaims(aud=site.deployment, sub='x', iat=now, exp=now)).split('.')[1]}.{signature}"
        ),
        bearer(f"{unsigned}.{claims}."),
        bearer(f"{header}..{signature}"),
        bearer(".." + "x" * 9000),
    ]

    assert await site.statuses(valid, site.forge(), *forged) == [200, 200, *[401] * len(forged)]


async def test_agent_follows_a_new_master_key(site: Site) -> None:
    old = site.plane.services.box
    assert await site.statuses(site.forge()) == [200]

    async def is_followed() -> bool:
        return await site.statuses(site.forge()) == [200]

    for box, other in ((SecretBox(b"n" * 32), old), (old, SecretBox(b"n" * 32))):
        site.plane.set_services(box=box)
        await eventually(is_followed)
        assert await site.statuses(site.forge(other)) == [401]


async def test_callers_lose_access_while_the_agent_runs(site: Site) -> None:
    leaving = await site.member("Editor")
    demoted = await site.member("Editor")
    staying = await site.member("Editor")
    revoked = await site.key()
    viewer = await site.member("Viewer")
    known = [leaving.key, leaving.login, revoked, viewer.key, staying.key]
    assert await site.statuses(*known) == [200] * 5

    assert (await site.exchange(demoted.login)).status_code == 200
    await site.plane.client.delete(f"/orgs/current/members/{leaving.user_id}")
    await site.plane.client.delete(f"/api-key/{revoked['id']}")
    role = {"role_id": "Viewer"}

    good(await site.plane.client.patch(f"/workspaces/current/members/{demoted.user_id}", json=role))
    await site.allow("permission")
    assert [(await site.exchange(each.login)).status_code for each in (leaving, demoted)] == [401, 403]

    async def are_refused() -> bool:
        # It takes seconds, in which each look is a call by all of them.
        await asyncio.sleep(0.3)
        return await site.statuses(*known) == [401, 401, 401, 403, 200]

    await eventually(are_refused)


# Every route


@pytest.fixture(params=["refused key", "refused token", "nobody"])
def intruder(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


async def build_headers(site: Site, intruder: str) -> tuple[dict[str, str], int]:
    """Return what an intruder sends, and the status of every response."""
    if intruder == "refused key":
        await site.allow("permission")
        return (await site.member("Viewer")).key, 403

    return (site.forge(aud=str(uuid4())), 401) if intruder == "refused token" else ({}, 401)


async def test_every_route_refuses_a_caller(site: Site, intruder: str) -> None:
    headers, status = await build_headers(site, intruder)
    routes = [route for route in ROUTES if not route.public and route.tag != "debugging"]
    paths = [
        (route.method, route.path.format(**dict.fromkeys(route.path_types, A_THREAD)), None)
        for route in routes
        if route.method != "WEBSOCKET"
    ]

    assert len(paths) > 60
    responses = [(route, (await site.call(headers, *route)).status_code) for route in [*paths, *KINDS]]
    assert [response for response in responses if response[1] != status] == []

    sockets = [f"/threads/{A_THREAD}/stream/events", "/talk"]
    for path in sockets:
        with pytest.raises(InvalidStatus) as refused:
            await connect(site.url.replace("http", "ws") + path, additional_headers=headers)
        assert refused.value.response.status_code in {status, 403}, path

    # The application of the first agent replaces /info by a route of its own.
    open_to_all = [await site.call(headers, "GET", path, None, url=site.guarded) for path in ("/ok", "/info")]
    assert [response.status_code for response in open_to_all] == [200, 200]


async def test_every_kind_of_route_takes_a_token(site: Site) -> None:
    await site.allow("roles", "Editor")
    editor = await site.member("Editor")
    thread = good(await site.call(await site.token(editor.key), "POST", "/threads", {}))["thread_id"]

    for method, path, body in KINDS:
        if path.endswith("/stream") and method == "GET":
            continue

        response = await site.call(await site.token(editor.key), method, path, body)
        assert response.status_code == 200, (path, response.text)

    url = f"{site.url.replace('http', 'ws')}/threads/{thread}/stream/events"
    async with connect(url, additional_headers=await site.token(editor.key)) as socket:
        await socket.send(json.dumps({"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}))
        assert json.loads(await socket.recv())["type"] == "success"


# The setting


async def test_setting_is_checked_and_changes_without_a_revision(site: Site) -> None:
    made = await site.plane.create(
        f"set-{uuid4().hex[:8]}", agent_access={"allow": "roles", "roles": ["WORKSPACE_ADMIN"]}
    )
    assert made["agent_access"] == {"allow": "roles", "roles": ["Admin"]}
    latest = made["latest_revision_id"]
    changed = await site.plane.patch(made["id"], display_name="Kept")
    assert changed["agent_access"] == made["agent_access"]

    changed = await site.plane.patch(made["id"], agent_access={"allow": "none"})
    assert (changed["agent_access"], changed["latest_revision_id"]) == ({"allow": "none", "roles": []}, latest)
    wrong = [
        {"allow": "roles"},
        {"allow": "roles", "roles": ["Nobody"]},
        {"allow": "none", "roles": ["Admin"]},
        {"allow": "everybody"},
    ]

    for access in wrong:
        response = await site.plane.client.patch(f"/v2/deployments/{made['id']}", json={"agent_access": access})
        assert response.status_code == 422, response.text
        assert response.json()["detail"][0]["loc"][:2] == ["body", "agent_access"]

    reader = await site.key("deployments:read")
    body = {"agent_access": {"allow": "workspace"}}
    refused = await site.plane.client.patch(f"/v2/deployments/{made['id']}", json=body, headers=reader)
    assert refused.status_code == 403
