"""Sign-ins of terminals: what approves one, what a code is good for, and what takes the session away again.

Only a click of a signed-in person approves. A code gives one session once, to the terminal that began; a second use
ends that session. A browser is sent to no other host.
"""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio

from portside.identity.cli_authorizations import MAX_ATTEMPTS
from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")
PASSWORD = "correct horse battery"
SAME = {"sec-fetch-site": "same-origin"}
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
VERIFIER = "v" * 64
BACK = "http://127.0.0.1:45454/callback"
AUTHORIZATION = {
    "response_type": "code",
    "client_id": "portside-cli",
    "redirect_uri": BACK,
    "state": "a" * 43,
    "code_challenge": base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode(),
    "code_challenge_method": "S256",
    "host_name": "laptop",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def terminal(server: Hosted) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without cookies and keys."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=300, headers={"user-agent": "portside/1"}) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def person(server: Hosted) -> AsyncIterator["Person"]:
    """A member with a browser that is signed in."""
    async with httpx2.AsyncClient(base_url=server.url, headers=SAME, timeout=300) as browser:
        email = f"{secrets.token_hex(6)}@example.com"
        body = {"email": email, "password": PASSWORD, "workspaces": [str(server.actor.workspace_id)]}
        response = await server.client.post("/orgs/current/members", json=body)
        opened = Person(browser, email, response.json()["id"])

        await opened.sign_in()
        yield opened


class Person:
    def __init__(self, browser: httpx2.AsyncClient, email: str, user_id: str) -> None:
        self.browser = browser
        self.email = email
        self.user_id = user_id

    async def sign_in(self, target: str = "") -> httpx2.Response:
        form = {"email": self.email, "password": PASSWORD, "next": target}
        return await self.browser.post("/login/password", data=form)

    async def type_code(self, code: str) -> httpx2.Response:
        return await self.browser.post("/device", data={"user_code": code})

    async def decide(self, code: str, decision: str = "approve") -> httpx2.Response:
        return await self.browser.post("/device/decision", data={"user_code": code, "decision": decision})

    async def authorize(self, decision: str = "approve", **changed: str) -> httpx2.Response:
        return await self.browser.post("/oauth/authorize", data=AUTHORIZATION | changed | {"decision": decision})

    async def code(self) -> str:
        """Approve a terminal of the same machine, and return the code that the browser gets."""
        return str(parse_qs(urlsplit((await self.authorize()).headers["location"]).query)["code"][0])


async def begin(terminal: httpx2.AsyncClient, **form: str) -> dict[str, Any]:
    response = await terminal.post("/oauth/device", data={"client_id": "portside-cli", "host_name": "server-7", **form})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    return dict(response.json())


async def poll(terminal: httpx2.AsyncClient, begun: dict[str, Any]) -> httpx2.Response:
    form = {"grant_type": DEVICE_GRANT, "client_id": "portside-cli", "device_code": begun["device_code"]}
    return await terminal.post("/oauth/token", data=form)


async def redeem(terminal: httpx2.AsyncClient, code: str, **changed: str) -> httpx2.Response:
    form = {
        "grant_type": "authorization_code",
        "client_id": "portside-cli",
        "code": code,
        "redirect_uri": BACK,
        "code_verifier": VERIFIER,
    }

    return await terminal.post("/oauth/token", data=form | changed)


async def may_wait_no_longer(server: Hosted) -> None:
    """Let terminals ask again at once."""
    await server.db.pool.execute("update cli_authorizations set poll_after = now() - interval '1 second'")


async def status(terminal: httpx2.AsyncClient, token: str) -> int:
    return (await terminal.get("/auth", headers={"authorization": f"Bearer {token}"})).status_code


async def test_a_terminal_gets_a_session_after_a_click(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    begun = await begin(terminal)
    assert (begun["expires_in"], begun["interval"]) == (600, 5)
    assert re.fullmatch("[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", begun["user_code"])
    assert begun["verification_uri"] == f"{server.url}/device"
    assert (await poll(terminal, begun)).json()["error"] == "authorization_pending"
    page = await person.browser.get(begun["verification_uri_complete"])
    assert f'value="{begun["user_code"]}"' in page.text

    # People type codes as they like.
    shown = await person.type_code(f" {begun['user_code'].replace('-', '').lower()} ")
    for part in ("server-7", "127.0.0.1", person.email):
        assert part in shown.text

    await may_wait_no_longer(server)
    assert (await poll(terminal, begun)).json()["error"] == "authorization_pending"
    assert "Approved" in (await person.decide(begun["user_code"])).text
    await may_wait_no_longer(server)

    response = await poll(terminal, begun)
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
    token = response.json()["access_token"]
    listed = (await person.browser.get("/users/me/sessions")).json()
    (own,) = [found for found in listed if found["kind"] == "bearer"]
    assert (own["method"], own["client"], own["user_email"]) == ("device", "portside/1 on server-7", person.email)
    assert await status(terminal, token) == 200

    assert (await person.browser.delete(f"/users/me/sessions/{own['id']}")).status_code == 204
    assert await status(terminal, token) == 401


async def test_a_terminal_at_another_address_is_shown_with_a_warning(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    begun = await begin(terminal)
    warning = "another address than your browser"
    assert warning not in (await person.type_code(begun["user_code"])).text
    digest = hashlib.sha256(begun["device_code"].encode()).digest()

    await server.db.pool.execute("update cli_authorizations set address = '192.0.2.7' where code_hash = $1", digest)
    shown = (await person.type_code(begun["user_code"])).text
    assert warning in shown
    assert "192.0.2.7" in shown


async def test_codes_are_not_stored(server: Hosted, terminal: httpx2.AsyncClient, person: Person) -> None:
    begun = await begin(terminal)
    code = await person.code()
    stored = await server.db.pool.fetchval("select string_agg(c::text, '') from cli_authorizations c")
    for secret in (begun["device_code"], begun["user_code"], begun["user_code"].replace("-", ""), code):
        assert secret not in stored


async def test_a_terminal_that_asks_too_often_has_to_wait_longer(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    begun = await begin(terminal)
    errors = [(await poll(terminal, begun)).json()["error"] for _ in range(3)]
    assert errors == ["authorization_pending", "slow_down", "slow_down"]
    digest = hashlib.sha256(begun["device_code"].encode()).digest()
    waits = await server.db.pool.fetchval("select interval_s from cli_authorizations where code_hash = $1", digest)
    assert waits == begun["interval"] + 10


async def test_an_expired_or_refused_code_gives_nothing(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    expired = await begin(terminal)
    refused = await begin(terminal)
    digest = hashlib.sha256(expired["device_code"].encode()).digest()
    await server.db.pool.execute("update cli_authorizations set expires_at = now() where code_hash = $1", digest)
    assert (await person.decide(expired["user_code"])).status_code == 400
    await begin(terminal)
    assert (await poll(terminal, expired)).json()["error"] == "expired_token"
    assert "Refused" in (await person.decide(refused["user_code"], "deny")).text

    assert (await person.decide(refused["user_code"])).status_code == 400
    assert (await poll(terminal, refused)).json()["error"] == "access_denied"
    unknown = {"device_code": secrets.token_urlsafe(32)}
    assert (await poll(terminal, unknown)).json()["error"] == "invalid_grant"


async def test_user_codes_cannot_be_guessed(server: Hosted, terminal: httpx2.AsyncClient, person: Person) -> None:
    begun = await begin(terminal)
    guesses = [person.type_code(f"BBBB-BB{first}{second}") for first in "BCDFGH" for second in "BCDFGH"]
    answers = [response.status_code for response in await asyncio.gather(*guesses)]

    # Attempts at the same time may all see each other, and then fewer are looked at.
    assert answers.count(400) <= MAX_ATTEMPTS
    assert answers.count(400) + answers.count(429) == len(answers) == 36

    # Even the right one.
    assert (await person.type_code(begun["user_code"])).status_code == 429
    # Another terminal gives nobody more attempts.
    another = await begin(terminal)
    assert (await person.type_code(another["user_code"])).status_code == 429
    late = await person.decide(begun["user_code"])
    assert (late.status_code, "retry-after" in late.headers) == (429, True)
    assert (await poll(terminal, begun)).json()["error"] == "authorization_pending"

    # Attempts count for ten minutes.
    await server.db.pool.execute("update user_code_attempts set attempted_at = now() - interval '11 minutes'")
    assert (await person.type_code(begun["user_code"])).status_code == 200
    await server.db.pool.execute("delete from user_code_attempts")


async def test_terminals_of_one_address_do_not_fill_the_table(server: Hosted, terminal: httpx2.AsyncClient) -> None:
    form = {"client_id": "portside-cli"}
    await server.db.pool.execute("delete from cli_authorizations")
    answers = [(await terminal.post("/oauth/device", data=form)).status_code for _ in range(40)]
    assert answers == [200] * 30 + [429] * 10

    # What was decided, or has expired, waits no more.
    one = "where id = (select id from cli_authorizations where decision is null and expires_at > now() limit 1)"
    for change in ("decision = 'denied'", "expires_at = now()"):
        await server.db.pool.execute(f"update cli_authorizations set {change} {one}")
        assert [(await terminal.post("/oauth/device", data=form)).status_code for _ in range(2)] == [200, 429]

    await server.db.pool.execute("delete from cli_authorizations")


async def test_pages_lead_through_the_sign_in_and_back(server: Hosted, person: Person) -> None:
    for page in (f"/oauth/authorize?{httpx2.QueryParams(AUTHORIZATION)}", "/device?user_code=BCDF-GHJK"):
        await person.browser.post("/login/out")
        response = await person.browser.get(page)
        assert response.status_code == 303
        parts = urlsplit(response.headers["location"])
        assert (parts.scheme, parts.netloc, parts.path) == ("", "", "/login")
        back = (await person.sign_in(parse_qs(parts.query)["next"][0])).headers["location"]
        assert urlsplit(back).path == urlsplit(page).path

        assert parse_qs(urlsplit(back).query) == parse_qs(urlsplit(page).query)
        assert (await person.browser.get(back)).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "null"}, {}]
)
async def test_other_sites_approve_nothing(
    terminal: httpx2.AsyncClient, person: Person, headers: dict[str, str]
) -> None:
    begun = await begin(terminal)
    del person.browser.headers["sec-fetch-site"]
    forms = {
        "/device": {"user_code": begun["user_code"]},
        "/device/decision": {"user_code": begun["user_code"], "decision": "approve"},
        "/oauth/authorize": AUTHORIZATION | {"decision": "approve"},
    }

    for path, form in forms.items():
        assert (await person.browser.post(path, data=form, headers=headers)).status_code == 403

    approving = AUTHORIZATION | {"decision": "approve"}
    seen = await person.browser.get("/oauth/authorize", params=approving, headers=headers)
    assert (seen.status_code, "location" in seen.headers) == (200, False)
    assert "frame-ancestors 'none'" in seen.headers["content-security-policy"]
    assert (await poll(terminal, begun)).json()["error"] == "authorization_pending"


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/callback",
        "http://127.0.0.1:45454@evil.example/callback",
        "//evil.example/callback",
        "http://127.0.0.1:45454.evil.example/callback",
        "http://127.0.0.1:45454/callback/../x",
        "javascript:alert(1)",
        "http://127.0.0.1:45454/callback?x=1",
        "http://127.0.0.1:45454/callback#x",
        "http://127.0.0.1/callback",
        "",
        "http://127.0.0.1:45454/callback\n",
        "http://127.0.0.1:45454/callback\r\nSet-Cookie: a=b",
        "http://localhost:45454/callback",
        "http://evil.example:45454/callback",
        "http://127.0.0.1:0/callback",
        "HTTP://127.0.0.1:45454/callback",
    ],
)
async def test_a_browser_is_sent_to_no_other_host(person: Person, target: str) -> None:
    shown = await person.browser.get("/oauth/authorize", params=AUTHORIZATION | {"redirect_uri": target})
    for decision in ("approve", "deny"):
        response = await person.authorize(decision, redirect_uri=target)
        assert (response.status_code, "location" in response.headers) == (422, False)

    assert (shown.status_code, "location" in shown.headers) == (422, False)


