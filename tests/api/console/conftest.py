"""A platform and a browser for each module, and a page that is signed in with the platform's first key."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.browser import open_chromium, sign_in
from tests.platforms import Platform, open_platform


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    async with open_platform(tmp_path_factory.mktemp("platform"), platform_database) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with open_chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def page(platform: Platform, chromium: Browser) -> AsyncIterator[Page]:
    async with sign_in(chromium, platform.server.url, platform.headers["X-Api-Key"]) as opened:
        yield opened
