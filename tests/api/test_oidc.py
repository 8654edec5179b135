"""Sign-in with OpenID Connect: at a certified provider, and at hostile ones.

Only a token that this provider signed for this client and this browser's sign-in makes a session, and only for people
with verified e-mails of allowed domains. Groups give roles at each sign-in.
"""

import base64
import dataclasses
import hmac
import json
import os
import re
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlsplit

import httpx2
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from portside.identity import oidc
from portside.identity.oidc import OidcClient, OidcProvider, OidcRefused, OidcUnavailable, ProviderReturn
from portside.identity.provisioning import AdmissionRules
from portside.identity.services import OidcSignIn
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import UserMistake
from tests.api.hosted import Hosted, open_hosted
from tests.node_packages import SCRIPTS, install_packages

pytestmark = pytest.mark.asyncio(loop_scope="module")
CLIENT = "portside"
SECRET = "a secret: of 100% strange & characters"
# The provider knows where to send browsers back before our server has a port; the tests rewrite the port.
BACK = "http://127.0.0.1/login/oidc/callback"
ROLES = {"admins": "Organization Admin", "devs": "Editor", "support": "Viewer"}


def build_rules(**changed: str) -> AdmissionRules:
    given = {
        "domains": "example.com, Example.org",
        "groups_claim": "groups",
        "role_map": json.dumps(ROLES),
        "default_role": "none",
        **changed,
    }

    return AdmissionRules.read(**given)


