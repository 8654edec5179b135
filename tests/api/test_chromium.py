"""A real Chromium: people sign in and approve terminals with it, and pages of agents attack the platform from it.

A page of an agent, below /agents/ or on a host of the same domain, gets nothing of the platform's session, whatever its
scripts try.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser import NEEDS_CHROMIUM, enter_password, open_chromium, open_page
from tests.fronted import Fronted, start_fronted
from tests.platforms import PASSWORD

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900), NEEDS_CHROMIUM]
EMAIL = "ann@example.com"
DOMAIN = "portside.test"

# What a hostile page tries. Each attempt tells what it got, or the name of the exception.
HOSTILE = """<!doctype html><title>hostile</title><script>
const JSON_BODY = {'Content-Type': 'application/json'}
const attempt = async (step) => { try { return await step() } catch (error) { return error.name } }
const get = async (path, more) => {
  const answer = await fetch(new URL(path, ORIGIN), {credentials: 'include', ...more})
  return answer.status + ' ' + await answer.text()
}
const framed = (path) => new Promise((done) => {
  const frame = document.createElement('iframe')
  frame.onload = () => done(attempt(() => frame.contentDocument ? frame.contentDocument.body.innerText : 'null'))
  frame.src = new URL(path, ORIGIN)
  document.body.append(frame)
})
const run = async () => ({
  origin: self.origin,
  cookie: await attempt(() => document.cookie),
  setCookie: await attempt(() => { document.cookie = 'portside_session=evil; Path=/'; return 'set' }),
  storage: await attempt(() => localStorage.setItem('a', 'b')),
  read: await attempt(() => get('/auth')),
  list: await attempt(() => get('/users/me/sessions')),
  change: await attempt(() => get('/api-key', {method: 'POST', body: '{}', mode: 'no-cors'})),
  json: await attempt(() => get('/api-key', {method: 'POST', body: '{}', headers: JSON_BODY})),
  token: await attempt(() => get('/v2/deployments', {headers: {'X-Tenant-Id': 'x'}})),
  frame: await framed('/login'),
  data: await framed('/auth'),
  popup: await attempt(() => String(window.open('/login'))),
  worker: await attempt(() => navigator.serviceWorker.register('worker.js', {scope: './'}).then(() => 'registered')),
  rootWorker: await attempt(() => navigator.serviceWorker.register('/agents/hostile/worker.js', {scope: '/'})
    .then(() => 'registered')),
})
</script><body></body>"""
FORM = """<!doctype html><form method="post" action="ACTION"><input name="user_code" value="CODE">
<input name="decision" value="approve"><button>Win</button></form>"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, platform_database: str) -> Iterator[Fronted]:
    with start_fronted(tmp_path_factory.mktemp("home") / "portside", platform_database) as opened:
        add_member(opened)
        with opened.real_agent("hostile", platform_database, **custom_app(tmp_path_factory.mktemp("app"), opened.url)):
            yield opened


def add_member(platform: Fronted) -> None:
    workspace = platform.call("GET", "/auth")["tenant_id"]
    platform.call("POST", "/orgs/current/members", email=EMAIL, password=PASSWORD, workspaces=[workspace])


def custom_app(folder: Path, origin: str) -> dict[str, str]:
    """Write the web application of an agent that attacks the platform, and return the settings that serve it."""
    page = HOSTILE.replace("ORIGIN", json.dumps(origin))
    (folder / "hostile.py").write_text(
        f"""
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

COOKIES = ("portside_session=evil; Path=/", "__Host-portside_session=evil; Path=/; Secure")


def answer(text, kind="text/html"):
    response = Response(text, media_type=kind)
    response.raw_headers += [(b"set-cookie", cookie.encode()) for cookie in COOKIES]
    response.headers["service-worker-allowed"] = "/"
    response.headers["content-security-policy"] = "default-src * 'unsafe-inline'"
    return response


async def page(_request):
    return answer({page!r})


async def form(request):
    text = {FORM!r}.replace("ACTION", {origin!r} + request.query_params["to"])
    return answer(text.replace("CODE", request.query_params.get("code", "")))


async def worker(_request):
    return answer("self.addEventListener('fetch', () => {{}})", "text/javascript")


app = Starlette(routes=[Route("/page", page), Route("/form", form), Route("/worker.js", worker)])
"""
    )

    return {"LANGGRAPH_HTTP": json.dumps({"app": f"{folder}/hostile.py:app"}), "LANGGRAPH_AUTH": "{}"}


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with open_chromium() as browser, open_page(browser) as opened:
        yield opened


async def cookies(page: Page, url: str) -> dict[str, str]:
    """Return the cookies that the browser would send with a request, also those that no script can read."""
    return {each["name"]: each["value"] for each in await page.context.cookies(url)}


async def account(page: Page, url: str) -> str:
    """Return what the platform knows of the browser, on a page of its origin that may send requests."""
    await page.goto(f"{url}/ok")
    return str(await page.evaluate("fetch('/auth').then(async (answer) => answer.status + ' ' + await answer.text())"))


