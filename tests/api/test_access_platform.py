"""Agents that authenticate callers by keys of the platform: only the platform decides whose key it is."""

import pytest
from cachetools import TTLCache
from starlette.requests import Request

from portside.agent.access import authentication
from portside.agent.access.authentication import PlatformAuthentication, PlatformSilent
from portside.kernel.caller_tokens import CallerClaims, TokenIssuer
from portside.kernel.errors import Unauthorized
from tests.api.control_server import control
from tests.api.hosted import open_hosted


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for the platform, which is in this process and stands still whenever it does."""
    monkeypatch.setattr(authentication, "PLATFORM_TIMEOUT_S", 600)


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw})


async def test_platform_decides_about_its_keys(platform_databases) -> None:
    async with open_hosted(await platform_databases()) as platform:
        tenant = str(platform.actor.workspace_id)
        keys = PlatformAuthentication(platform.url, tenant)
        of_another = await platform.new_key(workspace_id=await platform.new_workspace("Other"))
        caller = await keys(request(x_api_key=platform.key))
        assert (await keys(request(authorization=f"Bearer {platform.key}"))).identity == caller.identity
        assert caller.identity
        assert (await keys.studio(request(x_api_key=platform.key))).user["kind"] == "StudioUser"

        for wrong in ({}, {"x_api_key": "lsv2_pt_wrong"}, {"x_api_key": of_another}, {"authorization": "Basic eA=="}):
            for _ in range(2):
                with pytest.raises(Unauthorized, match="X-Api-Key"):
                    await keys(request(**wrong))

    # The platform is gone: a key that it accepted before stays valid for a while, and no other key is.
    keys._accepted = TTLCache(1, 0)
    assert await keys(request(x_api_key=platform.key)) == caller
    with pytest.raises(PlatformSilent):
        await keys(request(x_api_key="lsv2_pt_another"))

    with pytest.raises(PlatformSilent):
        await PlatformAuthentication(platform.url, tenant)(request(x_api_key=platform.key))

    await keys.close()


async def test_keys_with_equal_short_forms_are_different_callers(platform_databases) -> None:
    async with open_hosted(await platform_databases()) as platform:
        keys = PlatformAuthentication(platform.url, str(platform.actor.workspace_id))
        made = [(await platform.client.post("/api/v1/api-key", json={})).json() for _ in range(2)]
        await platform.db.pool.execute("update api_keys set short_key = 'lsv2_sk_…cafe'")
        callers = [await keys(request(x_api_key=one["key"])) for one in made]
        assert [caller.identity for caller in callers] == [one["id"] for one in made]
        assert {caller.display_name for caller in callers} == {"lsv2_sk_…cafe"}
        await keys.close()


async def test_revoked_key_is_not_accepted_after_the_cache_expires(
    platform_databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "ACCEPTED_TTL_S", 0)
    async with open_hosted(await platform_databases()) as platform:
        keys = PlatformAuthentication(platform.url, str(platform.actor.workspace_id))
        made = (await platform.client.post("/api/v1/api-key", json={"description": "short"})).json()
        given = request(x_api_key=made["key"])
        await keys(given)
        (await platform.client.delete(f"/api/v1/api-key/{made['id']}")).raise_for_status()

        with pytest.raises(Unauthorized):
            await keys(given)

    # Now that the platform is gone, the key is not accepted from a cache either.
    keys._rejected = TTLCache(1, 0)
    with pytest.raises(PlatformSilent):
        await keys(given)

    await keys.close()


async def test_tokens_are_verified_while_the_platform_is_away(platform_databases) -> None:
    async with control(await platform_databases()) as plane:
        deployment = (await plane.create())["id"]
        url = f"{plane.client.base_url}/v2/deployments/{deployment}"
        made = (await plane.client.post(f"/v2/deployments/{deployment}/token")).json()["access_token"]
        known, unknown = (PlatformAuthentication(url, None, deployment) for _ in range(2))
        alone = PlatformAuthentication(url, None)
        caller = await known(request(authorization=f"Bearer {made}"))
        assert caller.identity == str(plane.actor.user_id)

        with pytest.raises(Unauthorized, match="another deployment"):
            await alone(request(x_api_key=made))

    assert await known(request(x_api_key=made)) == caller

    for keys in (known, unknown):
        foreign = TokenIssuer([b"x" * 32]).sign(CallerClaims(aud=deployment, sub="x", iat=0, exp=60))
        with pytest.raises((Unauthorized, PlatformSilent)):
            await keys(request(x_api_key=foreign))

    with pytest.raises(PlatformSilent):
        await unknown(request(x_api_key=made))

    # Keys that were not renewed in time verify nothing any more.
    known._tokens._keys_until = 0.0
    with pytest.raises(PlatformSilent):
        await known(request(x_api_key=made))

    for keys in (known, unknown, alone):
        await keys.close()