@pytest.mark.parametrize(
    "changed",
    [
        {"client_id": "other"},
        {"code_challenge_method": "plain"},
        {"code_challenge": "short"},
        {"response_type": "token"},
        {"state": "short"},
        {"host_name": "<b>evil</b>"},
    ],
)
async def test_a_request_without_its_proofs_is_refused(person: Person, changed: dict[str, str]) -> None:
    assert (await person.authorize(**changed)).status_code == 422


async def test_a_browser_brings_a_code_to_its_own_machine(terminal: httpx2.AsyncClient, person: Person) -> None:
    shown = await person.browser.get("/oauth/authorize", params=AUTHORIZATION)
    assert "form-action 'self' http://127.0.0.1:45454;" in shown.headers["content-security-policy"]

    for part in ("laptop", "127.0.0.1", person.email):
        assert part in shown.text

    denied = urlsplit((await person.authorize("deny")).headers["location"])
    assert parse_qs(denied.query) == {"error": ["access_denied"], "state": ["a" * 43]}
    approved = await person.authorize()
    parts = urlsplit(approved.headers["location"])
    assert (approved.status_code, f"{parts.scheme}://{parts.netloc}{parts.path}") == (303, BACK)
    query = parse_qs(parts.query)
    assert query["state"] == ["a" * 43]

    response = await redeem(terminal, query["code"][0])
    assert await status(terminal, response.json()["access_token"]) == 200


