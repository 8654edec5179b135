"""Debian's Chromium without a window. No browser is ever downloaded.

Pages get no rights that they lack for a person: clicks are clicks of the page's own elements, and cookies are read and
set only where a test says so.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect

from portside.console import site
from tests.platforms import PASSWORD

CHROMIUM = shutil.which("chromium")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}
# Only ends a test that failed: a busy machine may take long to show a page.
WITHIN_MS = 180_000
# Findings below these are advice.
SERIOUS = frozenset({"serious", "critical"})
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
NEEDS_CONSOLE = pytest.mark.skipif(not site.is_built(), reason="the console is not built")
# The marks of a module whose tests use the console.
OF_THE_CONSOLE = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.thorough,
    pytest.mark.timeout(3600),
    NEEDS_CHROMIUM,
    NEEDS_CONSOLE,
]
expect.set_options(timeout=WITHIN_MS)


@asynccontextmanager
async def open_chromium(*options: str) -> AsyncIterator[Browser]:
    """Start Chromium with more options of its command line, and close it at the end of the block."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS, *options])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    """Open a page with a profile of its own; the options are those of `Browser.new_context`."""
    context: BrowserContext = await browser.new_context(**{"viewport": WIDE, **options})
    context.set_default_timeout(WITHIN_MS)
    try:
        yield await context.new_page()
    finally:
        await context.close()


@asynccontextmanager
async def open_console(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    """Open a page for the console. Errors of its scripts, and scripts that its policy refused, fail the test."""
    async with open_page(browser, **options) as page:
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
        yield page
        assert problems == []


@asynccontextmanager
async def sign_in(browser: Browser, url: str, key: str, **options: Any) -> AsyncIterator[Page]:
    """Open the console as the key."""
    async with open_console(browser, **options) as page:
        async with httpx2.AsyncClient(base_url=url, headers={"X-Api-Key": key}) as client:
            path = (await client.post("/users/me/sign-in-links")).raise_for_status().json()["path"]

        await page.goto(f"{url}{path}")
        await page.get_by_role("navigation", name="Places").wait_for()
        yield page


@asynccontextmanager
async def sign_in_as(browser: Browser, url: str, email: str, at: str, password: str = PASSWORD) -> AsyncIterator[Page]:
    """Open an address of the console as a member."""
    async with open_console(browser) as page:
        await page.goto(f"{url}/login?next={at}")
        await enter_password(page, email, password)
        yield page


async def enter_password(page: Page, email: str, password: str = PASSWORD) -> None:
    """Sign in where the page asks for it, and wait for the page after that."""
    await page.get_by_label("E-mail").fill(email)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.get_by_label("Password")).to_have_count(0)


def view(inside: Page | Locator, name: str) -> Locator:
    """Return the link to a view of a page, or of a part of it."""
    return inside.locator(".tabs").get_by_role("link", name=name, exact=True)


async def check_accessible(page: Page) -> None:
    """Fail on serious findings of axe, in both themes and widths, and if the page is wider than a narrow screen."""
    for theme in ("light", "dark"):
        for viewport in (WIDE, NARROW):
            await page.emulate_media(color_scheme=theme)
            await page.set_viewport_size(viewport)
            results = await Axe().run(page)

            found = [
                (violation["id"], node["html"], node["failureSummary"])
                for violation in results.response["violations"]
                if violation["impact"] in SERIOUS
                for node in violation["nodes"]
            ]

            assert found == [], (theme, viewport["width"], found)
            overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, viewport
            inside = await page.evaluate(
                "[...document.querySelectorAll('#page')].map(each => each.scrollWidth - each.clientWidth)"
            )
            assert all(each <= 0 for each in inside), viewport

    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(WIDE)
