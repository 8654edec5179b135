"""The page of upgrades, in Chromium: an agent that is behind is rolled forward, and a halt shows its reason."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import OF_THE_CONSOLE, WITHIN_MS, check_accessible, sign_in
from tests.platforms import CONFIG, Platform, Repository, find_listener, find_servers, open_platform

pytestmark = OF_THE_CONSOLE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    async with open_platform(folder, platform_database, ROLL_FORWARD="on-request") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def page(platform: Platform, chromium: Browser) -> AsyncIterator[Page]:
    async with sign_in(chromium, platform.server.url, platform.headers["X-Api-Key"]) as opened:
        await opened.get_by_role("link", name="System").click()
        await opened.get_by_role("link", name="Upgrade").click()
        yield opened


def make_older(platform: Platform) -> Path:
    """Let the next listener find a server of an earlier version, and return the configuration of its agent."""
    (deployment,) = (platform.home / "dataplane" / "deployments").iterdir()
    state = deployment / "state.json"
    state.write_text(re.sub(r'"server_code":"[^"]+"', '"server_code":"earlier"', state.read_text()))
    os.kill(find_listener(platform.server), signal.SIGKILL)

    (config,) = deployment.glob("revisions/*/source/langgraph.json")
    return config


async def test_agents_are_rolled_forward_and_a_halt_shows_its_reason(
    platform: Platform, page: Page, tmp_path: Path
) -> None:
    await expect(page.get_by_text("No agent serves")).to_be_visible()
    await check_accessible(page)
    repository = Repository(tmp_path / "repository")
    repository.commit("one")

    deployment = await platform.deploy(repository)
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    row = page.get_by_label("Servers of agents").get_by_role("row").nth(1)
    await expect(row).to_contain_text("This version", timeout=WITHIN_MS)

    (before,) = find_servers(platform.home)
    config = await asyncio.to_thread(make_older, platform)
    await expect(row).to_contain_text("Earlier version", timeout=WITHIN_MS)
    card = page.get_by_label("Upgrade", exact=True)

    await expect(card).to_contain_text("1 behind")
    await expect(card).to_contain_text("they wait (ROLL_FORWARD=on-request)")

    config.write_text("{")
    await page.get_by_role("button", name="Roll agents forward").click()
    await expect(card.get_by_role("alert")).to_contain_text("langgraph.json", timeout=WITHIN_MS)
    await expect(row).to_contain_text("The new server does not start")
    await expect(page.get_by_role("button", name="Leave my-agent and go on")).to_be_visible()
    await check_accessible(page)
    assert find_servers(platform.home) == [before]

    config.write_text(CONFIG)
    await page.get_by_role("button", name="Try again and go on").click()
    await expect(row).to_contain_text("This version", timeout=WITHIN_MS)
    await expect(card).to_contain_text("None behind")
    assert find_servers(platform.home) != [before]
