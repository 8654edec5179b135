"""The console, and the addresses that sign a browser in: once, within a minute, with the rights of their maker.

What a browser's session reads has no secret in it.
"""

from collections.abc import AsyncIterator

import asyncpg
import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from portside.console import site
from tests.browser import NEEDS_CHROMIUM, NEEDS_CONSOLE
from tests.conftest import eventually
from tests.platforms import Platform

pytestmark = pytest.mark.asyncio(loop_scope="module")
HTML = {"accept": "text/html,application/xhtml+xml"}
TYPED = {"sec-fetch-site": "none"}
LINKS = "/users/me/sign-in-links"


@pytest_asyncio.fixture(loop_scope="module")
async def browser(platform: Platform) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=platform.server.url, headers=HTML, timeout=300) as opened:
        yield opened


async def test_only_browsers_are_sent_to_the_console(platform: Platform, browser: httpx2.AsyncClient) -> None:
    response = await browser.get("/")
    assert (response.status_code, response.headers["location"]) == (307, "/console/")
    assert (await browser.get("/", headers={"accept": "*/*"})).status_code == 404
    assert (await platform.client.get("/")).status_code == 404
    assert (await browser.get("/console")).headers["location"] == "/console/"


async def test_every_address_of_the_console_answers(browser: httpx2.AsyncClient) -> None:
    for path in ("", "deployments", "deployments/1/revisions/2?log=build"):
        response = await browser.get(f"/console/{path}")
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]

        if site.is_built():
            assert response.status_code == 200
            assert '<div id="root">' in response.text
        else:
            assert response.status_code == 503
            assert "make console" in response.text


async def test_a_link_signs_in_once(platform: Platform, browser: httpx2.AsyncClient) -> None:
    path = (await platform.call("POST", LINKS))["path"]
    response = await browser.get(path, headers=TYPED)
    assert (response.status_code, response.headers["location"]) == (303, "/console/")
    identity = (await browser.get("/auth")).json()
    assert identity["user_email"] == "admin@localhost"
    browser.cookies.clear()

    again = await browser.get(path, headers=TYPED)
    assert again.status_code == 401
    assert "portside console" in again.text
    assert "set-cookie" not in again.headers


async def test_a_link_is_stored_as_a_hash_and_expires(platform: Platform, browser: httpx2.AsyncClient) -> None:
    path = (await platform.call("POST", LINKS))["path"]
    token = path.partition("=")[2]
    db = await asyncpg.connect(platform.database_url)
    try:
        hashes = [row["token_hash"] for row in await db.fetch("select token_hash from sign_in_links")]
        assert hashes
        assert token.encode() not in hashes
        await db.execute("update sign_in_links set expires_at = now()")
    finally:
        await db.close()

    assert (await browser.get(path, headers=TYPED)).status_code == 401


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"sec-purpose": "prefetch"}])
async def test_other_pages_cannot_spend_a_link(
    platform: Platform, browser: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    path = (await platform.call("POST", LINKS))["path"]
    assert (await browser.get(path, headers=headers)).status_code == 403
    assert (await browser.get(path, headers=TYPED)).status_code == 303


async def test_a_link_gives_no_more_than_its_key(platform: Platform, browser: httpx2.AsyncClient) -> None:
    limited = await platform.call("POST", "/api-key", description="limited", permissions=["deployments:read"])
    headers = {"X-Api-Key": limited["key"]}
    assert (await browser.post(LINKS, headers=headers)).status_code == 403
    key = await platform.call("POST", "/api-key", description="service")
    made = await browser.post(LINKS, headers={"X-Api-Key": key["key"]})
    assert made.status_code == 201, made.text
    await browser.get(made.json()["path"], headers=TYPED)

    assert (await browser.get("/auth")).status_code == 200
    await platform.call("DELETE", f"/api-key/{key['id']}")
    assert (await browser.get("/auth")).status_code == 401


async def test_a_browser_reads_no_secret(platform: Platform, browser: httpx2.AsyncClient) -> None:
    made = await platform.call(
        "POST",
        "/v2/deployments",
        name="with-secret",
        source="internal_source",
        source_config={},
        source_revision_config={},
        secrets=[{"name": "TOKEN", "value": "s3cret"}],
    )

    await browser.get((await platform.call("POST", LINKS))["path"], headers=TYPED)
    workspace = made["tenant_id"]
    response = await browser.get(f"/v2/deployments/{made['id']}", headers={"X-Tenant-Id": workspace})
    assert response.status_code == 200, response.text
    assert "s3cret" not in response.text
    assert response.json()["secrets"] == [{"name": "TOKEN", "value": ""}]
    assert (await platform.call("GET", f"/v2/deployments/{made['id']}"))["secrets"][0]["value"] == "s3cret"


async def test_the_start_prints_a_link(platform: Platform) -> None:
    async def is_printed() -> bool:
        return f"{platform.server.url}/login/link?token=" in (platform.home.parent / "up.log").read_text()

    await eventually(is_printed)


@NEEDS_CHROMIUM
@NEEDS_CONSOLE
async def test_the_first_page_opens_in_a_browser(page: Page) -> None:
    await expect(page.get_by_role("heading", name="Wants attention")).to_be_visible()
