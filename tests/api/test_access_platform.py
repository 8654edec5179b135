"""Keys of the platform on an agent's door: whose they are says the platform, and nobody else."""

import pytest
from starlette.requests import Request

from portside.agent.access import platform_keys
from portside.agent.access.memory import Remembered
from portside.agent.access.platform_keys import PlatformKeys, PlatformSilent
from portside.kernel.errors import Unauthorized
from tests.api.hosted import hosted


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw})


async def test_whose_a_key_is_says_the_platform(fresh_database) -> None:
    async with hosted(await fresh_database()) as platform:
        tenant = str(platform.actor.workspace_id)
        keys = PlatformKeys(platform.url, tenant)
        of_another = await platform.new_key(workspace_id=await platform.new_workspace("Other"))
        caller = await keys(request(x_api_key=platform.key))
        assert (await keys(request(authorization=f"Bearer {platform.key}"))).identity == caller.identity
        assert caller.identity
        assert (await keys.studio(request(x_api_key=platform.key))).user["kind"] == "StudioUser"
        for wrong in ({}, {"x_api_key": "lsv2_pt_wrong"}, {"x_api_key": of_another}, {"authorization": "Basic eA=="}):
            for _ in range(2):
                with pytest.raises(Unauthorized, match="X-Api-Key"):
                    await keys(request(**wrong))
    # The platform is gone: who was known is, for a while, and nobody else.
    keys._let_in = Remembered(ttl_s=0, most=1)
    assert await keys(request(x_api_key=platform.key)) == caller
    with pytest.raises(PlatformSilent):
        await keys(request(x_api_key="lsv2_pt_another"))
    with pytest.raises(PlatformSilent):
        await PlatformKeys(platform.url, tenant)(request(x_api_key=platform.key))
    await keys.close()


async def test_keys_that_look_alike_are_different_callers(fresh_database) -> None:
    async with hosted(await fresh_database()) as platform:
        keys = PlatformKeys(platform.url, str(platform.actor.workspace_id))
        made = [(await platform.client.post("/api/v1/api-key", json={})).json() for _ in range(2)]
        await platform.db.pool.execute("update api_keys set short_key = 'lsv2_sk_…cafe'")
        callers = [await keys(request(x_api_key=one["key"])) for one in made]
        assert [caller.identity for caller in callers] == [one["id"] for one in made]
        assert {caller.display_name for caller in callers} == {"lsv2_sk_…cafe"}
        await keys.close()


async def test_a_key_that_was_taken_away_is_forgotten(fresh_database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_keys, "REMEMBERED_S", 0)
    async with hosted(await fresh_database()) as platform:
        keys = PlatformKeys(platform.url, str(platform.actor.workspace_id))
        made = (await platform.client.post("/api/v1/api-key", json={"description": "short"})).json()
        given = request(x_api_key=made["key"])
        await keys(given)
        (await platform.client.delete(f"/api/v1/api-key/{made['id']}")).raise_for_status()
        with pytest.raises(Unauthorized):
            await keys(given)
    # Nor is it known any more now that the platform is gone.
    keys._turned_away = Remembered(ttl_s=0, most=1)
    with pytest.raises(PlatformSilent):
        await keys(given)
    await keys.close()