@pytest.fixture(scope="module", autouse=True)
def _time_for_the_provider() -> Iterator[None]:
    """Wait longer for answers of the provider than the 10 s of the product: it may share a busy machine."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(oidc, "RULES", dataclasses.replace(oidc.RULES, timeout_s=100))
        yield


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    folder = install_packages()
    shutil.copy(SCRIPTS / "oidc.mjs", folder / "oidc.mjs")

    command = ["node", "oidc.mjs", CLIENT, SECRET, BACK]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as node:
        assert node.stdout is not None
        yield node.stdout.readline().strip()
        node.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str, issuer: str) -> AsyncIterator[Hosted]:
    provider = OidcProvider(OidcClient(issuer, CLIENT, SECRET), SecretBox(os.urandom(32)))
    async with open_hosted(platform_database, oidc=OidcSignIn(provider, build_rules())) as running:
        yield running


class Browser:
    """Follows redirects by hand. The host has no port, as the provider knows it; requests go to the real one."""

    def __init__(self, server: Hosted) -> None:
        self.client = httpx2.AsyncClient(timeout=300, headers={"sec-fetch-site": "same-origin"})
        self.server = server

    async def go(self, method: str, url: str, **request: Any) -> httpx2.Response:
        target = httpx2.URL(url)
        headers = {}
        if target.port is None:
            headers = {"host": "127.0.0.1"}
            target = target.copy_with(port=httpx2.URL(self.server.url).port)

        return await self.client.request(method, target, headers=headers, **request)

    async def start(self, target: str = "/console/x") -> str:
        response = await self.go("GET", f"http://127.0.0.1/login/oidc?next={target}")
        assert response.status_code == 303, response.text
        name, *attributes = response.headers["set-cookie"].split("; ")
        assert name.startswith("portside_oidc=")
        assert set(attributes) == {"Path=/", "Max-Age=600", "HttpOnly", "SameSite=Lax"}
        return response.headers["location"]

    async def log_in(self, url: str, person: str) -> str:
        """Log in at the provider and consent; the address that it sends the browser back to.

        The person is written as "subject email verified group,group".
        """
        subject, email, verified, groups = person.split(" ")
        claims = {"email": email, "email_verified": verified == "true", "groups": groups.split(",")}
        await self.client.put(str(httpx2.URL(url).join(f"/{subject}")), json=claims)

        for _ in range(10):
            response = await self.go("GET", url)
            if form := re.search(r'<form[^>]*action="([^"]+)"', response.text):
                prompt = re.search(r'name="prompt" value="(\w+)"', response.text)
                fields = {"prompt": prompt[1] if prompt else "login", "login": subject, "password": "x"}
                response = await self.go("POST", str(httpx2.URL(url).join(form[1])), data=fields)

            url = str(httpx2.URL(url).join(response.headers["location"]))
            if url.startswith(BACK):
                return url

        raise AssertionError(url)

    async def sign_in(self, person: str) -> httpx2.Response:
        self.client.cookies.clear()
        return await self.go("GET", await self.log_in(await self.start(), person))

    async def auth(self) -> httpx2.Response:
        return await self.go("GET", "http://127.0.0.1/auth", params={})


@pytest_asyncio.fixture(loop_scope="module")
async def browser(server: Hosted) -> AsyncIterator[Browser]:
    opened = Browser(server)
    yield opened
    await opened.client.aclose()


async def read_roles(server: Hosted, email: str) -> tuple[str | None, str | None]:
    """Return the roles of a member in the organization and in the first workspace."""
    roles = []
    for path in ("/orgs/current/members", "/workspaces/current/members"):
        members = (await server.client.get(path)).json()
        roles.append(next((found["role_name"] for found in members if found["email"] == email), None))

    return roles[0], roles[1]


async def test_groups_that_are_no_texts_give_no_role() -> None:
    rules = build_rules(default_role="Viewer")
    assert [grant.role for grant in rules.get_grants({"groups": [{"name": "devs"}, ["devs"], 7, "devs"]})] == ["Editor"]
    for groups in ([{"name": "devs"}], {"devs": True}, 7):
        assert [grant.role for grant in rules.get_grants({"groups": groups})] == ["Viewer"]


async def test_a_person_becomes_a_member_with_the_roles_of_the_groups(server: Hosted, browser: Browser) -> None:
    assert "Continue with 127.0.0.1" in (await browser.go("GET", "http://127.0.0.1/login")).text
    response = await browser.sign_in("ann ann@example.com true devs,others")
    assert "portside_oidc=; Path=/; Max-Age=0" in "\n".join(response.headers.get_list("set-cookie"))
    assert (response.status_code, response.headers["location"]) == (303, "/console/x")
    assert (await browser.auth()).json()["user_email"] == "ann@example.com"
    assert await read_roles(server, "ann@example.com") == ("Organization User", "Editor")
    (own,) = (await browser.go("GET", "http://127.0.0.1/users/me/sessions")).json()
    assert own["method"] == "oidc"

    assert (await browser.sign_in("ann ann@example.com true support,devs,admins")).status_code == 303
    assert await read_roles(server, "ann@example.com") == ("Organization Admin", "Editor")

    # The subject is the person, whatever the e-mail is by now.
    await browser.sign_in("ann new@example.com true support")
    assert await read_roles(server, "ann@example.com") == ("Organization User", "Viewer")
    assert await read_roles(server, "new@example.com") == (None, None)
    refused = await browser.sign_in("ann ann@example.com true others")
    assert (refused.status_code, "None of your groups" in refused.text) == (403, True)
    assert await read_roles(server, "ann@example.com") == ("Organization User", None)


async def test_an_added_member_is_found_by_email_once(server: Hosted, browser: Browser) -> None:
    added = (await server.client.post("/orgs/current/members", json={"email": "Bob@example.com"})).json()
    assert (await browser.sign_in("bob bob@example.com true devs")).status_code == 303
    assert (await browser.auth()).json()["user_id"] == added["id"]
    refused = await browser.sign_in("mallory bob@example.com true devs")
    assert (refused.status_code, "another account" in refused.text) == (403, True)
    assert "portside_session" not in browser.client.cookies


@pytest.mark.parametrize("role", ["Organization Operator", "Organization Admin"])
async def test_first_sign_in_ends_what_others_know_of_the_account(server: Hosted, browser: Browser, role: str) -> None:
    """Whoever added a member with a password must not get the roles of the person. An admin has them already."""
    name = role.split()[1].lower()
    (workspace, *_) = (await server.client.get("/workspaces")).json()
    body = {
        "email": f"{name}@example.com",
        "password": "known to others",
        "role_id": role,
        "workspaces": [workspace["id"]],
    }

    added = await server.client.post("/orgs/current/members", json=body)
    assert added.status_code == 200, added.text

    async def log_in() -> httpx2.Response:
        credentials = {"email": body["email"], "password": body["password"]}
        return await server.client.post("/login", json=credentials)

    token = {"authorization": f"Bearer {(await log_in()).json()['access_token']}", "x-api-key": ""}
    response = await server.client.post("/api-key/current", json={"description": "mine"}, headers=token)
    assert response.status_code == 200, response.text
    key = {"x-api-key": response.json()["key"]}
    assert (await browser.sign_in(f"{name} {name}@example.com true admins")).status_code == 303
    assert await read_roles(server, body["email"]) == ("Organization Admin", None)
    keeps = 200 if name == "admin" else 401
    assert (await log_in()).status_code == keeps

    for credential in (token, key):
        assert (await server.client.get("/auth", headers=credential)).status_code == keeps

    assert (await browser.auth()).status_code == 200


async def test_a_removed_member_does_not_come_back_alone(server: Hosted, browser: Browser) -> None:
    await browser.sign_in("eve eve@example.com true devs")
    user = (await browser.auth()).json()["user_id"]
    assert (await server.client.delete(f"/orgs/current/members/{user}")).status_code == 204
    assert (await browser.auth()).status_code == 401
    refused = await browser.sign_in("eve eve@example.com true devs")
    assert (refused.status_code, "You were removed" in refused.text) == (403, True)
    await server.client.post("/orgs/current/members", json={"email": "eve@example.com"})

    assert (await browser.sign_in("eve eve@example.com true devs")).status_code == 303


@pytest.mark.parametrize(
    ("person", "reason"),
    [
        ("uma uma@example.com false devs", "not verified"),
        ("fay fay@evil.example true devs", "of this domain"),
        ("sub sub@notexample.com true devs", "of this domain"),
        ("two two@example.com@evil.example true devs", "no valid e-mail address"),
        ("non non@example.com true others", "None of your groups"),
    ],
)
async def test_sign_in_is_refused_with_its_reason(server: Hosted, browser: Browser, person: str, reason: str) -> None:
    refused = await browser.sign_in(person)
    assert (refused.status_code, reason in refused.text) == (403, True), refused.text
    assert (await browser.auth()).status_code == 401
    emails = [found["email"] for found in (await server.client.get("/orgs/current/members")).json()]
    assert person.split()[1] not in emails


async def test_a_sign_in_ends_in_the_browser_where_it_began(server: Hosted, browser: Browser) -> None:
    back = await browser.log_in(await browser.start(), "cat cat@example.com true devs")
    thief = Browser(server)
    for cookie in ("", "x", "!", "A" * 4000):
        thief.client.headers["cookie"] = f"portside_oidc={cookie}"
        assert (await thief.go("GET", back)).status_code == 401

    del thief.client.headers["cookie"]
    # The thief has a sign-in of its own, and the state of the victim: or the state of its own, and the victim's code.
    own_state = parse_qs(urlsplit(await thief.start()).query)["state"][0]
    assert (await thief.go("GET", back)).status_code == 401
    await thief.start()

    stolen = str(httpx2.URL(back).copy_set_param("state", own_state))
    assert (await thief.go("GET", stolen)).status_code == 401
    assert "portside_session" not in thief.client.cookies
    await thief.client.aclose()
    assert (await browser.go("GET", back)).status_code == 303

    # A code works once.
    assert (await browser.go("GET", back)).status_code == 401


async def test_a_sign_in_at_the_provider_leads_nowhere_else(browser: Browser) -> None:
    start = await browser.start("//evil.example")
    back = await browser.log_in(start, "dan dan@example.com true devs")
    assert (await browser.go("GET", back)).headers["location"] == "/login"
    refused = await browser.go("GET", f"{BACK}?error=access_denied&state=x")
    assert refused.status_code == 401


class Hostile:
    """A provider that signs what a test tells it to."""

    def __init__(self) -> None:
        self.keys = [RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})]
        self.id_token = ""
        self.user_info: dict[str, Any] = {}
        self.redeemed: tuple[dict[str, str], str | None] = ({}, None)
        self.reads = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/jwks":
                    provider.reads += 1
                    self.answer({"keys": [key.as_dict(private=False) for key in provider.keys]})
                elif self.path == "/userinfo":
                    self.answer(provider.user_info)
                else:
                    self.answer(provider.metadata)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                provider.redeemed = form, self.headers["authorization"]
                self.answer({"id_token": provider.id_token, "access_token": "x", "token_type": "Bearer"})

            def answer(self, body: Any) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        self.metadata = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
        }

        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "s", "aud": CLIENT, "iat": now, "exp": now + 300, **changed}
        return {name: value for name, value in claims.items() if value is not None}

    def sign(self, claims: dict[str, Any], **header: str) -> str:
        return jwt.encode({"alg": "RS256", "kid": "one", **header}, claims, self.keys[-1], algorithms=["RS256"])


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    provider = Hostile()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


async def finish(hostile: Hostile, **changed: Any) -> dict[str, Any]:
    """Sign in at the hostile provider; `token` or the claims say what it gives for the code."""
    provider = OidcProvider(OidcClient(hostile.issuer, CLIENT, SECRET), SecretBox(os.urandom(32)))
    start = await provider.begin(BACK, "/x")
    query = {name: values[0] for name, values in parse_qs(urlsplit(start.url).query).items()}
    token = changed.pop("token", None)
    named = changed.pop("returned_iss", "")
    hostile.id_token = token or hostile.sign(hostile.claims(**{"nonce": query["nonce"], **changed}))

    return (await provider.finish(start.cookie, ProviderReturn(state=query["state"], code="c", iss=named))).claims


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"nonce": "another"}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"aud": "another-client"}, "another client"),
        ({"aud": [CLIENT, "another-client"]}, "another client"),
        ({"aud": [CLIENT, "another-client"], "azp": "another-client"}, "another client"),
        ({"azp": "another-client"}, "another client"),
        ({"aud": []}, "another client"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "lacks a claim"),
        ({"exp": "never"}, "lacks a claim"),
        ({"iat": 2**40}, "not valid yet"),
        ({"nbf": 2**40}, "not valid yet"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"sub": ""}, "lacks a claim"),
        ({"sub": None}, "lacks a claim"),
    ],
)
async def test_a_token_with_wrong_claims(hostile: Hostile, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(OidcRefused, match=reason):
        await finish(hostile, **changed)


@pytest.mark.parametrize(
    ("secret", "methods", "fields", "is_basic"),
    [
        (SECRET, None, {}, True),
        (SECRET, ["client_secret_post", "client_secret_basic"], {}, True),
        (SECRET, ["client_secret_post"], {"client_id": CLIENT, "client_secret": SECRET}, False),
        (None, ["client_secret_basic"], {"client_id": CLIENT}, False),
    ],
)
async def test_code_is_redeemed_with_the_verifier_and_the_secret_in_one_place(
    hostile: Hostile, secret: str | None, methods: list[str] | None, fields: dict[str, str], *, is_basic: bool
) -> None:
    kept = dict(hostile.metadata)
    if methods is not None:
        hostile.metadata["token_endpoint_auth_methods_supported"] = methods

    try:
        provider = OidcProvider(OidcClient(hostile.issuer, CLIENT, secret), SecretBox(os.urandom(32)))
        start = await provider.begin(BACK, "/x")
        query = {name: values[0] for name, values in parse_qs(urlsplit(start.url).query).items()}
        hostile.id_token = hostile.sign(hostile.claims(nonce=query["nonce"]))
        await provider.finish(start.cookie, ProviderReturn(state=query["state"], code="c"))
    finally:
        hostile.metadata = kept

    form, authorization = hostile.redeemed
    assert query["code_challenge_method"] == "S256"
    assert oidc.to_challenge(form.pop("code_verifier")) == query["code_challenge"]
    assert form == {"grant_type": "authorization_code", "code": "c", "redirect_uri": BACK, **fields}
    pair = base64.b64encode(f"{quote_plus(CLIENT)}:{quote_plus(SECRET)}".encode()).decode()
    assert authorization == (f"Basic {pair}" if is_basic else None)


async def test_response_of_another_provider_is_refused(hostile: Hostile) -> None:
    assert (await finish(hostile, returned_iss=hostile.issuer))["sub"] == "s"
    with pytest.raises(OidcRefused, match="from another provider"):
        await finish(hostile, returned_iss="https://evil.example")


async def test_sign_in_that_takes_too_long_is_refused(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert oidc.FLOW_S == 600
    monkeypatch.setattr(oidc, "FLOW_S", -1)
    with pytest.raises(OidcRefused, match="took too long"):
        await finish(hostile)


async def test_email_of_the_user_info_counts_for_the_same_person_alone(hostile: Hostile) -> None:
    """And what the token says comes before it."""
    hostile.metadata["userinfo_endpoint"] = f"{hostile.issuer}/userinfo"
    try:
        hostile.user_info = {
            "sub": "s",
            "email": "ann@example.com",
            "groups": ["admins"],
            "iss": "https://evil.example",
        }
        claims = await finish(hostile, groups=["devs"])
        assert (claims["email"], claims["groups"], claims["iss"]) == ("ann@example.com", ["devs"], hostile.issuer)
        assert (await finish(hostile, email="own@example.com"))["email"] == "own@example.com"

        for subject in ("another", None):
            hostile.user_info["sub"] = subject
            with pytest.raises(OidcRefused, match="different users"):
                await finish(hostile)
    finally:
        del hostile.metadata["userinfo_endpoint"]


async def test_a_right_token_and_a_rotated_key(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than a busy machine takes to the second token.
    monkeypatch.setattr(oidc, "RENEW_S", 600.0)
    assert (await finish(hostile))["sub"] == "s"
    assert (await finish(hostile, aud=[CLIENT, "other"], azp=CLIENT))["sub"] == "s"
    provider = OidcProvider(OidcClient(hostile.issuer, CLIENT, SECRET), SecretBox(os.urandom(32)))
    await provider.verify(hostile.sign(hostile.claims(nonce="n")), "n")
    hostile.keys.append(RSAKey.generate_key(2048, {"kid": "two", "use": "sig"}))

    rotated = hostile.sign(hostile.claims(nonce="n"), kid="two")
    reads = hostile.reads

    # Tokens with invented keys do not make us read the provider's keys again and again.
    with pytest.raises(OidcRefused, match="unknown key"):
        await provider.verify(rotated, "n")

    assert hostile.reads == reads
    monkeypatch.setattr(oidc, "RENEW_S", 0.0)
    assert (await provider.verify(rotated, "n"))["sub"] == "s"
    hostile.keys.pop()


def build_unsigned_token(claims: dict[str, Any], header: dict[str, str]) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, claims))
    return ".".join(parts) + "."


async def test_a_token_that_the_provider_did_not_sign(hostile: Hostile) -> None:
    claims = hostile.claims(nonce="n")
    provider = OidcProvider(OidcClient(hostile.issuer, CLIENT, SECRET), SecretBox(os.urandom(32)))
    public = hostile.keys[0].as_pem(private=False)
    foreign = RSAKey.generate_key(2048, {"kid": "one"})
    right = hostile.sign(claims)

    forged = [
        build_unsigned_token(claims, {"alg": "none"}),
        build_unsigned_token(claims, {"alg": "none", "kid": "one"}),
        build_unsigned_token(claims, {"alg": "RS256", "kid": "one"}),
        jwt.encode({"alg": "HS256", "kid": "one"}, claims, OctKey.import_key(SECRET), algorithms=["HS256"]),
        sign_with_public_key(claims, public),
        jwt.encode({"alg": "RS256", "kid": "one"}, claims, foreign, algorithms=["RS256"]),
        right[:-8] + ("A" * 8),
        "",
        "x",
        "a.b.c",
        "." * 4,
    ]

    for token in forged:
        with pytest.raises(OidcRefused):
            await provider.verify(token, "n")

    assert (await provider.verify(right, "n"))["sub"] == "s"


def sign_with_public_key(claims: dict[str, Any], public: bytes) -> str:
    """Sign with the provider's public key as a shared secret, which careless libraries accept."""
    head = build_unsigned_token(claims, {"alg": "HS256", "kid": "one"}).removesuffix(".")
    signature = hmac.digest(public, head.encode(), "sha256")
    return f"{head}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": None},
    ],
)
async def test_metadata_that_lead_elsewhere(hostile: Hostile, changed: dict[str, Any]) -> None:
    kept = dict(hostile.metadata)
    hostile.metadata.update(changed)
    try:
        with pytest.raises(OidcUnavailable):
            await finish(hostile)
    finally:
        hostile.metadata = kept


async def test_a_provider_whose_name_is_unknown() -> None:
    """The operator gave the name, not the person who signs in."""
    client = OidcClient(f"https://{'a' * 64}.example", CLIENT, SECRET)
    with pytest.raises(OidcUnavailable, match="is not the name of any host"):
        await OidcProvider(client, SecretBox(os.urandom(32))).begin(BACK, "/x")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"domains": ""}, "OIDC_ALLOWED_DOMAINS"),
        ({"role_map": "[]"}, "OIDC_ROLE_MAP"),
        ({"role_map": '{"a": "King"}'}, "OIDC_ROLE_MAP"),
        ({"default_role": "team/Organization Admin"}, "OIDC_DEFAULT_ROLE"),
    ],
)
async def test_settings_that_are_refused(changed: dict[str, str], named: str) -> None:
    with pytest.raises(UserMistake, match=named):
        build_rules(**changed)

    with pytest.raises(UserMistake, match="OIDC_ISSUER"):
        OidcProvider(OidcClient("http://provider.example", CLIENT), SecretBox(secrets.token_bytes(32)))
