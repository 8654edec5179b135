"""API keys over HTTP: what a key identifies, who may create one, and what a revoked one is refused."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from tests.api.control_server import PACKAGES, Control, control
from tests.databases import MigratedDatabases, with_name

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def platform(plane: Control) -> Control:
    return plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_platform(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Control]:
    """For tests that change nothing, or look only at what they made."""
    name = migrated.copy(PACKAGES)
    async with control(with_name(postgres, name)) as running:
        yield running

    await migrated.drop(name)


async def test_auth_returns_the_identity_of_a_key(platform) -> None:
    found = (await platform.client.get("/auth")).json()
    assert found["tenant_id"] == str(platform.actor.workspace_id)
    assert found["user_email"] == "admin@localhost"
    assert found["permissions"] == ["*"]
    (workspace,) = (await platform.client.get("/workspaces")).json()
    assert (workspace["id"], workspace["tenant_handle"]) == (found["tenant_id"], "default")


async def test_x_tenant_id_must_be_the_keys_own_workspace(platform) -> None:
    own = str(platform.actor.workspace_id)
    for tenant, status in ((own, 200), (own.upper(), 200), ("", 200), (str(uuid4()), 403), ("x", 403), ("é", 403)):
        response = await platform.client.get("/auth", headers={"x-tenant-id": tenant.encode()})
        assert response.status_code == status, tenant


async def test_x_organization_id_must_be_the_keys_own_organization(platform) -> None:
    own = str(platform.actor.organization_id)
    for organization, status in ((own, 200), (own.upper(), 200), ("", 200), (str(uuid4()), 403), ("x", 403)):
        response = await platform.client.get("/auth", headers={"x-organization-id": organization})
        assert response.status_code == status, organization


async def test_a_key_may_come_as_a_bearer_token(platform) -> None:
    key = platform.client.headers["x-api-key"]
    async with httpx2.AsyncClient(base_url=platform.client.base_url) as client:
        for header, status in (
            (f"Bearer {key}", 200),
            (f"bearer  {key}", 200),
            ("Bearer no", 401),
            (f"Basic {key}", 401),
        ):
            assert (await client.get("/v2/deployments", headers={"authorization": header})).status_code == status, (
                header
            )

        both = {"authorization": "Bearer no", "x-api-key": key}
        assert (await client.get("/v2/deployments", headers=both)).status_code == 200


async def test_a_key_is_made_used_and_revoked(platform) -> None:
    response = await platform.client.post(
        "/api-key", json={"description": "for CI", "permissions": ["deployments:read"]}
    )
    assert response.status_code == 200
    key = response.json()
    listed = (await platform.client.get("/api-key")).json()
    assert listed[0] | {"key": key["key"]} == key
    assert "key" not in listed[0]
    mine = {"x-api-key": key["key"]}
    assert (await platform.client.get("/v2/deployments", headers=mine)).status_code == 200

    assert (await platform.client.get("/api-key", headers=mine)).status_code == 403
    assert (await platform.client.delete(f"/api-key/{key['id']}")).status_code == 204
    assert (await platform.client.get("/v2/deployments", headers=mine)).status_code == 401
    assert (await platform.client.delete(f"/api-key/{key['id']}")).status_code == 404


async def test_key_names_the_user_or_the_key_that_created_it(platform) -> None:
    async def create(**headers: str) -> dict[str, str | None]:
        return (await platform.client.post("/api-key", json={}, headers=headers)).raise_for_status().json()

    by_user = await create()
    assert by_user["created_by"] == "admin@localhost"
    by_key = await create(**{"x-api-key": by_user["key"]})
    assert by_key["created_by"] == by_user["short_key"]
    listed = {key["id"]: key["created_by"] for key in (await platform.client.get("/api-key")).json()}
    assert [listed[each["id"]] for each in (by_user, by_key)] == ["admin@localhost", by_user["short_key"]]
    await platform.client.delete(f"/api-key/{by_user['id']}")

    listed = {key["id"]: key["created_by"] for key in (await platform.client.get("/api-key")).json()}
    assert listed[by_key["id"]] == by_user["short_key"]
    first = (await platform.client.get("/api-key/current")).json()[-1]
    assert (first["description"], first["created_by"]) == ("First key", None)


async def test_a_key_grants_no_more_than_it_may_itself(platform) -> None:
    limited = await platform.headers("workspaces:*", "runs:read")

    async def grant(permissions: list[str] | None) -> int:
        body = {"permissions": permissions}
        return (await platform.client.post("/api-key", json=body, headers=limited)).status_code

    assert await grant(["runs:read", "workspaces:manage"]) == 200

    for beyond in (["runs:create"], ["runs:*"], ["*"], None, ["runs:read", "deployments:read"]):
        assert await grant(beyond) == 403, beyond

    refused = await platform.client.post("/api-key", json={"permissions": ["deployments:read"]}, headers=limited)
    assert "deployments:read" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"permissions": "all"}, "permissions"),
        ({"permissions": ["x" * 101]}, "permissions"),
        ({"permissions": ["a:b"] * 101}, "permissions"),
        ({"permissions": ["no colon"]}, "permissions"),
        ({"permissions": ["nope:x"]}, "permissions"),
        ({"permissions": ["deployments:reed"]}, "permissions"),
        ({"description": "x" * 1001}, "description"),
        ({"description": None}, "description"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2990-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at"),
    ],
)
async def test_an_invalid_key_request_is_refused_by_field(shared_platform, body, field: str) -> None:
    response = await shared_platform.client.post("/api-key", json=body)
    assert response.status_code == 422, response.text
    assert response.json()["detail"][0]["loc"][:2] == ["body", field]


async def test_a_nul_in_a_description_is_the_callers_mistake(platform) -> None:
    response = await platform.client.post("/api-key", json={"description": "a\0b"})
    assert response.status_code == 422
    (problem,) = response.json()["detail"]
    assert (problem["loc"], "NUL" in problem["msg"]) == (["body", "description"], True)
