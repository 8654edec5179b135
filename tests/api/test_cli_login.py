"""`portside login` and `portside logout` as a user runs them: real processes, a real server, and a browser by hand.

The login is private, goes to the platform that it is from, and ends on the server too.
"""

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from portside.cli.logins import Logins
from tests.api.hosted import Hosted, open_hosted
from tests.commands import Done, run_here
from tests.conftest import eventually
from tests.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAME = {"sec-fetch-site": "same-origin"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    # What the server logs in this process is not what the commands say.
    with capture_logs():
        async with open_hosted(platform_database) as running:
            yield running


@pytest_asyncio.fixture(loop_scope="module")
async def browser(server: Hosted) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser in which the first admin is signed in."""
    async with httpx2.AsyncClient(headers=SAME, timeout=300) as opened:
        response = await opened.post(f"{server.url}/login/key", data={"key": server.key})
        assert response.status_code == 303
        yield opened


class Config:
    """The configuration folder of the user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "logins.json"

    def read(self) -> dict[str, Any] | None:
        return dict(json.loads(self.file.read_text())) if self.file.exists() else None

    def modes(self) -> tuple[int, int]:
        return stat.S_IMODE(self.folder.stat().st_mode), stat.S_IMODE(self.file.stat().st_mode)

    def write(self, url: str) -> None:
        self.folder.mkdir()
        until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        self.file.write_text(json.dumps({url: {"token": "secret", "expires_at": until}}))


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PORTSIDE_API_KEY", raising=False)
    return Config(tmp_path / "portside")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A browser that only writes down what it was given; the file appears when it is whole."""
    program = tmp_path / "browser"
    opened = program.with_suffix(".opened")
    program.write_text(f'#!/bin/sh\necho "$1" > "{opened}.partial"\nmv "{opened}.partial" "{opened}"\n')
    program.chmod(0o700)
    return program


async def run(*arguments: str) -> Done:
    return await asyncio.to_thread(run_here, *arguments)


class Terminal:
    """A `portside login` that runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read_until(self, pattern: str) -> str:
        """Return what the pattern's group matches in what the command says."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            if found := re.search(pattern, line.decode()):
                return found[1]

        raise AssertionError(f"the command ended without {pattern}")

    async def end(self) -> tuple[int, str, str]:
        out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def login(url: str, *arguments: str, **environment: str) -> AsyncIterator[Terminal]:
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
        env={**os.environ, **environment},
    )

    try:
        yield Terminal(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def approve_page(browser: httpx2.AsyncClient, page: str, decision: str = "approve") -> str:
    """Click on the page that the terminal opens, and return where that leads."""
    assert (await browser.get(page)).status_code == 200
    fields = {name: values[0] for name, values in parse_qs(urlsplit(page).query).items()}
    response = await browser.post(page.split("?", maxsplit=1)[0], data=fields | {"decision": decision})
    assert response.status_code == 303, response.text
    return str(response.headers["location"])


async def test_a_terminal_without_a_browser_logs_in_with_a_code(
    server: Hosted, browser: httpx2.AsyncClient, config: Config
) -> None:
    async with login(server.url, "--device") as terminal:
        code = await terminal.read_until(r"enter the code (\S+)")
        form = {"user_code": code, "decision": "approve"}
        assert "Approved" in (await browser.post(f"{server.url}/device/decision", data=form)).text
        status, out, err = await terminal.end()

    assert (status, out) == (0, "logged in as admin@localhost, in the workspace Default\n"), err
    assert config.modes() == (0o700, 0o600)
    token = (config.read() or {})[server.url]["token"]
    assert token not in out + err
    shown = await run("account", "show", "--url", server.url)
    assert "admin@localhost" in shown.stdout
    listed = json.loads((await run("sessions", "list", "--json", "--url", server.url)).stdout)
    (own,) = [found for found in listed if found["is_current"]]
    assert (own["method"], own["kind"]) == ("device", "bearer")

    assert own["client"].startswith("portside/")
    headers = {"authorization": f"Bearer {token}"}
    assert (await browser.get(f"{server.url}/auth", headers=headers)).status_code == 200
    assert (await run("logout", server.url)).stdout == "logged out\n"
    assert (await browser.get(f"{server.url}/auth", headers=headers)).status_code == 401
    assert config.read() == {}


async def test_a_refused_code_logs_nobody_in(server: Hosted, browser: httpx2.AsyncClient, config: Config) -> None:
    async with login(server.url, SSH_CONNECTION="192.0.2.1 1 192.0.2.2 22", DISPLAY=":0", BROWSER="") as terminal:
        code = await terminal.read_until(r"enter the code (\S+)")
        await browser.post(f"{server.url}/device/decision", data={"user_code": code, "decision": "deny"})
        status, _, err = await terminal.end()

    assert (status, "refused in the browser" in err, config.read()) == (1, True, None)


async def test_a_terminal_with_a_browser_logs_in_by_a_port_of_its_machine(
    server: Hosted, browser: httpx2.AsyncClient, config: Config, program: Path
) -> None:
    async def is_opened() -> bool:
        return program.with_suffix(".opened").exists()

    async with login(server.url, BROWSER=f"{program} %s") as terminal:
        page = await terminal.read_until(r"visit (\S+)")
        # The command ends without waiting for its browser.
        await eventually(is_opened)
        back = await approve_page(browser, page)
        assert back.startswith("http://127.0.0.1:")

        # What does not belong to this sign-in changes nothing.
        parts = urlsplit(back)
        state = parse_qs(urlsplit(page).query)["state"][0]
        foreign = [
            back.replace(state, "x" * 43),
            back.split("?")[0],
            back.replace("/callback", "/other"),
            f"{back.split('?')[0]}?code=stolen",
            f"{back.split('?')[0]}?state={state}",
            f"{back}&state={state}",
        ]

        assert [(await browser.get(url)).status_code for url in foreign] == [400] * len(foreign)
        rebound = {"host": f"evil.example:{parts.port}"}
        assert (await browser.get(back, headers=rebound)).status_code == 400
        response = await browser.get(back)
        assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
        status, out, err = await terminal.end()

    assert (status, out) == (0, "logged in as admin@localhost, in the workspace Default\n"), err
    assert program.with_suffix(".opened").read_text().strip() == page
    assert "code=" not in err
    first = (config.read() or {})[server.url]["token"]

    # A second login replaces the first, which ends.
    async with login(server.url, BROWSER="true") as terminal:
        await browser.get(await approve_page(browser, await terminal.read_until(r"visit (\S+)")))
        assert (await terminal.end())[0] == 0

    headers = {"authorization": f"Bearer {first}"}
    assert (await browser.get(f"{server.url}/auth", headers=headers)).status_code == 401
    assert (config.read() or {})[server.url]["token"] != first


async def test_a_refusal_in_the_browser_ends_the_command(
    server: Hosted, browser: httpx2.AsyncClient, config: Config
) -> None:
    async with login(server.url, BROWSER="true") as terminal:
        back = await approve_page(browser, await terminal.read_until(r"visit (\S+)"), "deny")
        assert (await browser.get(back)).status_code == 200
        status, _, err = await terminal.end()

    assert (status, "refused in the browser" in err, config.read()) == (1, True, None)


async def test_a_foreign_code_is_no_login(server: Hosted, browser: httpx2.AsyncClient, config: Config) -> None:
    """A page that learns the state, but has the code of another sign-in."""
    async with login(server.url, BROWSER="true") as terminal:
        page = await terminal.read_until(r"visit (\S+)")
        other = page.replace("code_challenge=", "code_challenge=A", 1)
        other = re.sub(r"(code_challenge=.{43})[^&]*", r"\1", other)
        assert (await browser.get(await approve_page(browser, other))).status_code == 200
        status, _, err = await terminal.end()

    assert (status, "refused the sign-in" in err, config.read()) == (1, True, None)


async def test_a_login_goes_to_its_own_platform_only(server: Hosted, config: Config) -> None:
    config.write("https://other.example.com")
    logins = Logins(config.folder)
    assert logins.find("https://other.example.com/") is not None
    assert logins.find("HTTPS://Other.example.com") is not None

    for url in ("http://other.example.com", "https://other.example.com:8700", "https://other.example.com.evil.example"):
        assert logins.find(url) is None

    assert "you are not logged in" in (await run("account", "show", "--url", server.url, "--home", "/nowhere")).stderr


async def test_a_platform_that_is_away_does_not_keep_the_login_here(config: Config) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    config.write(url)
    done = await run("logout", url)
    assert (done.returncode, "is removed here" in done.stderr) == (1, True)
    assert config.read() == {}
    assert "you are not logged in" in (await run("logout", url)).stderr
    assert "no platform responds" in (await run("login", url, "--device")).stderr


@pytest.mark.parametrize(
    "url", ["ftp://x.example", "https://user:password@x.example", "file:///etc/passwd", "https://"]
)
async def test_only_addresses_of_platforms_are_opened(url: str) -> None:
    done = await run("login", url, "--device")
    assert (done.returncode, "is not the address of a platform" in done.stderr) == (1, True)