async def test_a_code_that_comes_twice_ends_its_session(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    code = await person.code()
    begun = await begin(terminal)
    await person.decide(begun["user_code"])
    tokens = [(await response).json()["access_token"] for response in (redeem(terminal, code), poll(terminal, begun))]
    assert [await status(terminal, token) for token in tokens] == [200, 200]
    again = [await redeem(terminal, code), await poll(terminal, begun)]
    assert [response.json()["error"] for response in again] == ["invalid_grant", "invalid_grant"]

    assert [await status(terminal, token) for token in tokens] == [401, 401]


async def test_two_concurrent_exchanges_leave_no_session(terminal: httpx2.AsyncClient, person: Person) -> None:
    code = await person.code()
    responses = await asyncio.gather(*(redeem(terminal, code) for _ in range(5)))
    (token,) = [response.json()["access_token"] for response in responses if response.status_code == 200]
    assert await status(terminal, token) == 401


@pytest.mark.parametrize(
    "changed",
    [
        {"code_verifier": "w" * 64},
        {"code_verifier": ""},
        {"code_verifier": "ö"},
        {"redirect_uri": "http://127.0.0.1:45455/callback"},
        {"redirect_uri": ""},
    ],
)
async def test_stolen_code_is_invalidated_and_gives_no_session(
    terminal: httpx2.AsyncClient, person: Person, changed: dict[str, str]
) -> None:
    code = await person.code()
    assert (await redeem(terminal, code, **changed)).json()["error"] == "invalid_grant"
    assert (await redeem(terminal, code)).json()["error"] == "invalid_grant"


async def test_codes_of_one_flow_are_refused_in_the_other(terminal: httpx2.AsyncClient, person: Person) -> None:
    code = await person.code()
    begun = await begin(terminal)
    await person.decide(begun["user_code"])
    assert (await poll(terminal, {"device_code": code})).json()["error"] == "invalid_grant"
    assert (await redeem(terminal, begun["device_code"])).json()["error"] == "invalid_grant"
    assert (await redeem(terminal, begun["user_code"])).json()["error"] == "invalid_grant"
    assert (await poll(terminal, {"device_code": begun["user_code"]})).json()["error"] == "invalid_grant"

    assert [(await redeem(terminal, code)).status_code, (await poll(terminal, begun)).status_code] == [200, 200]


async def test_an_authorization_code_expires(server: Hosted, terminal: httpx2.AsyncClient, person: Person) -> None:
    before = datetime.now(UTC)
    code = await person.code()
    digest = hashlib.sha256(code.encode()).digest()
    ends = await server.db.pool.fetchval("select expires_at from cli_authorizations where code_hash = $1", digest)
    assert before <= ends - timedelta(seconds=60) <= datetime.now(UTC)
    await server.db.pool.execute("update cli_authorizations set expires_at = now() where code_hash = $1", digest)
    assert (await redeem(terminal, code)).json()["error"] == "invalid_grant"


async def test_a_removed_member_loses_terminals_and_codes(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    used = await person.code()
    unused = await person.code()
    begun = await begin(terminal)
    await person.decide(begun["user_code"])

    token = (await redeem(terminal, used)).json()["access_token"]
    assert await status(terminal, token) == 200
    await server.client.delete(f"/orgs/current/members/{person.user_id}")
    assert await status(terminal, token) == 401
    refused = [await redeem(terminal, unused), await poll(terminal, begun)]
    assert [response.json()["error"] for response in refused] == ["invalid_grant", "invalid_grant"]


async def test_a_new_password_ends_terminals_and_codes(terminal: httpx2.AsyncClient, person: Person) -> None:
    used = await person.code()
    unused = await person.code()
    token = (await redeem(terminal, used)).json()["access_token"]
    body = {"current": PASSWORD, "new": "another good password"}
    assert (await person.browser.put("/users/me/password", json=body)).status_code == 204
    assert await status(terminal, token) == 401
    assert (await redeem(terminal, unused)).json()["error"] == "invalid_grant"


async def test_the_session_of_a_key_gives_terminals_no_more_than_the_key(
    server: Hosted, terminal: httpx2.AsyncClient, person: Person
) -> None:
    limited = await person.browser.post("/api-key/current", json={"permissions": ["organization:read"]})
    full = (await person.browser.post("/api-key/current", json={})).json()
    await person.browser.post("/login/key", data={"key": limited.json()["key"]})
    begun = await begin(terminal)

    refused = [
        await person.authorize(),
        await person.type_code(begun["user_code"]),
        await person.decide(begun["user_code"]),
    ]

    assert [(response.status_code, "location" in response.headers) for response in refused] == [(403, False)] * 3
    await person.browser.post("/login/key", data={"key": full["key"]})
    token = (await redeem(terminal, await person.code())).json()["access_token"]
    assert await status(terminal, token) == 200
    await person.sign_in()
    await person.browser.delete(f"/api-key/current/{full['id']}")
    assert await status(terminal, token) == 401


async def test_the_token_of_a_terminal_approves_nothing(terminal: httpx2.AsyncClient, person: Person) -> None:
    token = (await redeem(terminal, await person.code())).json()["access_token"]
    headers = {"authorization": f"Bearer {token}", **SAME}
    begun = await begin(terminal)
    form = {"user_code": begun["user_code"], "decision": "approve"}
    response = await terminal.post("/device/decision", data=form, headers=headers)
    assert (response.status_code, response.headers["location"].startswith("/login")) == (303, True)
    cookie = {"cookie": f"portside_session={token}", **SAME}
    response = await terminal.post("/device/decision", data=form, headers=cookie)
    assert (response.status_code, response.headers["location"].startswith("/login")) == (303, True)

    assert (await poll(terminal, begun)).json()["error"] == "authorization_pending"
