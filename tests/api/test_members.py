"""Organizations, workspaces, members, roles, logins and every kind of key, over HTTP."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from portside.identity import passwords
from tests.api.hosted import PACKAGES, Hosted, open_hosted
from tests.conftest import eventually
from tests.databases import MigratedDatabases, with_name

PASSWORD = "correct horse battery"
ROUTES_OF_WORKSPACES = ("/api-key", "/sessions", "/workspaces/current/members")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def server(own_server: Hosted) -> Hosted:
    return own_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Hosted]:
    """For tests that change nothing, or look only at what they made."""
    name = migrated.copy(PACKAGES)
    async with open_hosted(with_name(postgres, name)) as running:
        yield running

    await migrated.drop(name)


async def send(server: Hosted, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Send a request as the first admin, unless headers say otherwise."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if "authorization" in named:
        named["x-api-key"] = ""

    return await server.client.request(method, path, json=body, headers=named)


async def create(server: Hosted, path: str, body: Any, **headers: str) -> Any:
    response = await send(server, "POST", path, body, **headers)
    assert response.status_code == 200, response.text
    return response.json()


async def new_member(server: Hosted, email: str, **fields: Any) -> dict[str, Any]:
    return await create(server, "/orgs/current/members", {"email": email, "password": PASSWORD, **fields})


async def log_in(server: Hosted, email: str, tenant: str | None = None) -> dict[str, str]:
    token = (await create(server, "/login", {"email": email, "password": PASSWORD}))["access_token"]
    return {"authorization": f"Bearer {token}"} | ({"x_tenant_id": tenant} if tenant else {})


async def statuses(server: Hosted, paths: tuple[str, ...], **headers: str) -> list[int]:
    return [(await send(server, "GET", path, **headers)).status_code for path in paths]


async def test_a_workspace_is_made_listed_and_renamed(server: Hosted):
    workspace = await create(server, "/workspaces", {"display_name": "Team B!"})
    assert (workspace["tenant_handle"], workspace["role_name"]) == ("team-b", "Admin")
    listed = (await send(server, "GET", "/workspaces")).json()
    assert [found["display_name"] for found in listed] == ["Default", "Team B!"]
    response = await send(server, "PATCH", f"/workspaces/{workspace['id']}", {"display_name": "Team C"})
    assert (response.json()["display_name"], response.json()["tenant_handle"]) == ("Team C", "team-b")
    assert (await send(server, "POST", "/workspaces", {"display_name": "Team b"})).status_code == 409

    assert (await send(server, "POST", "/workspaces", {"display_name": "!"})).status_code == 422
    assert (await send(server, "PATCH", f"/workspaces/{uuid4()}", {"display_name": "x"})).status_code == 404


async def test_a_personal_key_has_its_users_workspaces(server: Hosted):
    other = (await create(server, "/workspaces", {"display_name": "Other"}))["id"]
    found = (await send(server, "GET", "/auth", x_tenant_id=other)).json()
    assert (found["tenant_id"], found["workspace_name"]) == (other, "Other")
    own = str(server.actor.workspace_id)

    await new_member(server, "b@example.com", workspaces=[own])
    login = await log_in(server, "b@example.com", own)
    key = (await create(server, "/api-key/current", {"description": "mine"}, **login))["key"]
    assert key.startswith("lsv2_pt_")
    assert (await send(server, "GET", "/auth", x_api_key=key)).json()["tenant_id"] == own
    assert (await send(server, "GET", "/auth", x_api_key=key, x_tenant_id=other)).status_code == 403
    assert [k["description"] for k in (await send(server, "GET", "/api-key/current", x_api_key=key)).json()] == ["mine"]


async def test_a_key_of_a_user_outlives_the_workspace_that_it_was_made_in(server: Hosted):
    own = str(server.actor.workspace_id)
    other = (await create(server, "/workspaces", {"display_name": "Other"}))["id"]
    await new_member(server, "b@example.com", workspaces=[own, other])
    key = (await create(server, "/api-key/current", {}, **await log_in(server, "b@example.com", other)))["key"]
    assert (await send(server, "GET", "/auth", x_api_key=key)).json()["tenant_id"] == other

    assert (await send(server, "DELETE", f"/workspaces/{other}")).status_code == 204
    assert (await send(server, "GET", "/sessions", x_api_key=key, x_tenant_id=other)).status_code == 403
    assert (await send(server, "GET", "/sessions", x_api_key=key, x_tenant_id=own)).status_code == 200


async def test_roles_permit_what_they_say(server: Hosted):
    own = str(server.actor.workspace_id)
    for role, reads, makes, manages in (("Viewer", 200, 403, 403), ("Editor", 200, 202, 403), ("Admin", 200, 202, 200)):
        email = f"{role}@example.com"
        await new_member(server, email, workspaces=[own], workspace_role=role)
        login = await log_in(server, email, own)
        assert (await send(server, "GET", "/sessions", **login)).status_code == reads
        assert (await send(server, "POST", "/runs", {"name": "r"}, **login)).status_code == makes
        assert (await send(server, "POST", "/api-key", {"permissions": ["runs:read"]}, **login)).status_code == manages
        assert (await send(server, "GET", "/orgs/current/members", **login)).status_code == 200

        assert (await send(server, "POST", "/workspaces", {"display_name": "x"}, **login)).status_code == 403


async def test_a_role_change_takes_effect_at_once(server: Hosted):
    own = str(server.actor.workspace_id)
    user = (await new_member(server, "b@example.com", workspaces=[own], workspace_role="Editor"))["id"]
    login = await log_in(server, "b@example.com", own)
    assert (await send(server, "POST", "/runs", {"name": "r"}, **login)).status_code == 202
    response = await send(server, "PATCH", f"/workspaces/current/members/{user}", {"role_id": "WORKSPACE_VIEWER"})
    assert response.json()["role_name"] == "Viewer"
    assert (await send(server, "POST", "/runs", {"name": "r"}, **login)).status_code == 403

    assert (await send(server, "DELETE", f"/workspaces/current/members/{user}")).status_code == 204
    assert (await send(server, "GET", "/sessions", **login)).status_code == 403
    assert (await send(server, "DELETE", f"/workspaces/current/members/{user}")).status_code == 404


async def test_role_in_one_workspace_is_none_in_another(server: Hosted):
    own = str(server.actor.workspace_id)
    other = (await create(server, "/workspaces", {"display_name": "Other"}))["id"]
    path = "/workspaces/current/members"
    ann = (await new_member(server, "ann@example.com", workspaces=[own, other], workspace_role="Editor"))["id"]
    bob = (await new_member(server, "bob@example.com", workspaces=[own]))["id"]

    async def read_roles(workspace: str) -> dict[str, str]:
        listed = (await send(server, "GET", path, x_tenant_id=workspace)).json()
        return {found["email"]: found["role_name"] for found in listed if found["email"] != "admin@localhost"}

    assert await read_roles(own) == {"ann@example.com": "Editor", "bob@example.com": "Editor"}
    assert await read_roles(other) == {"ann@example.com": "Editor"}
    viewer = {"role_id": "Viewer"}
    assert (await send(server, "PATCH", f"{path}/{ann}", viewer, x_tenant_id=other)).status_code == 200
    assert (await read_roles(own))["ann@example.com"] == "Editor"
    for method, body in (("PATCH", viewer), ("DELETE", None)):
        assert (await send(server, method, f"{path}/{bob}", body, x_tenant_id=other)).status_code == 404

    assert (await send(server, "DELETE", f"{path}/{ann}", x_tenant_id=other)).status_code == 204
    assert await read_roles(other) == {}
    assert await read_roles(own) == {"ann@example.com": "Editor", "bob@example.com": "Editor"}


async def test_a_removed_member_loses_keys_and_logins_at_once(server: Hosted):
    own = str(server.actor.workspace_id)
    user = (await new_member(server, "b@example.com", workspaces=[own]))["id"]
    login = await log_in(server, "b@example.com", own)
    key = (await create(server, "/api-key/current", {}, **login))["key"]
    assert (await send(server, "GET", "/sessions", x_api_key=key)).status_code == 200
    assert (await send(server, "DELETE", f"/orgs/current/members/{user}")).status_code == 204
    assert (await send(server, "GET", "/sessions", x_api_key=key)).status_code == 401

    assert (await send(server, "GET", "/sessions", **login)).status_code == 401
    body = {"email": "b@example.com", "password": PASSWORD}
    assert (await send(server, "POST", "/login", body)).status_code == 401
    await new_member(server, "b@example.com")


async def test_the_last_admin_stays_and_roles_cannot_be_escalated(server: Hosted):
    admin = str(server.actor.user_id)
    assert (await send(server, "DELETE", f"/orgs/current/members/{admin}")).status_code == 409
    viewer = {"role_id": "Organization Viewer"}
    assert (await send(server, "PATCH", f"/orgs/current/members/{admin}", viewer)).status_code == 409
    await new_member(server, "op@example.com", role_id="Organization Operator")

    operator = await log_in(server, "op@example.com")
    body = {"email": "x@example.com", "role_id": "Organization Admin"}
    refused = await send(server, "POST", "/orgs/current/members", body, **operator)
    assert (refused.status_code, "Organization Admin" in refused.text) == (403, True)
    assert (await send(server, "DELETE", f"/orgs/current/members/{admin}", **operator)).status_code == 403
    itself = (await send(server, "GET", "/auth", **operator)).json()["user_id"]
    higher = await send(server, "PATCH", f"/orgs/current/members/{itself}", {"role_id": body["role_id"]}, **operator)
    assert (higher.status_code, "Organization Admin" in higher.text) == (403, True)
    await new_member(server, "second@example.com", role_id="ORGANIZATION_ADMIN")
    assert (await send(server, "PATCH", f"/orgs/current/members/{admin}", viewer)).status_code == 200

    assert (await send(server, "POST", "/workspaces", {"display_name": "x"})).status_code == 403


async def test_a_key_of_the_organization_needs_a_workspace_where_one_is_needed(server: Hosted):
    other = (await create(server, "/workspaces", {"display_name": "Other"}))["id"]
    key = (await create(server, "/orgs/current/service-keys", {"description": "all"}))["key"]
    assert (await send(server, "GET", "/orgs/current/members", x_api_key=key)).status_code == 200

    for path in ROUTES_OF_WORKSPACES:
        refused = await send(server, "GET", path, x_api_key=key)
        assert refused.status_code == 403
        assert refused.json()["error"] == "org_scoped_key_requires_workspace"
        assert "requires workspace specification" in refused.json()["detail"]
        assert (await send(server, "GET", path, x_api_key=key, x_tenant_id=other)).status_code == 200

    assert len((await send(server, "GET", "/workspaces", x_api_key=key)).json()) == 2
    body = {"workspaces": [other], "role_id": "Viewer"}
    limited = await create(server, "/orgs/current/service-keys", body)
    assert limited["workspace_names"] == ["Other"]
    own = str(server.actor.workspace_id)
    headers = {"x_api_key": limited["key"]}
    assert await statuses(server, ROUTES_OF_WORKSPACES, **headers, x_tenant_id=other) == [200] * 3

    assert await statuses(server, ROUTES_OF_WORKSPACES, **headers, x_tenant_id=own) == [403] * 3
    assert [w["id"] for w in (await send(server, "GET", "/workspaces", **headers)).json()] == [other]


async def test_keys_of_others_are_not_listed_and_cannot_be_revoked(server: Hosted):
    own = str(server.actor.workspace_id)
    for email in ("a@example.com", "b@example.com"):
        await new_member(server, email, workspaces=[own])

    ann, bob = [await log_in(server, email, own) for email in ("a@example.com", "b@example.com")]
    key = await create(server, "/api-key/current", {}, **ann)
    personal = ("/api-key/current", "/orgs/current/personal-access-tokens")

    # Neither another member, nor an admin with the routes for service keys.
    for headers, paths in ((bob, personal), ({}, (*personal, "/api-key", "/orgs/current/service-keys"))):
        for path in paths:
            assert key["id"] not in {listed["id"] for listed in (await send(server, "GET", path, **headers)).json()}
            assert (await send(server, "DELETE", f"{path}/{key['id']}", **headers)).status_code == 404

    # Nor with the routes of another workspace.
    there = {"x_tenant_id": (await create(server, "/workspaces", {"display_name": "Other"}))["id"]}
    service = await create(server, "/api-key", {})
    assert (await send(server, "GET", "/api-key", **there)).json() == []
    assert (await send(server, "DELETE", f"/api-key/{service['id']}", **there)).status_code == 404

    for each in (key, service):
        assert (await send(server, "GET", "/auth", x_api_key=each["key"])).status_code == 200

    assert (await send(server, "DELETE", f"/api-key/current/{key['id']}", **ann)).status_code == 204


async def test_a_read_only_key_reads(server: Hosted):
    key = (await create(server, "/api-key", {"read_only": True}))["key"]
    assert (await send(server, "GET", "/sessions", x_api_key=key)).status_code == 200
    assert (await send(server, "POST", "/runs", {"name": "r"}, x_api_key=key)).status_code == 403
    assert (await send(server, "POST", "/api-key", {}, x_api_key=key)).status_code == 403

    # Whatever else it asks for.
    for asked in ({"permissions": ["runs:read", "runs:create", "deployments:*"]}, {"role_id": "Editor"}):
        granted = (await create(server, "/api-key", {"read_only": True, **asked}))["permissions"]
        assert granted and {permission.partition(":")[2] for permission in granted} == {"read"}


async def test_an_api_key_may_come_as_a_bearer_token_and_a_login_ends(server: Hosted):
    assert (await send(server, "GET", "/sessions", authorization=f"Bearer {server.key}")).status_code == 200
    assert (await send(server, "GET", "/sessions", authorization="Bearer nonsense")).status_code == 401
    assert (await send(server, "GET", "/sessions", authorization=f"Basic {server.key}")).status_code == 401
    await new_member(server, "b@example.com", workspaces=[str(server.actor.workspace_id)])

    login = await log_in(server, "b@example.com")
    assert (await send(server, "GET", "/sessions", **login)).json()["error"] == "org_scoped_key_requires_workspace"
    assert (await send(server, "GET", "/auth", **login)).json()["user_email"] == "b@example.com"
    organization = str(server.actor.organization_id)
    assert (await send(server, "GET", "/orgs/current", **login, x_organization_id=organization)).status_code == 200
    assert (await send(server, "GET", "/orgs/current", **login, x_organization_id=str(uuid4()))).status_code == 403
    assert (await send(server, "GET", "/orgs/current", x_organization_id=organization.upper())).status_code == 200
    service = await server.new_key()
    for key in (server.key, service):
        refused = await send(server, "GET", "/orgs/current", x_api_key=key, x_organization_id=str(uuid4()))
        assert refused.status_code == 403

    assert (await send(server, "POST", "/logout", **login)).status_code == 204

    assert (await send(server, "GET", "/auth", **login)).status_code == 401


async def test_password_signs_in_and_is_changed_only_with_the_current_one(server: Hosted):
    await new_member(server, "b@example.com")

    for email, password in (("b@example.com", "wrong"), ("nobody@example.com", PASSWORD), ("admin@localhost", "")):
        response = await send(server, "POST", "/login", {"email": email, "password": password})
        assert (response.status_code, response.json()) == (401, {"detail": "The email or the password is wrong."})

    before = datetime.now(UTC)
    lasts = (await create(server, "/login", {"email": "b@example.com", "password": PASSWORD}))["expires_at"]
    assert before <= datetime.fromisoformat(lasts) - timedelta(hours=12) <= datetime.now(UTC)

    login = await log_in(server, "b@example.com")
    new = {"new": "another good password"}
    assert (await send(server, "PUT", "/users/me/password", new, **login)).status_code == 401
    assert (await send(server, "PUT", "/users/me/password", {**new, "current": PASSWORD}, **login)).status_code == 204
    body = {"email": "b@example.com", "password": PASSWORD}
    assert (await send(server, "POST", "/login", body)).status_code == 401
    assert (await send(server, "POST", "/login", {**body, "password": new["new"]})).status_code == 200

    stored = await server.db.pool.fetchval("select password from users where email = 'b@example.com'")
    assert len(stored) == 48
    assert PASSWORD.encode() not in stored
    service = await server.new_key()
    assert (await send(server, "PUT", "/users/me/password", new, x_api_key=service)).status_code == 403


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/orgs/current/members", {"email": "no address"}, "email"),
        ("/orgs/current/members", {"email": "a@b", "password": "short"}, "password"),
        ("/orgs/current/members", {"email": "a@b", "role_id": "King"}, "role_id"),
        ("/orgs/current/members", {"email": "a@b", "workspaces": [str(uuid4())]}, "workspaces"),
        ("/workspaces/current/members", {"user_id": str(uuid4())}, "user_id"),
        ("/workspaces", {"display_name": ""}, "display_name"),
        ("/orgs/current/members", {"email": "admin\u200b@localhost"}, "email"),
        ("/orgs/current/members", {"email": "admin@local\u202ehost"}, "email"),
        ("/workspaces", {"display_name": "x", "tenant_handle": "No Handle"}, "tenant_handle"),
        ("/api-key", {"role_id": "Viewer", "permissions": ["runs:read"]}, "permissions"),
        ("/api-key", {"workspaces": [str(uuid4())]}, "workspaces"),
        ("/api-key/current", {"role_id": "Viewer"}, "role_id"),
        ("/api-key/current", {"default_workspace_id": str(uuid4())}, "default_workspace_id"),
        ("/orgs/current/service-keys", {"workspaces": [str(uuid4())]}, "workspaces"),
        ("/orgs/current/service-keys", {"default_workspace_id": str(uuid4())}, "default_workspace_id"),
    ],
)
async def test_invalid_member_requests_are_refused_by_field(shared_server: Hosted, path: str, body: Any, field: str):
    response = await send(shared_server, "POST", path, body)
    assert response.status_code == 422, response.text
    assert response.json()["detail"][0]["loc"][:2] == ["body", field]


async def test_adding_a_member_twice_is_refused(server: Hosted):
    member = await new_member(server, "b@example.com", full_name="B", workspaces=[str(server.actor.workspace_id)])
    assert (member["role_name"], member["full_name"]) == ("Organization User", "B")
    again = {"email": "b@example.com"}
    assert (await send(server, "POST", "/orgs/current/members", again)).status_code == 409
    joined = {"user_id": member["id"]}
    assert (await send(server, "POST", "/workspaces/current/members", joined)).status_code == 409
    emails = [found["email"] for found in (await send(server, "GET", "/orgs/current/members")).json()]
    assert emails == ["admin@localhost", "b@example.com"]

    assert len((await send(server, "GET", "/orgs/current/roles")).json()) == 7


async def test_a_key_of_a_workspace_does_not_change_the_organization(server: Hosted):
    other = (await create(server, "/workspaces", {"display_name": "Other"}))["id"]
    bound = (await create(server, "/api-key", {}, x_tenant_id=other))["key"]
    several = (await create(server, "/orgs/current/service-keys", {"workspaces": [other]}))["key"]
    for key in (bound, several):
        headers = {"x_api_key": key, "x_tenant_id": other}
        for path, body in (
            ("/orgs/current/service-keys", {}),
            ("/orgs/current/members", {"email": "x@example.com", "role_id": "Organization Admin"}),
            ("/workspaces", {"display_name": "Third"}),
        ):
            assert (await send(server, "POST", path, body, **headers)).status_code == 403

        assert (
            await send(server, "POST", "/api-key", {"permissions": ["organization:manage"]}, **headers)
        ).status_code == 403
        assert (await send(server, "POST", "/api-key", {}, **headers)).status_code == 200
        assert (await send(server, "GET", "/orgs/current", **headers)).status_code == 200

    whole = (await create(server, "/orgs/current/service-keys", {}))["key"]
    assert (await send(server, "POST", "/workspaces", {"display_name": "Third"}, x_api_key=whole)).status_code == 200


async def test_permissions_of_another_workspace_cannot_be_granted(server: Hosted):
    own = str(server.actor.workspace_id)
    other = (await create(server, "/workspaces", {"display_name": "Other"}))["id"]
    role = {"role_id": "Organization Operator"}
    await new_member(server, "op@example.com", **role, workspaces=[own], workspace_role="Editor")

    operator = await log_in(server, "op@example.com", own)
    for fields, status in (
        ({"workspaces": [own], "workspace_role": "Admin"}, 403),
        ({"workspaces": [own, other], "workspace_role": "Viewer"}, 403),
        ({"workspaces": [own], "workspace_role": "Viewer"}, 200),
        ({}, 200),
    ):
        body = {"email": f"{uuid4()}@example.com", **role, **fields}
        assert (await send(server, "POST", "/orgs/current/members", body, **operator)).status_code == status

    for body, status in (
        ({"permissions": ["runs:read"]}, 403),
        ({"permissions": ["runs:read"], "workspaces": [other]}, 403),
        ({"permissions": ["runs:read"], "workspaces": [own]}, 200),
        ({"permissions": ["organization:read"]}, 200),
    ):
        assert (await send(server, "POST", "/orgs/current/service-keys", body, **operator)).status_code == status


async def test_a_limited_personal_key_cannot_escalate(server: Hosted):
    reads = (await create(server, "/api-key/current", {"read_only": True}))["key"]
    response = await send(server, "PUT", "/users/me/password", {"new": PASSWORD}, x_api_key=reads)
    assert (response.status_code, "password" in response.json()["detail"]) == (403, True)
    makes = (await create(server, "/api-key/current", {"permissions": ["organization:pats:create"]}))["key"]
    assert (await send(server, "POST", "/api-key/current", {}, x_api_key=makes)).status_code == 403
    assert (await send(server, "POST", "/api-key/current", {"read_only": True}, x_api_key=makes)).status_code == 403
    body = {"permissions": ["organization:pats:create"]}

    mine = await create(server, "/api-key/current", body, x_api_key=makes)
    for path in ("/api-key/current", "/orgs/current/personal-access-tokens"):
        response = await send(server, "DELETE", f"{path}/{mine['id']}", x_api_key=reads)
        assert (response.status_code, "revoke" in response.json()["detail"]) == (403, True)

    assert (await send(server, "GET", "/auth", x_api_key=mine["key"])).status_code == 200
    body = {"permissions": ["organization:read", "organization:pats:create"]}
    ends = (await create(server, "/api-key/current", body))["key"]
    assert (await send(server, "DELETE", f"/api-key/current/{mine['id']}", x_api_key=ends)).status_code == 204


async def test_higher_roles_cannot_be_removed(server: Hosted):
    place = {"workspaces": [str(server.actor.workspace_id)]}
    admin = await new_member(server, "a@example.com", **place, workspace_role="Admin")
    viewer = await new_member(server, "v@example.com", **place, workspace_role="Viewer")
    roles = {role["name"]: role for role in (await send(server, "GET", "/orgs/current/roles")).json()}
    manages = ["workspaces:manage", *roles["WORKSPACE_VIEWER"]["permissions"]]

    limited = (await create(server, "/api-key", {"permissions": manages}))["key"]
    path = "/workspaces/current/members"
    newcomer = await new_member(server, "n@example.com")
    for method, where, body in (
        ("PATCH", f"{path}/{viewer['id']}", {"role_id": "Admin"}),
        ("POST", path, {"user_id": newcomer["id"], "role_id": "Editor"}),
    ):
        assert (await send(server, method, where, body, x_api_key=limited)).status_code == 403

    for method, body in (("PATCH", {"role_id": "Viewer"}), ("DELETE", None)):
        response = await send(server, method, f"{path}/{admin['id']}", body, x_api_key=limited)
        assert (response.status_code, "the role Admin" in response.text) == (403, True)
        assert (await send(server, method, f"{path}/{viewer['id']}", body, x_api_key=limited)).status_code < 300

    assert {member["role_name"] for member in (await send(server, "GET", path)).json()} == {"Admin"}
    keeper = (await create(server, "/orgs/current/service-keys", {"permissions": ["organization:manage"]}))["key"]
    for method, body in (("PATCH", {"role_id": "Organization Viewer"}), ("DELETE", None)):
        response = await send(server, method, f"/orgs/current/members/{viewer['id']}", body, x_api_key=keeper)
        assert response.status_code == 403


async def test_operator_cannot_remove_a_workspace_admin_or_take_the_address(server: Hosted):
    own = str(server.actor.workspace_id)
    admin = await new_member(server, "ann@example.com", workspaces=[own], workspace_role="Admin")
    user = await new_member(server, "bob@example.com", workspaces=[own], workspace_role="Viewer")
    await new_member(server, "op@example.com", role_id="Organization Operator", workspaces=[own])

    operator = await log_in(server, "op@example.com")
    members = "/orgs/current/members"
    body = {"email": "ann@example.com", "password": PASSWORD}

    refused = await send(server, "DELETE", f"{members}/{admin['id']}", **operator)
    assert (refused.status_code, "Admin in the workspace Default" in refused.text) == (403, True)
    assert (await send(server, "POST", members, {**body, "email": "ANN@example.com"}, **operator)).status_code == 409

    # Somebody who is an Editor there has all permissions of a Viewer.
    assert (await send(server, "DELETE", f"{members}/{user['id']}", **operator)).status_code == 204

    assert (await send(server, "DELETE", f"{members}/{admin['id']}")).status_code == 204

    for email in ("ann@example.com", "Ann@Example.com", "\uff41nn@example.com"):
        taken = await send(server, "POST", members, {**body, "email": email}, **operator)
        assert (taken.status_code, "only an organization admin" in taken.text) == (403, True)

    # Without a password only the sign-in provider lets somebody in, who proves to have the address.
    assert (await send(server, "POST", members, {"email": "ann@example.com"}, **operator)).status_code == 200


async def test_key_that_expires_makes_none_that_outlasts_it(server: Hosted):
    soon = "2990-01-01T00:00:00Z"
    later = "2990-01-01T00:00:01Z"
    routes = ("/api-key/current", "/orgs/current/personal-access-tokens", "/orgs/current/service-keys", "/api-key")
    expiring = (await create(server, "/api-key/current", {"expires_at": soon}))["key"]
    for path in routes:
        child = await create(server, path, {}, x_api_key=expiring)
        assert child["expires_at"] == soon

        grandchild = await send(server, "POST", "/api-key", {"expires_at": later}, x_api_key=child["key"])
        if child["key"].startswith("lsv2_pt"):
            assert grandchild.json()["detail"][0]["loc"] == ["body", "expires_at"]

        refused = await send(server, "POST", path, {"expires_at": later}, x_api_key=expiring)
        assert (refused.status_code, soon[:10] in refused.text) == (422, True)

    # A password would outlast the key, too.
    response = await send(server, "PUT", "/users/me/password", {"new": PASSWORD}, x_api_key=expiring)
    assert (response.status_code, "expires" in response.text) == (403, True)

    # So would a new member's.
    newcomer = {"email": "later@example.com", "password": PASSWORD}
    response = await send(server, "POST", "/orgs/current/members", newcomer, x_api_key=expiring)
    assert (response.status_code, "expires" in response.text) == (403, True)
    newcomer["password"] = None
    assert (await send(server, "POST", "/orgs/current/members", newcomer, x_api_key=expiring)).status_code == 200

    # A session ends sooner than the keys that its user makes.
    assert (await send(server, "PUT", "/users/me/password", {"new": PASSWORD})).status_code == 204
    login = await log_in(server, "admin@localhost")
    assert (await create(server, "/api-key/current", {}, **login))["expires_at"] is None


async def test_operators_rename_workspaces_without_membership(server: Hosted):
    await new_member(server, "op@example.com", role_id="Organization Operator")
    operator = await log_in(server, "op@example.com")
    path = f"/workspaces/{server.actor.workspace_id}"
    response = await send(server, "PATCH", path, {"display_name": "Renamed"}, **operator)

    assert (response.status_code, response.json()["display_name"], response.json()["role_name"]) == (
        200,
        "Renamed",
        None,
    )

    assert (await send(server, "PATCH", path, {"display_name": "Again"})).json()["role_name"] == "Admin"
    assert (await send(server, "PATCH", f"/workspaces/{uuid4()}", {"display_name": "x"}, **operator)).status_code == 404


async def test_a_flood_of_logins_gets_429(server: Hosted, monkeypatch: pytest.MonkeyPatch):
    admitted = passwords.MAX_CONCURRENT + passwords.MAX_WAITING
    refused = 38
    derive = passwords._derive
    may_derive = threading.Event()

    def derive_later(password: str, salt: bytes) -> bytes:
        may_derive.wait()
        return derive(password, salt)

    monkeypatch.setattr(passwords, "_derive", derive_later)
    monkeypatch.setitem(passwords._COST, "n", 2)

    body = {"email": "nobody@example.com", "password": PASSWORD}
    sent = [asyncio.create_task(send(server, "POST", "/login", body)) for _ in range(admitted + refused)]
    try:
        # No password is checked meanwhile, so all others wait.
        await eventually(lambda: asyncio.sleep(0, sum(each.done() for each in sent) >= refused))
    finally:
        may_derive.set()

    responses = await asyncio.gather(*sent)
    assert sorted(response.status_code for response in responses) == [401] * admitted + [429] * refused
    assert next(each for each in responses if each.status_code == 429).headers["retry-after"] == "1"


async def test_a_new_password_ends_the_users_other_logins(server: Hosted):
    await new_member(server, "b@example.com")
    here = await log_in(server, "b@example.com")
    there = await log_in(server, "b@example.com")
    assert (await send(server, "GET", "/auth", **there)).status_code == 200
    body = {"new": "another good password", "current": PASSWORD}
    assert (await send(server, "PUT", "/users/me/password", body, **here)).status_code == 204
    assert (await send(server, "GET", "/auth", **there)).status_code == 401

    assert (await send(server, "GET", "/auth", **here)).status_code == 200
