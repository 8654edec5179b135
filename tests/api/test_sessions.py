"""Sessions of browsers: who may change something with a cookie, what ends a session, and where a sign-in leads.

A session cookie counts only in requests of this platform's own pages, unless they just read. An API key counts more.
"""

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")
PASSWORD = "correct horse battery"
SAME = {"sec-fetch-site": "same-origin"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def browser(server: Hosted) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that keeps cookies, has no key, and sends what a page of the server would."""
    async with new_browser(server) as opened:
        yield opened


def new_browser(server: Hosted) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, headers=SAME, timeout=300)


async def add_member(server: Hosted) -> tuple[str, str]:
    """Add a member; its id and email."""
    email = f"{secrets.token_hex(6)}@example.com"
    body = {"email": email, "password": PASSWORD, "workspaces": [str(server.actor.workspace_id)]}
    response = await server.client.post("/orgs/current/members", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["id"]), email


@pytest_asyncio.fixture(loop_scope="module")
async def email(server: Hosted) -> str:
    return (await add_member(server))[1]


async def sign_in(browser: httpx2.AsyncClient, email: str, **fields: str) -> httpx2.Response:
    return await browser.post("/login/password", data={"email": email, "password": PASSWORD, **fields})


async def status(browser: httpx2.AsyncClient) -> int:
    return (await browser.get("/auth")).status_code


async def list_sessions(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    return list((await client.get("/users/me/sessions")).json())


async def test_a_password_makes_a_session_that_scripts_cannot_read(
    server: Hosted, browser: httpx2.AsyncClient, email: str
) -> None:
    page = await browser.get("/login")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    response = await sign_in(browser, email, next="/console/deployments?x=1")
    assert (response.status_code, response.headers["location"]) == (303, "/console/deployments?x=1")
    name, *attributes = response.headers["set-cookie"].split("; ")
    assert name.startswith("portside_session=")

    assert set(attributes) == {"Path=/", "Max-Age=604800", "HttpOnly", "SameSite=Lax"}
    assert (await browser.get("/auth")).json()["user_email"] == email
    assert email in (await browser.get("/login")).text
    token = browser.cookies["portside_session"]
    body = {"email": email, "password": PASSWORD}
    over_tls = await browser.post("/login/password", data=body, headers={"x-forwarded-proto": "https"})
    name, *attributes = over_tls.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-portside_session=")

    assert {"Path=/", "Secure"} < set(attributes)
    stored = await server.db.pool.fetchval("select string_agg(s::text, '') from sessions s")
    assert token not in stored


async def test_a_wrong_password_shows_the_page_again(server: Hosted, browser: httpx2.AsyncClient, email: str) -> None:
    for given in (email, 'x"><script>alert(1)</script>@example.com'):
        response = await browser.post(
            "/login/password", data={"email": given, "password": "wrong", "next": "/console/x"}
        )
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
        assert 'role="alert">The email or the password is wrong.' in response.text
        assert "<script" not in response.text

        assert 'name="next" value="/console/x"' in response.text


async def test_a_pasted_key_makes_a_session_that_may_do_what_the_key_may(
    server: Hosted, browser: httpx2.AsyncClient
) -> None:
    made = (await server.client.post("/api-key", json={"permissions": ["runs:read", "organization:read"]})).json()
    assert (await browser.post("/login/key", data={"key": "wrong"})).status_code == 401
    assert (await browser.post("/login/key", data={"key": f" {made['key']} "})).status_code == 303
    seen = (await browser.get("/auth")).json()
    assert seen["permissions"] == ["organization:read", "runs:read"]
    assert seen["tenant_id"] == str(server.actor.workspace_id)
    assert (await browser.post("/api-key", json={})).status_code == 403

    (own,) = await list_sessions(browser)
    assert (own["method"], own["is_current"], own["user_id"]) == ("key", True, None)

    # Another key has sessions of its own.
    other = (await server.client.post("/api-key", json={"description": "another"})).json()
    async with new_browser(server) as another:
        await another.post("/login/key", data={"key": other["key"]})
        assert [found["is_current"] for found in await list_sessions(another)] == [True]
        assert (await another.delete(f"/users/me/sessions/{own['id']}")).status_code == 404

    assert own["id"] in await list_all_ids(server)
    await server.client.delete(f"/api-key/{made['id']}")
    assert await status(browser) == 401
    assert own["id"] not in await list_all_ids(server), "a session of a revoked key is none"


async def list_all_ids(server: Hosted) -> set[str]:
    return {str(found["id"]) for found in (await server.client.get("/orgs/current/sessions")).json()}


async def test_session_of_a_key_that_expires_makes_nothing_that_outlasts_it(
    server: Hosted, browser: httpx2.AsyncClient
) -> None:
    ends = "2990-01-01T00:00:00Z"
    made = (await server.client.post("/api-key/current", json={"expires_at": ends})).json()
    await browser.post("/login/key", data={"key": made["key"]})
    assert (await browser.post("/api-key/current", json={})).json()["expires_at"] == ends
    member = {"email": f"{secrets.token_hex(6)}@example.com", "password": PASSWORD}
    assert (await browser.post("/orgs/current/members", json=member)).status_code == 403


async def test_link_is_good_for_a_minute(server: Hosted, browser: httpx2.AsyncClient) -> None:
    before = datetime.now(UTC)
    links = [(await server.client.post("/users/me/sign-in-links")).json() for _ in range(2)]
    for link in links:
        assert before <= datetime.fromisoformat(link["expires_at"]) - timedelta(minutes=1) <= datetime.now(UTC)

    # Another one does not end the first.
    assert [(await browser.get(link["path"])).status_code for link in links] == [303, 303]


async def test_command_line_that_is_used_once_a_week_stays_signed_in(
    server: Hosted, browser: httpx2.AsyncClient, email: str
) -> None:
    """Only sessions of browsers end without use, also when expired ones are deleted."""
    login = (await server.client.post("/login", json={"email": email, "password": PASSWORD})).json()
    idle = "update sessions set last_used_at = now() - interval '10 days' where kind = 'bearer'"
    await server.db.pool.execute(idle)
    await sign_in(browser, email)
    headers = {"authorization": f"Bearer {login['access_token']}", "x-api-key": ""}
    assert (await server.client.get("/auth", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
        {"origin": "http://{host}", "sec-fetch-site": "cross-site"},
        {"origin": "http://{host}.evil.example"},
    ],
)
async def test_other_sites_change_nothing_with_the_cookie(server: Hosted, headers: dict[str, str], email: str) -> None:
    async with new_browser(server) as browser:
        await sign_in(browser, email)
        del browser.headers["sec-fetch-site"]
        host = browser.base_url.netloc.decode()

        sent = {name: value.format(host=host) for name, value in headers.items()}
        for method, path in (("POST", "/logout"), ("PUT", "/users/me/password"), ("POST", "/login/out")):
            response = await browser.request(method, path, json={"new": "another good password"}, headers=sent)
            assert response.status_code == 403, path
            assert "only pages of this platform" in response.json()["detail"]

        body = {"email": email, "password": PASSWORD}
        assert (await browser.post("/login/password", data=body, headers=sent)).status_code == 403
        assert (await browser.post("/login/key", data={"key": server.key}, headers=sent)).status_code == 403
        assert await status(browser) == 200


async def test_own_pages_and_keys_change_what_they_may(server: Hosted, browser: httpx2.AsyncClient, email: str) -> None:
    await sign_in(browser, email)
    key = {"x-api-key": server.key, "sec-fetch-site": "cross-site"}
    assert (await browser.get("/auth", headers=key)).json()["user_email"] == "admin@localhost"
    assert (await browser.post("/api-key", json={}, headers=key)).status_code == 200
    bearer = {"authorization": f"Bearer {server.key}", "sec-fetch-site": "cross-site"}
    assert (await browser.post("/api-key", json={}, headers=bearer)).status_code == 200
    del browser.headers["sec-fetch-site"]

    own = {"origin": f"http://{browser.base_url.netloc.decode()}"}
    assert (await browser.post("/logout", headers=own)).status_code == 204
    assert await status(browser) == 401


async def test_a_session_is_never_one_that_somebody_else_chose(
    server: Hosted, browser: httpx2.AsyncClient, email: str
) -> None:
    browser.cookies["portside_session"] = "fixed-by-an-attacker"
    assert await status(browser) == 401
    response = await sign_in(browser, email)
    first = response.headers["set-cookie"].split(";")[0].removeprefix("portside_session=")
    assert first != "fixed-by-an-attacker"

    async with new_browser(server) as again:
        again.headers["cookie"] = f"portside_session={first}"
        assert await status(again) == 200
        second = (await sign_in(again, email)).headers["set-cookie"].split(";")[0]
        assert await status(again) == 401
        again.headers["cookie"] = f"portside_session={first}; {second}"
        assert await status(again) == 401
        again.headers["cookie"] = second

        assert await status(again) == 200


async def test_over_tls_a_cookie_of_another_host_of_the_domain_does_not_count(server: Hosted, email: str) -> None:
    async with new_browser(server) as browser:
        browser.headers["x-forwarded-proto"] = "https"
        own = (await sign_in(browser, email)).headers["set-cookie"].split(";")[0]
        assert own.startswith("__Host-")
        tossed = own.removeprefix("__Host-")
        found = [await status_with(browser, cookie) for cookie in (own, tossed, f"{own}; portside_session=evil")]
        assert found == [200, 401, 200]
        browser.headers["cookie"] = own

        assert (await browser.post("/login/out")).headers["set-cookie"].startswith("__Host-portside_session=;")
        assert await status(browser) == 401


async def status_with(browser: httpx2.AsyncClient, cookie: str) -> int:
    return (await browser.get("/auth", headers={"cookie": cookie})).status_code


async def test_cookies_and_bearer_tokens_cannot_be_exchanged(
    server: Hosted, browser: httpx2.AsyncClient, email: str
) -> None:
    await sign_in(browser, email)
    cookie = browser.cookies["portside_session"]
    assert await status(browser) == 200
    response = await server.client.post("/login", json={"email": email, "password": PASSWORD})

    bearer = response.json()["access_token"]
    async with httpx2.AsyncClient(base_url=server.url) as plain:
        assert (await plain.get("/auth", headers={"authorization": f"Bearer {bearer}"})).status_code == 200
        assert (await plain.get("/auth", headers={"authorization": f"Bearer {cookie}"})).status_code == 401
        assert (await plain.get("/auth", headers={"cookie": f"portside_session={bearer}"})).status_code == 401


async def test_sessions_are_listed_and_ended_by_their_owner_and_by_admins(server: Hosted, email: str) -> None:
    _, another = await add_member(server)
    async with new_browser(server) as one, new_browser(server) as two, new_browser(server) as other:
        two.headers["user-agent"] = "Firefox"

        for browser, named in ((one, email), (two, email), (other, another)):
            await sign_in(browser, named)

        newest, oldest = await list_sessions(one)
        assert (oldest["is_current"], newest["is_current"]) == (True, False)
        assert (newest["client"], newest["method"], newest["kind"]) == ("Firefox", "password", "cookie")
        assert newest["address"] == "127.0.0.1"
        (foreign,) = await list_sessions(other)
        assert (await one.delete(f"/users/me/sessions/{foreign['id']}")).status_code == 404
        assert (await one.get("/orgs/current/sessions")).status_code == 403

        assert (await one.delete(f"/orgs/current/sessions/{foreign['id']}")).status_code == 403
        assert (await one.delete(f"/users/me/sessions/{newest['id']}")).status_code == 204
        assert [await status(browser) for browser in (one, two, other)] == [200, 401, 200]
        listed = (await server.client.get("/orgs/current/sessions")).json()
        assert [found["user_email"] for found in listed if found["user_email"] in {email, another}] == [another, email]
        assert (await server.client.delete(f"/orgs/current/sessions/{foreign['id']}")).status_code == 204
        assert (await server.client.delete(f"/orgs/current/sessions/{foreign['id']}")).status_code == 404

        assert [await status(browser) for browser in (one, other)] == [200, 401]


async def test_a_limited_key_does_not_end_sessions_of_its_user(server: Hosted, email: str) -> None:
    async with new_browser(server) as browser, new_browser(server) as limited:
        await sign_in(browser, email)
        made = await browser.post("/api-key/current", json={"permissions": ["organization:read"]})
        await limited.post("/login/key", data={"key": made.json()["key"]})
        target = next(found["id"] for found in await list_sessions(limited) if not found["is_current"])
        assert (await limited.delete(f"/users/me/sessions/{target}")).status_code == 403
        assert await status(browser) == 200
        assert (await limited.post("/logout")).status_code == 204

        assert await status(limited) == 401


async def test_signing_out_ends_the_session_and_not_only_the_cookie(
    server: Hosted, browser: httpx2.AsyncClient, email: str
) -> None:
    await sign_in(browser, email)
    token = browser.cookies["portside_session"]
    response = await browser.post("/login/out")
    assert (response.status_code, "Max-Age=0" in response.headers["set-cookie"]) == (303, True)

    async with new_browser(server) as thief:
        thief.cookies["portside_session"] = token
        assert await status(thief) == 401


async def test_a_removed_member_and_a_new_password_end_sessions(server: Hosted) -> None:
    user, email = await add_member(server)
    async with new_browser(server) as one, new_browser(server) as two:
        await sign_in(one, email)
        await sign_in(two, email)
        assert await status(two) == 200
        body = {"current": PASSWORD, "new": "another good password"}
        assert (await one.put("/users/me/password", json=body)).status_code == 204
        assert [await status(one), await status(two)] == [200, 401]
        assert (await server.client.delete(f"/orgs/current/members/{user}")).status_code == 204

        assert await status(one) == 401

    assert await server.db.pool.fetchval("select count(*) from sessions where user_id = $1::uuid", user) == 0


@pytest.mark.parametrize(
    "change", ["expires_at = now() - interval '1 second'", "last_used_at = now() - interval '25 hours'"]
)
async def test_a_session_ends_by_itself(server: Hosted, browser: httpx2.AsyncClient, change: str, email: str) -> None:
    await sign_in(browser, email)
    of_user = "where user_id = (select id from users where email = $1)"
    await server.db.pool.execute(f"update sessions set {change} {of_user}", email)
    assert await status(browser) == 401
    await sign_in(browser, email)
    assert await status(browser) == 200
    assert await server.db.pool.fetchval(f"select count(*) from sessions {of_user}", email) == 1


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "evil.example",
        "/x\r\nSet-Cookie: a=b",
        " //evil.example",
        "",
        # Pages of agents, and addresses that sign the browser in as somebody else.
        "/agents/bot/page",
        "/console/../agents/bot/page",
        "/console/%2e%2E/agents/bot",
        "/console/..%2fagents/bot",
        "/consoles",
        "/login/link?token=x",
        "/login/oidc",
        "/docs",
    ],
)
async def test_a_sign_in_leads_nowhere_else(
    server: Hosted, browser: httpx2.AsyncClient, target: str, email: str
) -> None:
    response = await sign_in(browser, email, next=target)
    assert (response.status_code, response.headers["location"]) == (303, "/login")
    signed_in = await browser.get("/login", params={"next": target})
    assert signed_in.status_code == 200
