"""The console that `portside dev` serves for its one agent, in Chromium: no platform, no account."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import expect

from tests.browser import NEEDS_CHROMIUM, NEEDS_CONSOLE, check_accessible, open_chromium, open_console
from tests.conftest import eventually
from tests.servers import PROJECTS, free_port

pytestmark = [pytest.mark.thorough, NEEDS_CHROMIUM, NEEDS_CONSOLE]


async def test_studio_talks_to_the_agent_and_follows_changes_of_its_graph(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()

    for file in (PROJECTS / "studio").iterdir():
        if file.is_file():
            (project / file.name).write_text(file.read_text("utf-8"))

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PORTSIDE_HOME": str(tmp_path / "home"), "DATABASE_URL": "", "DATABASE_URI": ""}
    command = [sys.executable, "-m", "portside", "dev", "--port", str(port)]

    dev = start_process(command, project, environment, tmp_path / "dev.log")
    try:
        await eventually(lambda: is_up(url))
        assert f"{url}/studio" in (tmp_path / "dev.log").read_text()
        async with open_chromium() as browser, open_console(browser) as page:
            elsewhere: list[str] = []
            page.on("request", lambda request: None if request.url.startswith(url) else elsewhere.append(request.url))
            await page.goto(f"{url}/studio")
            await page.get_by_label("Assistant", exact=True).select_option(label="chat")
            await page.get_by_label("Message", exact=True).fill("hello")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("article").filter(has_text="You said hello")).to_be_visible()

            await check_accessible(page)
            await page.get_by_role("link", name="Inbox").click()
            await expect(page.get_by_text("Nobody waits for you")).to_be_visible()
            await page.go_back()

            source = (project / "graphs.py").read_text("utf-8")
            (project / "graphs.py").write_text(source.replace('"review"', '"second_look"'))
            await expect(page.locator(".graph-node", has_text="second_look")).to_be_visible()
            await expect(page.get_by_role("article").filter(has_text="You said hello")).to_be_visible()
            assert elsewhere == []
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(120) == 0


def start_process(command: list[str], folder: Path, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)


async def is_up(url: str) -> bool:
    async with httpx2.AsyncClient() as client:
        try:
            return (await client.get(f"{url}/ok")).is_success
        except httpx2.TransportError:
            return False
