"""API keys that the platform itself uses: marked, rotated, created again.

Such a key can be revoked only with force, and is created again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from portside.dataplane.api import ControlPlane
from portside.dataplane.failures import ControlPlaneUnreachable
from portside.kernel.db import Database
from portside.listener_api import Connect
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.listener import ListenerKey
from portside.platform.settings import PlatformSettings
from tests.api.control_server import Control, ListenerSide, control


@pytest.fixture
async def plane(platform_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[Control]:
    async with control(await platform_databases()) as running:
        yield running


async def find_key_id(plane: Control, used_by: str) -> str:
    """Return the id of the newest key that a part of the platform works with."""
    found = (await plane.client.get("/api-key")).json()
    return str(next(key["id"] for key in found if key["used_by"] == used_by))


async def read_deployed_key(plane: Control) -> str:
    """Return the key that the only deployment's servers are given."""
    (deployment,) = (await plane.listener.desired(await plane.listener.connect()))["deployments"]
    return str(deployment["environment"]["LANGSMITH_API_KEY"])


async def status(plane: Control, key: str) -> int:
    return (await plane.client.get("/auth", headers={"x-api-key": key})).status_code


@pytest.mark.parametrize("path", ["/api-key", "/orgs/current/service-keys"])
async def test_a_deployment_key_is_revoked_only_with_force_and_replaced(plane: Control, path: str):
    await plane.create("mine")
    first = await read_deployed_key(plane)
    key_id = await find_key_id(plane, "deployment mine")
    refused = await plane.client.delete(f"{path}/{key_id}")
    assert refused.status_code == 409
    assert "used by deployment mine" in refused.json()["detail"]
    assert await status(plane, first) == 200

    assert (await plane.client.delete(f"{path}/{key_id}", params={"force": "true"})).status_code == 204
    assert await status(plane, first) == 401
    second = await read_deployed_key(plane)
    assert second != first
    assert await status(plane, second) == 200
    assert await read_deployed_key(plane) == second
    made = (await plane.client.post("/api-key", json={})).json()
    assert made["used_by"] is None

    assert (await plane.client.delete(f"{path}/{made['id']}")).status_code == 204


async def test_a_refused_key_shows_in_the_deployment_status(plane: Control):
    deployment = (await plane.create("mine"))["id"]
    made = (await plane.client.post("/api-key", json={"permissions": ["listeners:work"]})).json()
    async with httpx2.AsyncClient(base_url=plane.client.base_url, headers={"x-api-key": made["key"]}) as client:
        listener = ListenerSide(client)
        await listener.desired(await listener.connect())

    assert (await plane.get(deployment))["status_message"] is None
    await plane.client.delete(f"/api-key/{made['id']}")
    message = (await plane.get(deployment))["status_message"]
    assert message.startswith("The platform refuses the API key of its listener (401)")
    await plane.client.delete(f"/api-key/{await find_key_id(plane, 'deployment mine')}", params={"force": "true"})

    listed = (await plane.client.get("/v2/deployments")).json()["resources"]
    assert message in listed[0]["status_message"]
    assert "The platform refuses its service key (401)" in listed[0]["status_message"]

    # The same listener, with another key.
    await plane.listener.desired(await plane.listener.connect())
    assert (await plane.get(deployment))["status_message"] is None


async def test_an_expired_key_shows_in_the_deployment_status_and_is_replaced(plane: Control):
    deployment = (await plane.create("mine"))["id"]
    first = await read_deployed_key(plane)
    await plane.db.pool.execute("update api_keys set expires_at = now() where used_by = 'deployment mine'")
    made = (await plane.client.post("/api-key", json={"permissions": ["listeners:work"]})).json()
    await plane.db.pool.execute("update listeners set key_id = $1", UUID(made["id"]))
    assert (await plane.get(deployment))["status_message"].startswith("The platform refuses its service key (401)")
    await plane.db.pool.execute("update api_keys set expires_at = now() where id = $1", UUID(made["id"]))
    message = (await plane.get(deployment))["status_message"]
    assert message.startswith("The platform refuses the API key of its listener (401)")

    second = await read_deployed_key(plane)
    assert second != first
    assert await status(plane, second) == 200
    assert (await plane.get(deployment))["status_message"] is None


