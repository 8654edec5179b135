"""The pages of the console about the audit log and about alerts, in Chromium, against a real platform.

A Viewer is neither shown the places nor their data.
"""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.api.control_server import create_body
from tests.browser import OF_THE_CONSOLE, check_accessible, sign_in_as, view
from tests.conftest import eventually
from tests.platforms import Platform, open_platform
from tests.receiver import Receiver, serve

pytestmark = OF_THE_CONSOLE
SECRET = "sk-never-on-a-page"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    """A platform that looks often at what alerts are about, and may call this machine."""
    settings = {"ALERT_CHECK_SECONDS": "0.2", "ALERT_ALLOW_PRIVATE_HOSTS": "true"}
    async with open_platform(tmp_path_factory.mktemp("platform"), platform_database, **settings) as running:
        yield running


async def test_audit_log_is_filtered_read_and_exported(platform: Platform, page: Page, tmp_path: Path) -> None:
    secrets = [{"name": "TOKEN", "value": SECRET}]
    made = await platform.call("POST", "/v2/deployments", **create_body("audited", secrets=secrets))
    await platform.call("PATCH", f"/v2/deployments/{made['id']}", secrets=secrets)
    await page.get_by_role("link", name="Audit log").click()

    rows = page.get_by_role("table", name="Audit log").get_by_role("row")
    await expect(rows.filter(has_text="deployment.create").filter(has_text="audited").first).to_be_visible()
    await check_accessible(page)
    await page.get_by_label("Object", exact=True).fill(made["id"])
    await expect(page).to_have_url(re.compile(f"object={made['id']}"))
    await page.get_by_label("What").select_option(label="Deployments")
    await page.get_by_label("Outcome").select_option(label="Done")

    await page.get_by_label("From", exact=True).fill("2020-01-02T08:00")
    await page.get_by_label("Until", exact=True).fill("2020-01-02T09:00")
    await expect(page).to_have_url(re.compile("since=2020-01-02T08.*until=2020-01-02T09"))
    await expect(page.get_by_text("No entry matches")).to_be_visible()
    await check_accessible(page)
    await page.get_by_label("Period").select_option(label="Last 24 hours")
    await expect(page.get_by_label("From", exact=True)).to_have_value("")
    await page.get_by_label("Who").fill("admin@localhost")
    await expect(page).to_have_url(re.compile("actor=admin"))
    await expect(rows).to_have_count(3)  # The head is one of them.
    await expect(rows.nth(1)).to_contain_text("secrets.TOKEN")
    # The change named the deployment by its id alone.
    await expect(rows.nth(1)).to_contain_text("audited")
    await rows.filter(has_text="deployment.update").click()

    panel = page.get_by_role("complementary")
    await expect(panel).to_contain_text("127.0.0.1")
    await expect(panel).to_contain_text(made["id"])
    await check_accessible(page)

    # The address of the entry shows it again, without the list before it.
    await page.reload()
    await expect(panel).to_contain_text("secrets.TOKEN")
    assert SECRET not in await page.content()

    async with page.expect_download() as started:
        await page.get_by_role("link", name="JSON lines").click()

    file = tmp_path / "log.jsonl"
    await (await started.value).save_as(file)
    assert [json.loads(line)["action"] for line in file.read_text().splitlines()] == [
        "deployment.update",
        "deployment.create",
    ]

    await page.get_by_role("button", name=re.compile("Close Entry")).click()
    await page.get_by_label("Object", exact=True).fill("no such object")
    await expect(page.get_by_text("No entry matches")).to_be_visible()


async def test_long_audit_log_is_read_page_by_page(platform: Platform, page: Page) -> None:
    for number in range(130):
        await platform.call("POST", "/sessions", name=f"project {number:03}")

    await page.goto(f"{platform.server.url}/console/audit?action=project")
    table = page.get_by_role("table", name="Audit log")
    await expect(table.get_by_text("project 129")).to_be_visible()
    await expect(table.get_by_text("project 000")).to_have_count(0)

    body = table.locator(".list-body")

    async def is_at_the_end() -> bool:
        await body.evaluate("element => element.scrollTo(0, element.scrollHeight)")
        return await table.get_by_text("project 000").count() > 0

    await eventually(is_at_the_end)
    await expect(table.get_by_text("project 000")).to_be_visible()


async def add_channel(page: Page, url: str) -> None:
    """Add a webhook, after an address that is none."""
    await page.get_by_role("button", name="Add a channel").click()
    await page.get_by_label("Name required").fill("our-chat")
    await page.get_by_label("Address required").fill("not an address")
    await page.get_by_role("button", name="Add", exact=True).click()
    await expect(page.locator(".field.wrong", has_text="Address")).to_be_visible()
    await check_accessible(page)
    await page.get_by_label("Address required").fill(f"{url}/hooks/T0K3N")

    await page.get_by_role("button", name="Add", exact=True).click()
    await expect(page.get_by_label("The channel is added")).to_contain_text("whsec_")
    await check_accessible(page)
    await page.get_by_label("The channel is added").get_by_role("button", name="Close").click()


