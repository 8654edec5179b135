"""The pages of the console in Chromium, against a real platform with a real agent.

Each page is used with mouse and keyboard, and read by axe in both themes and at 1280 and 390 pixels.
"""

import re
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import OF_THE_CONSOLE, check_accessible, signed_in_as
from tests.platforms import Platform, Repository

pytestmark = OF_THE_CONSOLE
DEPLOYED_WITHIN_MS = 300_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A deployment that serves, with two revisions."""
    repository = Repository(tmp_path_factory.mktemp("of-the-agent") / "agent")
    repository.commit("one")
    made = await platform.deploy(repository, "served-agent")
    await platform.ended(made)
    await platform.redeploy(made)
    await platform.ended(made)
    return made


async def test_home_shows_health_and_deployments(platform: Platform, deployment: str, page: Page) -> None:
    assert deployment
    await expect(page.get_by_text("Healthy")).to_be_visible()
    await expect(page.get_by_role("link", name="served-agent")).to_be_visible()
    await expect(page.get_by_role("heading", name="Wants attention")).to_be_visible()
    await check_accessible(page)
    await page.reload()
    await expect(page.get_by_text("Healthy")).to_be_visible()
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await expect(page).to_have_url(f"{platform.server.url}/login")
    await page.goto(f"{platform.server.url}/console/deployments")
    await expect(page).to_have_url(f"{platform.server.url}/login?next=%2Fconsole%2Fdeployments")


async def test_list_is_used_with_the_keyboard(deployment: str, page: Page) -> None:
    await page.keyboard.press("Control+k")
    await page.keyboard.type("deployments")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("table", name="Deployments")).to_be_visible()
    await check_accessible(page)
    await page.keyboard.press("/")
    await page.keyboard.type("no-such-agent")
    await expect(page.get_by_text("No deployment matches")).to_be_visible()
    assert "q=no-such-agent" in page.url
    await page.get_by_role("button", name="Show all deployments").click()
    await page.get_by_role("searchbox").fill("served-agent")
    await expect(page.get_by_role("link", name="newest-agent")).to_be_hidden()
    await page.get_by_role("heading", name="Deployments").click()
    await expect(page.get_by_role("link", name="served-agent")).to_be_visible()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(deployment))


async def test_form_shows_what_the_api_says_and_deploys(platform: Platform, page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "agent")
    repository.commit("one")
    await page.get_by_role("link", name="New deployment").click()
    await page.get_by_label("Name required").fill("Not A Name")
    await page.get_by_label("Repository required").fill(str(repository.folder))
    await page.get_by_role("button", name="Create and deploy").click()
    await expect(page.locator(".field.wrong", has_text="Name")).to_be_visible()
    await check_accessible(page)
    await page.get_by_label("Name required").fill("by-form")
    await page.get_by_role("button", name="Add a secret").click()
    await page.get_by_label("Name of secret 1").fill("TOKEN")
    await page.get_by_label("Value of secret 1").fill("s3cret-value")
    await page.get_by_role("button", name="Create and deploy").click()
    await expect(page.get_by_role("heading", name="Revision")).to_be_visible()
    await expect(page.get_by_role("log")).to_contain_text("Build finished", timeout=DEPLOYED_WITHIN_MS)
    await expect(page.get_by_role("list", name="States").get_by_text("Deployed")).to_be_visible(
        timeout=DEPLOYED_WITHIN_MS
    )
    await page.get_by_role("link", name="by-form").click()
    await page.get_by_role("link", name="Settings").click()
    await expect(page.get_by_text("TOKEN")).to_be_visible()
    assert "s3cret-value" not in await page.content()
    await check_accessible(page)
    await page.get_by_role("button", name="Delete this deployment").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Delete for good")).to_be_disabled()
    await dialog.get_by_label("Type by-form to confirm").fill("by-form")
    await dialog.get_by_role("button", name="Delete for good").click()
    await expect(page).to_have_url(f"{platform.server.url}/console/deployments")
    await expect(page.get_by_role("link", name="by-form")).to_be_hidden(timeout=DEPLOYED_WITHIN_MS)


async def test_revision_has_log_and_rolls_back(platform: Platform, deployment: str, page: Page) -> None:
    url = f"{platform.server.url}/console/deployments/{deployment}"
    await page.goto(url)
    await expect(page.get_by_text("serving")).to_be_visible()
    await check_accessible(page)
    await page.get_by_role("row").last.get_by_role("link").click()
    await page.get_by_role("link", name="Build").click()
    await expect(page.get_by_role("log")).to_contain_text("Build finished")
    await page.get_by_label("Search in the log").fill("finished")
    await expect(page.get_by_text("1 lines")).to_be_visible()
    assert "q=finished" in page.url
    await page.reload()
    await expect(page.get_by_text("1 lines")).to_be_visible()
    await check_accessible(page)
    states = page.get_by_role("list", name="States").get_by_role("listitem")
    boxes = [await each.bounding_box() for each in await states.all()]
    assert len({(box["x"], box["y"]) for box in boxes if box}) == len(boxes) > 1, "states lie on top of each other"
    before = page.url
    await page.get_by_role("button", name="Roll back to this").click()
    await expect(page).not_to_have_url(before)
    await expect(page.get_by_role("list", name="States").get_by_text("Deployed")).to_be_visible(
        timeout=DEPLOYED_WITHIN_MS
    )
    await expect(page.get_by_role("button", name="Redeploy")).to_be_visible()
    await page.goto(f"{url}/log")
    await expect(page.get_by_role("log")).to_be_visible()
    await check_accessible(page)


async def test_newest_commit_is_deployed_and_leads_to_the_studio(
    platform: Platform, page: Page, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "agent")
    repository.commit("one")
    deployment = await platform.deploy(repository, "newest-agent")
    await platform.ended(deployment)
    repository.commit("two")
    await page.goto(f"{platform.server.url}/console/deployments/{deployment}")
    await page.get_by_role("button", name="Deploy the newest commit").click()
    states = page.get_by_role("list", name="States")
    await expect(states.get_by_text("Deployed")).to_be_visible(timeout=DEPLOYED_WITHIN_MS)
    await expect(page.get_by_text("The one before")).to_be_visible()
    commits = {
        (await platform.call("GET", f"/v2/deployments/{deployment}/revisions/{each['id']}"))["source_revision_config"][
            "repo_commit_sha"
        ]
        for each in (await platform.call("GET", f"/v2/deployments/{deployment}/revisions"))["resources"]
    }
    assert len(commits) == 2
    await page.get_by_role("link", name="Open the studio").click()
    await expect(page).to_have_url(re.compile(f"/agents/{deployment}/studio"))


async def test_another_branch_is_deployed_from_the_settings(platform: Platform, page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "agent")
    repository.commit("one")
    deployment = await platform.deploy(repository, "branched-agent")
    await platform.ended(deployment)
    repository.branch("next")
    await page.goto(f"{platform.server.url}/console/deployments/{deployment}/settings")
    source = page.get_by_role("region", name="Source")
    await expect(source).to_contain_text(str(repository.folder))
    await check_accessible(page)
    await source.get_by_label("Branch, tag or commit").fill("no such branch")
    await source.get_by_role("button", name="Save and deploy").click()
    await expect(source.locator(".field.wrong", has_text="Branch")).to_be_visible()
    await source.get_by_label("Branch, tag or commit").fill("next")
    await source.get_by_role("button", name="Save and deploy").click()
    await expect(page.get_by_role("heading", name="Revision")).to_be_visible()
    await expect(page.get_by_role("list", name="States").get_by_text("Deployed")).to_be_visible(
        timeout=DEPLOYED_WITHIN_MS
    )
    stored = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert stored["source_revision_config"]["repo_ref"] == "next"
    await page.get_by_role("link", name="branched-agent").click()
    await page.get_by_role("link", name="Settings").click()
    await source.get_by_label("Deploy each push").check()
    await source.get_by_role("button", name="Save", exact=True).click()
    await expect(source.get_by_role("button", name="Save", exact=True)).to_have_count(0)
    pushed = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert pushed["source_config"]["build_on_push"] is True
    assert pushed["latest_revision_id"] == stored["latest_revision_id"]


async def test_a_phone_has_all_places_behind_more(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    places = page.get_by_role("navigation", name="All places")
    await expect(places).to_be_hidden()
    await page.get_by_role("button", name="More").click()
    await expect(places).to_be_visible()
    await places.get_by_role("link", name="Prices").click()
    await expect(page.get_by_role("heading", name="Prices", exact=True)).to_be_visible()
    await expect(places).to_be_hidden()
    await page.get_by_role("button", name="More").click()
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(places).to_be_hidden()


async def test_viewer_sees_no_control(platform: Platform, deployment: str, chromium: Browser) -> None:
    await platform.add_member("viewer@example.com", "Viewer")
    at = f"/console/deployments/{deployment}/settings"
    async with signed_in_as(chromium, platform.server.url, "viewer@example.com", at) as page:
        await expect(page.get_by_text("MY_SECRET")).to_be_visible()
        for name in ("Add a secret", "Delete this deployment", "Save"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
        await page.goto(f"{platform.server.url}/console/")
        await expect(page.get_by_role("link", name="served-agent")).to_be_visible()
        await expect(page.get_by_role("link", name="New deployment")).to_have_count(0)
        await page.goto(f"{platform.server.url}/console/deployments/new")
        await expect(page.get_by_text("You may not create deployments")).to_be_visible()