async def test_a_rotated_key_works_until_servers_have_the_new_one(plane: Control):
    deployment = (await plane.create("mine"))["id"]
    listener = await plane.listener.connect()
    generation = (await plane.listener.desired(listener))["generation"]
    first = await read_deployed_key(plane)
    response = await plane.client.post(f"/v2/deployments/{deployment}/service-key/rotate")
    assert response.status_code == 204
    assert (await plane.listener.desired(listener))["generation"] > generation

    second = await read_deployed_key(plane)
    assert second != first
    assert [await status(plane, key) for key in (first, second)] == [200, 200]
    ends = {key["id"]: key["expires_at"] for key in (await plane.client.get("/api-key")).json()}
    assert sorted(moment is None for moment in ends.values()) == [False, True]

    # The rest of its hour is the same for a second rotation, which begins another one.
    await plane.client.post(f"/v2/deployments/{deployment}/service-key/rotate")
    again = {key["id"]: key["expires_at"] for key in (await plane.client.get("/api-key")).json()}
    assert [again[key_id] for key_id, moment in ends.items() if moment is not None] == [
        moment for moment in ends.values() if moment is not None
    ]
    assert sorted(moment is None for moment in again.values()) == [False, False, True]
    second = await read_deployed_key(plane)
    (await plane.client.delete(f"/v2/deployments/{deployment}")).raise_for_status()
    assert (await plane.listener.drop(deployment)).status_code == 204

    assert await status(plane, second) == 401


async def test_the_listener_continues_with_its_replaced_key(plane: Control, tmp_path: Path):
    made = [(await plane.client.post("/api-key", json={"permissions": ["listeners:work"]})).json() for _ in range(2)]
    file = tmp_path / "listener-key"
    file.write_text(made[0]["key"] + "\n")

    listener = Connect(compute_type="process", compute_id="here", version="1")
    client = ControlPlane(str(plane.client.base_url), made[0]["key"], str(file))
    try:
        await client.connect(listener)
        await plane.client.delete(f"/api-key/{made[0]['id']}")
        with pytest.raises(ControlPlaneUnreachable, match="401"):
            await client.connect(listener)

        file.write_text(made[1]["key"] + "\n")
        with pytest.raises(ControlPlaneUnreachable, match="401"):
            await client.connect(listener)

        await client.connect(listener)
    finally:
        await client.close()


async def test_the_platform_replaces_its_listener_key(platform_databases, tmp_path: Path):
    url = await platform_databases()
    home = Home(tmp_path)
    settings = PlatformSettings(own_listener=False)
    async with open_platform(home, settings, url) as platform:
        first = platform.listener_key

        async def call(method: str, path: str, **params: Any) -> httpx2.Response:
            transport = httpx2.ASGITransport(app=platform.asgi)
            headers = {"x-api-key": home.api_key.read_text().strip()}
            async with httpx2.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
                return await client.request(method, path, params=params)

        (key,) = (await call("GET", "/api-key")).json()
        assert (key["used_by"], key["permissions"]) == ("the platform's own listener", ["listeners:work"])
        assert (await call("DELETE", f"/api-key/{key['id']}")).status_code == 409
        assert (await call("DELETE", f"/api-key/{key['id']}", force="true")).status_code == 204
        db = await Database.connect(url)
        assert (await ListenerKey(db, home).activate()).did == {"made": 1}
        assert (await ListenerKey(db, home).activate()).did == {"made": 0}

        assert home.listener_key.read_text().strip() != first
        (key,) = (await call("GET", "/api-key")).json()
        await call("DELETE", f"/api-key/{key['id']}", force="true")
        await db.close()

    second = home.listener_key.read_text().strip()
    async with open_platform(home, settings, url) as platform:
        assert platform.listener_key not in {first, second}
