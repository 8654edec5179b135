"""The page of backups, in Chromium, against a platform that takes real ones."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import OF_THE_CONSOLE, WITHIN_MS, check_accessible, sign_in
from tests.servers import KEY, ServerProcess, platform_server

pytestmark = OF_THE_CONSOLE


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored") / "backups"


@pytest.fixture(scope="module")
def server(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    passphrase = "correct horse battery"
    home = tmp_path_factory.mktemp("platform") / "a home"
    with platform_server(home, BACKUP_TO=str(stored), PORTSIDE_BACKUP_PASSPHRASE=passphrase) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def page(server: ServerProcess, chromium: Browser) -> AsyncIterator[Page]:
    async with sign_in(chromium, server.url, KEY) as opened:
        await opened.get_by_role("link", name="System").click()
        await opened.get_by_role("link", name="Backups").click()
        yield opened


async def test_backups_are_listed_and_taken(page: Page, stored: Path) -> None:
    rows = page.get_by_label("Stored backups").get_by_role("row")
    await expect(rows.nth(1)).to_contain_text("whole server", timeout=WITHIN_MS)
    await expect(rows.nth(1)).to_contain_text(re.compile(r"portside-\d{8}T\d{6}Z\.backup"))
    card = page.get_by_label("Schedule")

    await expect(card).to_contain_text("In order")
    await expect(card).to_contain_text("the newest 7, and those of 30 days")
    await expect(card.get_by_text(f"portside backup restore {stored} --home NEW_FOLDER")).to_be_visible()
    await check_accessible(page)
    await expect(page.get_by_role("button", name="Back up now")).to_be_enabled(timeout=WITHIN_MS)

    before = await rows.count()
    await page.get_by_role("button", name="Back up now").click()
    await expect(rows).to_have_count(before + 1, timeout=WITHIN_MS)
    assert "correct horse battery" not in await page.content()


@contextlib.contextmanager
def unusable(folder: Path) -> Iterator[None]:
    """Put a file where the folder should be, for the length of the block."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("a file")
    yield
    folder.unlink()
    aside.rename(folder)


async def test_failure_is_shown_with_its_reason_until_one_succeeds(page: Page, stored: Path) -> None:
    await expect(page.get_by_role("button", name="Back up now")).to_be_enabled(timeout=WITHIN_MS)
    with unusable(stored):
        await page.get_by_role("button", name="Back up now").click()
        await expect(page.get_by_text("The last one failed")).to_be_visible(timeout=WITHIN_MS)
        await expect(page.get_by_role("alert").first).to_contain_text(str(stored))
        await check_accessible(page)

    await expect(page.get_by_role("button", name="Back up now")).to_be_enabled(timeout=WITHIN_MS)
    await page.get_by_role("button", name="Back up now").click()
    await expect(page.get_by_text("In order")).to_be_visible(timeout=WITHIN_MS)