async def test_channel_is_added_tested_and_removed(page: Page) -> None:
    receiver = Receiver()
    async with serve(receiver) as url:
        await page.get_by_role("link", name="Alerts").click()
        await expect(page.get_by_text("Alerts are only shown here")).to_be_visible()
        await check_accessible(page)
        await view(page, "Channels").click()
        await expect(page).to_have_url(re.compile("tab=channels"))
        await add_channel(page, url)

        row = page.get_by_role("row", name="our-chat")
        await expect(row).to_contain_text(url.removeprefix("http://"))
        await row.get_by_role("button", name="Send a test message").click()
        await expect(row).to_contain_text("Delivered")

        receiver.status = 500
        await row.get_by_role("button", name="Send a test message").click()
        await expect(row).to_contain_text("the receiver answered 500")
        assert {each["type"] for each in receiver.messages()} == {"test"}
        await page.reload()
        await expect(row).to_be_visible()

        content = await page.content()
        assert "T0K3N" not in content
        assert "whsec_" not in content
        await page.get_by_role("button", name="Remove our-chat").click()
        await page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
        await expect(page.get_by_text("No channels")).to_be_visible()


async def test_alert_fires_is_silenced_and_ends(platform: Platform, page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/alerts?tab=rules")
    rule = page.get_by_role("row", name="disk_used")
    await page.get_by_role("button", name="Change disk_used").click()
    await page.get_by_label("Threshold in %").fill("0")
    await page.get_by_label("Seconds that it must hold").fill("0")
    await check_accessible(page)
    await page.get_by_role("button", name="Save").click()

    await expect(rule).to_contain_text("changed")
    await check_accessible(page)
    await view(page, "Alerts").click()
    await expect(rule).to_contain_text("Firing")
    await check_accessible(page)
    await page.get_by_role("link", name="Home", exact=True).first.click()
    await expect(page.get_by_role("region", name="Wants attention")).to_contain_text("the disk of the platform")

    await page.get_by_role("link", name="the disk of the platform").click()
    await view(page, "Rules").click()
    await page.get_by_role("button", name="Silence disk_used").click()
    await page.get_by_label("Why").fill("it is known")
    await page.get_by_role("dialog").get_by_role("button", name="Silence", exact=True).click()
    await expect(rule).to_contain_text("until")
    await view(page, "Alerts").click()

    await expect(rule).to_contain_text("Silenced")
    await view(page, "Rules").click()
    await page.get_by_role("button", name="End the silence of disk_used").click()
    await page.get_by_role("button", name="Change disk_used").click()
    await page.get_by_label("State").select_option(label="Off")
    await page.get_by_role("button", name="Save").click()
    await view(page, "Alerts").click()

    await expect(rule).to_contain_text("Ended")


async def test_viewer_is_shown_neither_log_nor_alerts(platform: Platform, chromium: Browser) -> None:
    await platform.add_member("watches@example.com", "Viewer")
    url = platform.server.url
    async with sign_in_as(chromium, url, "watches@example.com", "/console/people") as page:
        await expect(page.get_by_role("row", name="admin@localhost")).to_be_visible()

        for name in ("Audit log", "Alerts"):
            await expect(page.get_by_role("link", name=name)).to_have_count(0)

        await page.goto(f"{url}/console/audit")
        await expect(page.get_by_text("You may not see the audit log")).to_be_visible()
        await page.goto(f"{url}/console/alerts")
        await expect(page.get_by_text("You may not see the alerts")).to_be_visible()


async def test_workspace_admin_sees_the_log_of_the_workspace(platform: Platform, chromium: Browser) -> None:
    await platform.add_member("leads@example.com", "Admin")
    await platform.call("POST", "/sessions", name="of the workspace")

    url = platform.server.url
    async with sign_in_as(chromium, url, "leads@example.com", "/console/audit") as page:
        await page.goto(f"{url}/console/audit?object=of+the+workspace")
        table = page.get_by_role("table", name="Audit log")
        await expect(table.get_by_text("project.create")).to_be_visible()

        async with page.expect_download() as started:
            await page.get_by_role("button", name="CSV").click()

        assert (await started.value).suggested_filename == "audit-log.csv"
        await expect(page.get_by_role("link", name="Alerts")).to_have_count(0)
        await page.goto(f"{url}/console/audit?action=platform")
        await expect(page.get_by_text("No entry matches")).to_be_visible()