@asynccontextmanager
async def login(url: str, config: Path, *arguments: str, pattern: str, **environment: str) -> AsyncIterator[Any]:
    """Run `portside login`; yields the process, and what the pattern's group matches in what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "portside",
        "login",
        url,
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_CONFIG_HOME": str(config), **environment},
    )

    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = (await process.stderr.readline()).decode()
            assert line, "the command ended"
            found = re.search(pattern, line)

        yield process, found[1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_person_signs_in_and_approves_a_terminal_elsewhere(platform: Fronted, page: Page, tmp_path: Path):
    async with login(platform.url, tmp_path, "--device", pattern=r"or open (\S+)") as (process, link):
        await page.goto(link)
        await expect(page.get_by_text("Sign in to Portside")).to_be_visible()
        await page.get_by_label("E-mail").fill(EMAIL)
        await page.get_by_label("Password").fill("wrong")
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.get_by_text("The email or the password is wrong.")).to_be_visible()
        await enter_password(page, EMAIL)

        await expect(page.get_by_text("Enter the code")).to_be_visible()
        assert await page.evaluate("document.cookie") == ""
        await page.locator("form[action='/device'] button").click()
        await expect(page.get_by_text(EMAIL)).to_be_visible()
        await expect(page.get_by_text("127.0.0.1")).to_be_visible()
        await page.locator("button[value=approve]").click()
        await expect(page.get_by_text("Approved")).to_be_visible()

        out, err = await process.communicate()

    assert (process.returncode, EMAIL in out.decode()) == (0, True), err
    assert EMAIL in await account(page, platform.url)
    await page.goto(f"{platform.url}/login")
    await page.locator("form[action='/login/out'] button").click()
    await expect(page.get_by_label("Password")).to_be_visible()
    assert (await account(page, platform.url)).startswith("401 ")


async def test_person_approves_a_terminal_of_the_same_machine(platform: Fronted, page: Page, tmp_path: Path):
    async with login(platform.url, tmp_path, pattern=r"visit (\S+)", BROWSER="true") as (process, link):
        await page.goto(link)
        await enter_password(page, EMAIL)
        await expect(page.get_by_text("wants to act as")).to_be_visible()

        # The browser follows the redirect from the form to the terminal's port.
        await page.locator("button[value=approve]").click()
        await expect(page.get_by_text("go back to the terminal")).to_be_visible()
        assert page.url.startswith("http://127.0.0.1:")
        out, err = await process.communicate()

    assert (process.returncode, EMAIL in out.decode()) == (0, True), err


async def test_page_of_an_agent_gets_nothing_of_the_session(platform: Fronted, page: Page):
    await page.goto(f"{platform.url}/login")
    await enter_password(page, EMAIL)
    before = await cookies(page, platform.url)
    keys = platform.call("GET", "/api-key")
    assert set(before) == {"portside_session"}
    await page.goto(f"{platform.url}/agents/hostile/page")

    got = await page.evaluate("run()")
    assert got["origin"] == "null"
    assert (got["cookie"], got["setCookie"], got["storage"]) == ("SecurityError",) * 3

    for name in ("read", "list", "json", "token"):
        assert got[name] == "TypeError" or got[name].startswith("401 "), (name, got[name])

    # The answer to a request without CORS cannot be read.
    assert got["change"] in {"TypeError", "0 "}
    assert (got["frame"], got["data"]) == ("null", "null")
    assert got["popup"] == "null"
    assert "registered" not in {got["worker"], got["rootWorker"]}
    assert EMAIL not in json.dumps(got)
    assert await cookies(page, platform.url) == before
    assert platform.call("GET", "/api-key") == keys

    assert EMAIL in await account(page, platform.url)
    assert await page.evaluate("navigator.serviceWorker.getRegistrations().then((found) => found.length)") == 0


@pytest.mark.parametrize("target", ["/login/out", "/device/decision", "/api-key", "/logout"])
async def test_form_of_an_agent_changes_nothing(platform: Fronted, page: Page, target: str):
    await page.goto(f"{platform.url}/login")
    await enter_password(page, EMAIL)
    keys = platform.call("GET", "/api-key")
    await page.goto(f"{platform.url}/agents/hostile/form?to={target}")
    await page.get_by_role("button").click()
    await expect(page).to_have_url(f"{platform.url}{target}")
    assert EMAIL in await account(page, platform.url)

    assert platform.call("GET", "/api-key") == keys


async def test_page_on_a_host_of_the_domain_cannot_choose_the_session(tmp_path: Path, platform_databases: Any):
    options = ("--domain", DOMAIN, "--agents", "host", "--tls", "internal")
    resolve = f"--host-resolver-rules=MAP {DOMAIN} 127.0.0.1, MAP *.{DOMAIN} 127.0.0.1"
    with start_fronted(tmp_path / "portside", await platform_databases(), *options) as platform:
        add_member(platform)
        platform.deploy("fake")

        url, agent = (f"https://{host}:{platform.ports['https']}" for host in (DOMAIN, f"fake.{DOMAIN}"))
        async with open_chromium(resolve) as browser, open_page(browser, ignore_https_errors=True) as page:
            await page.goto(f"{url}/login")
            await enter_password(page, EMAIL)
            assert set(await cookies(page, url)) == {"__Host-portside_session"}
            session = (await cookies(page, url))["__Host-portside_session"]

            await page.goto(agent)
            # It asked the browser to clear everything of the domain.
            assert await cookies(page, url) == {"__Host-portside_session": session}

            # The agent's host never gets it, and sees none of the platform's cookies.
            assert "portside_session" not in await page.locator("body").inner_text()
            assert await cookies(page, agent) == {"mine": "1", "wide": "1"}

            for name in ("portside_session", "__Host-portside_session", "portside_oidc"):
                await page.evaluate(f"document.cookie = '{name}=evil; Domain={DOMAIN}; Path=/; Secure'")

            # The plain names arrive at the platform, where they count for nothing.
            arrived = await cookies(page, url)
            assert arrived == {"__Host-portside_session": session, "portside_session": "evil", "portside_oidc": "evil"}
            assert EMAIL in await account(page, url)
