"""The pages of annotation queues in Chromium: a queue is created, worked through with the keyboard, and changed.

What a person says of a run is stored once, and can be changed; a skipped run comes back.
"""

import asyncio

import pytest_asyncio
from playwright.async_api import Page, expect

from tests import traced
from tests.browser import OF_THE_CONSOLE, check_accessible
from tests.platforms import Platform

pytestmark = OF_THE_CONSOLE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(platform: Platform) -> list[str]:
    """Three turns and a hostile run."""

    def send() -> list[str]:
        client = traced.open_tracing_client(platform.server.url, platform.headers["X-Api-Key"])
        sent = [traced.send_turn(client, "weather", "one", turn) for turn in (1, 2, 3)]
        sent.append(traced.send_hostile(client, "weather"))
        client.flush()
        return [str(run_id) for run_id in sent]

    return await asyncio.to_thread(send)


async def add(platform: Platform, queue: str, runs: list[str]) -> None:
    assert (await platform.client.post(f"/annotation-queues/{queue}/runs", json=runs)).is_success


async def create_queue(page: Page) -> None:
    await page.get_by_role("link", name="Annotation", exact=True).click()
    await expect(page.get_by_text("No annotation queues yet")).to_be_visible()
    await check_accessible(page)
    await page.keyboard.press("c")
    await page.get_by_label("Name required").fill("To check")
    await page.get_by_label("Instructions").fill("**Read** the answer.")
    await page.get_by_label("Key of question 1").fill("quality")

    await page.get_by_role("checkbox", name="Required").check()
    await page.get_by_role("button", name="Add a question").click()
    await page.get_by_label("Key of question 2").fill("polite")
    await page.get_by_label("Scale of question 2").select_option("Yes or no")
    await check_accessible(page)
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_text("The queue is empty")).to_be_visible()


async def test_queue_is_worked_through_with_the_keyboard(platform: Platform, runs: list[str], page: Page) -> None:
    await create_queue(page)
    queue = page.url.split("/annotation/")[1].split("?")[0]
    await add(platform, queue, runs)
    await page.reload()

    judgement = page.get_by_role("region", name="Judgement")
    shown = page.get_by_role("region", name="Run")
    await expect(page.get_by_text("0 of 4 done")).to_be_visible()
    await expect(shown).to_contain_text("Question 1")
    await expect(judgement.get_by_role("button", name="Done")).to_be_disabled()
    await check_accessible(page)
    await page.keyboard.press("4")

    await page.keyboard.press("1")
    await expect(judgement.get_by_role("button", name="4", exact=True)).to_have_attribute("aria-pressed", "true")
    await expect(judgement.get_by_role("button", name="yes")).to_have_attribute("aria-pressed", "true")
    await page.keyboard.press("n")
    await page.keyboard.type("Fine, d is a letter here.")
    await page.keyboard.press("Escape")
    await page.keyboard.press("d")

    await expect(page.get_by_text("1 of 4 done")).to_be_visible()
    await expect(shown).to_contain_text("Question 2")
    await page.keyboard.press("s")
    await expect(shown).to_contain_text("Question 3")
    await page.keyboard.press("2")
    await page.keyboard.press("d")
    await expect(page.get_by_text("2 of 4 done")).to_be_visible()

    await expect(shown.get_by_role("heading", name="Title")).to_be_visible()
    assert await page.evaluate("window.hacked") is None

    for _ in range(3):
        await page.keyboard.press("p")

    await expect(shown).to_contain_text("Question 1")
    await expect(judgement.get_by_role("button", name="4", exact=True)).to_have_attribute("aria-pressed", "true")
    await expect(judgement.get_by_label("Note")).to_have_value("Fine, d is a letter here.")
    await page.keyboard.press("5")
    await page.keyboard.press("d")
    await expect(shown).not_to_contain_text("Question 1")

    stored = await platform.call("GET", f"/feedback?run={runs[0]}")
    assert sorted((one["key"], one["score"], one["comment"]) for one in stored) == [
        ("note", None, "Fine, d is a letter here."),
        ("polite", 1, None),
        ("quality", 5, None),
    ]

    for done in (3, 4):
        await expect(judgement.get_by_role("button", name="3", exact=True)).to_have_attribute("aria-pressed", "false")
        await page.keyboard.press("3")
        await page.keyboard.press("d")
        await expect(page.get_by_text(f"{done} of 4 done")).to_be_visible()

    await expect(page.get_by_text("Everything is done")).to_be_visible()
    await check_accessible(page)


async def test_queue_is_changed_and_deleted(platform: Platform, runs: list[str], page: Page) -> None:
    queue = await platform.call("POST", "/annotation-queues", name="short-lived")
    await add(platform, queue["id"], runs[1:2])
    await page.goto(f"{platform.server.url}/console/annotation/{queue['id']}")
    await page.get_by_role("link", name="Its trace").click()
    await expect(page.get_by_role("treeitem")).to_have_count(8)
    await page.go_back()
    await page.get_by_role("link", name="Edit").click()

    await page.get_by_label("Name required").fill("renamed")
    await page.get_by_role("button", name="Add a question").click()
    await page.get_by_label("Key of question 1").fill("why")
    await page.get_by_label("Scale of question 1").select_option("Text")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="renamed")).to_be_visible()
    await page.get_by_role("textbox", name="why").fill("42")

    await page.get_by_role("button", name="Done").click()
    await expect(page.get_by_text("Everything is done")).to_be_visible()
    (said,) = await platform.call("GET", f"/feedback?run={runs[1]}&key=why")
    assert (said["value"], said["score"]) == ("42", None)
    await page.get_by_role("link", name="Edit").click()
    await page.get_by_role("button", name="Delete this queue").click()
    await page.get_by_role("button", name="Delete for good").click()

    await expect(page).to_have_url(f"{platform.server.url}/console/annotation")
    assert "renamed" not in {one["name"] for one in await platform.call("GET", "/annotation-queues")}
