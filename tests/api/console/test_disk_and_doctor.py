"""The pages of the disk and of the doctor, in Chromium, while the disk fills up and others can read a key."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import OF_THE_CONSOLE, WITHIN_MS, check_accessible, sign_in
from tests.servers import KEY, ServerProcess, platform_server
from tests.small_disk import SmallDisk, needs_small_disk, small_disk

pytestmark = [*OF_THE_CONSOLE, needs_small_disk]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("small") / "disk", 400) as disk:
        yield disk


@pytest.fixture(scope="module")
def server(disk: SmallDisk) -> Iterator[ServerProcess]:
    home = disk.path / "home"
    home.mkdir(mode=0o700)
    with platform_server(home, PORTSIDE_OWN_LISTENER="false", DISK_RESERVE_PERCENT="20") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def page(server: ServerProcess, chromium: Browser) -> AsyncIterator[Page]:
    async with sign_in(chromium, server.url, KEY) as opened:
        await opened.get_by_role("link", name="System").click()
        yield opened


async def test_disk_shows_what_takes_the_space_and_that_it_is_full(page: Page, disk: SmallDisk) -> None:
    await page.get_by_role("link", name="Disk").click()
    card = page.get_by_label("Disk", exact=True)
    await expect(card).to_contain_text("There is room", timeout=WITHIN_MS)
    await expect(card).to_contain_text(str(disk.path / "home"))

    kinds = page.get_by_label("By kind of data")
    await expect(kinds.get_by_role("row").filter(has_text="write-ahead log")).to_contain_text("files")
    await expect(kinds.get_by_role("row").filter(has_text="traces")).to_contain_text("database")
    await expect(page.get_by_label("By deployment").get_by_role("row").nth(1)).to_contain_text("the platform")
    await check_accessible(page)
    disk.fill_up_to(40_000_000)

    try:
        await expect(card.get_by_role("alert")).to_contain_text("disk is nearly full", timeout=WITHIN_MS)
        await expect(card).to_contain_text("New data is refused")
    finally:
        disk.empty()

    await expect(card).to_contain_text("There is room", timeout=WITHIN_MS)


def set_mode(file: Path, mode: int) -> None:
    file.chmod(mode)


async def test_doctor_names_a_fault_and_what_to_do(page: Page, disk: SmallDisk) -> None:
    key = disk.path / "home" / "api-key"
    set_mode(key, 0o644)
    try:
        await page.get_by_role("link", name="Doctor").click()
        row = page.get_by_label("Findings").get_by_role("row").filter(has_text="key-files")
        await expect(row).to_contain_text("Fault", timeout=WITHIN_MS)
        await expect(row).to_contain_text(f"chmod 600 {key}")
        await check_accessible(page)
    finally:
        set_mode(key, 0o600)

    await page.get_by_role("button", name="Examine again").click()
    await expect(row).to_have_count(0, timeout=WITHIN_MS)
    await page.get_by_label("Show passed checks too").check()
    await expect(row).to_contain_text("Passed")


async def test_backups_say_that_nothing_is_scheduled_and_nothing_was_taken(page: Page) -> None:
    await page.get_by_role("link", name="Backups").click()
    await expect(page.get_by_text("No backups are scheduled")).to_be_visible()
    await expect(page.get_by_text("There is no backup yet")).to_be_visible()
    await expect(page.get_by_label("Breadcrumb")).to_contain_text("Backups")
    await check_accessible(page)
