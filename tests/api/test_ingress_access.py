"""A colleague in a browser, through the front: the session becomes a token of one minute for one agent.

The session itself reaches no agent, and nobody but a page of the platform exchanges it.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import pytest

from portside.kernel.caller_tokens import CallerClaims, TokenIssuer
from portside.kernel.crypto import SecretBox
from tests.fronted import HEADERS, Fronted, start_fronted

pytestmark = pytest.mark.timeout(900)
PASSWORD = "correct horse battery"


class Site(NamedTuple):
    """A platform behind its front, with two agents."""

    platform: Fronted
    workspace: str
    one: str
    two: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, platform_database: str) -> Iterator[Site]:
    with start_fronted(tmp_path_factory.mktemp("home") / "portside", platform_database) as platform:
        workspace = platform.call("GET", "/auth")["tenant_id"]
        # Without handlers of its own, an agent asks the platform about its callers.
        own = {"LANGGRAPH_AUTH": "{}"}
        with (
            platform.real_agent("one", platform_database, **own) as one,
            platform.real_agent("two", platform_database, **own) as two,
        ):
            yield Site(platform, workspace, one["id"], two["id"])


@pytest.fixture
def browser(site: Site) -> Iterator[httpx2.Client]:
    """A browser in which a member is signed in, on a page of the platform."""
    email = f"{time.time_ns()}@example.com"
    site.platform.call(
        "POST",
        "/orgs/current/members",
        email=email,
        password=PASSWORD,
        workspaces=[site.workspace],
        workspace_role="Viewer",
    )

    headers = {"Sec-Fetch-Site": "same-origin", "X-Tenant-Id": site.workspace}
    with httpx2.Client(base_url=site.platform.url, headers=headers, timeout=300) as opened:
        signed_in = opened.post("/login/password", data={"email": email, "password": PASSWORD})
        assert signed_in.status_code == 303, signed_in.text
        yield opened


def exchange(browser: httpx2.Client, deployment: str, **headers: str) -> httpx2.Response:
    return browser.post(f"/v2/deployments/{deployment}/token", headers=headers)


def call(site: Site, agent: str, **headers: str) -> int:
    """Call an agent through the front, without a browser's cookies."""
    response = httpx2.post(f"{site.platform.url}/agents/{agent}/threads/search", json={}, headers=headers, timeout=300)
    return response.status_code


def test_session_becomes_a_token_for_one_agent(site: Site, browser: httpx2.Client):
    response = exchange(browser, site.one)
    assert response.status_code == 200, response.text
    bearer = f"Bearer {response.json()['access_token']}"
    assert call(site, "one", Authorization=bearer) == 200

    # The browser sends the cookie too; the front takes it away.
    assert browser.post("/agents/one/threads", json={}, headers={"Authorization": bearer}).status_code == 200
    other = httpx2.post(
        f"{site.platform.url}/agents/two/threads/search", json={}, headers={"Authorization": bearer}, timeout=300
    )
    assert (other.status_code, "issued for another deployment" in other.text) == (401, True), other.text
    assert httpx2.get(f"{site.platform.url}/auth", headers={"Authorization": bearer}).status_code == 401
    assert exchange(browser, site.one, Authorization=bearer).status_code == 401


def test_session_itself_opens_no_agent(site: Site, browser: httpx2.Client):
    assert browser.post("/agents/one/threads/search", json={}).status_code == 401
    session = browser.cookies["portside_session"]
    assert call(site, "one", Authorization=f"Bearer {session}") == 401
    assert call(site, "one", **{"X-Api-Key": session}) == 401


def test_only_pages_of_the_platform_exchange_a_session(site: Site, browser: httpx2.Client):
    for evidence in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}):
        assert exchange(browser, site.one, **evidence).status_code == 403

    browser.post("/login/out")
    assert exchange(browser, site.one).status_code == 401


def test_tokens_end_after_a_minute(site: Site):
    box = SecretBox.from_file(site.platform.home / "master-key")
    user: Any = site.platform.call("GET", "/auth")["user_id"]
    now = int(time.time())

    def sign(begins: int, ends: int) -> str:
        return f"Bearer {TokenIssuer(box.keys).sign(CallerClaims(aud=site.one, sub=user, iat=begins, exp=ends))}"

    assert call(site, "one", Authorization=sign(now, now + 60)) == 200
    assert call(site, "one", Authorization=sign(now - 61, now - 1)) == 401
    assert call(site, "one", **HEADERS) == 200
