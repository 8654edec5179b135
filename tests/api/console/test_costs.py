"""Figures, usage and prices in Chromium, against a real platform with traces.

Each page is used with mouse and keyboard, and read by axe in both themes and at 1280 and 390 pixels.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import OF_THE_CONSOLE, check_accessible, sign_in_as
from tests.platforms import Platform

pytestmark = OF_THE_CONSOLE
MILLION = 1_000_000


def trace(project: str, model: str, node: str) -> list[dict[str, Any]]:
    """A root run and its model run, which read a million tokens."""
    at = datetime.now(UTC) - timedelta(minutes=10)
    times = {"start_time": at.isoformat(), "end_time": (at + timedelta(seconds=2)).isoformat()}
    root = {"id": str(uuid4()), "name": "agent", "run_type": "chain", "session_name": project, "inputs": {}, **times}

    metadata = {
        "ls_provider": "openai",
        "ls_model_name": model,
        "langgraph_node": node,
        "usage_metadata": {"input_tokens": MILLION, "output_tokens": 10, "total_tokens": MILLION + 10},
    }

    called = {
        **root,
        "id": str(uuid4()),
        "name": "model",
        "run_type": "llm",
        "parent_run_id": root["id"],
        "trace_id": root["id"],
        "extra": {"metadata": metadata},
    }

    return [root, called]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traces(platform: Platform) -> None:
    runs = [
        *trace("support", "gpt-4o", "answer"),
        *trace("support", "gpt-4o", "plan"),
        *trace("research", "house-model-1", "answer"),
        *trace("drafts", "model-without-price", "answer"),
    ]

    answer = await platform.client.post("/runs/batch", json={"post": runs})
    answer.raise_for_status()
    await platform.call("PUT", "/usage-limits", limit_type="monthly_traces", limit_value=100)


async def open_page(page: Page, platform: Platform, path: str) -> None:
    await page.goto(f"{platform.server.url}/console/{path}")


async def test_usage_is_shown_by_each_dimension(platform: Platform, traces: None, page: Page) -> None:
    await page.get_by_role("link", name="Usage").click()
    table = page.get_by_role("table", name="Usage by project")
    await expect(table.get_by_role("row", name="support")).to_contain_text("$5.00")
    await expect(table.get_by_role("row", name="drafts")).not_to_contain_text("$")
    await check_accessible(page)
    await page.get_by_label("By", exact=True).select_option("model")
    await expect(page.get_by_role("table", name="Usage by model").get_by_role("row", name="gpt-4o")).to_be_visible()

    assert "by=model" in page.url

    for name in ("user", "api_key", "workspace", "day"):
        await page.get_by_label("By", exact=True).select_option(name)
        await expect(page.get_by_role("row", name="All")).to_contain_text("$")

    await page.get_by_label("Period").select_option("24h")
    await page.reload()
    assert "range=24h" in page.url
    await expect(page.get_by_role("table", name="Monthly limits")).to_contain_text("100")
    await expect(page.get_by_role("table", name="Rate limits")).to_contain_text("1,000 in 10 s")

    async with page.expect_download() as started:
        await page.get_by_role("link", name="CSV").click()

    file = await (await started.value).path()
    assert file.read_text().startswith("time_bucket,workspace_id,workspace_name,traces,runs")


async def test_a_model_gets_a_price_and_the_past_its_cost(platform: Platform, traces: None, page: Page) -> None:
    await open_page(page, platform, "prices")
    models = page.get_by_role("table", name="Models in use")
    house = models.get_by_role("row", name="house-model-1")
    await expect(page.get_by_text("2 models without a price")).to_be_visible()
    await expect(models.get_by_role("row").nth(3)).to_contain_text("gpt-4o")
    await check_accessible(page)
    await house.get_by_role("button", name="Set a price").click()

    await page.get_by_label("Input required").fill("cheap")
    await page.get_by_label("Output required").fill("8")
    await page.get_by_role("button", name="Save the price").click()
    await expect(page.locator(".field.wrong", has_text="Input")).to_be_visible()
    await check_accessible(page)
    await page.get_by_label("Input required").fill("3")
    await page.get_by_role("button", name="Save the price").click()

    await expect(house.get_by_role("button", name="Set a price")).to_have_count(0)
    await page.get_by_role("button", name="Compute again").click()
    await expect(page.get_by_text("1 changed")).to_be_visible()
    await expect(house).to_contain_text("$3.00")
    await page.keyboard.press("Escape")
    await page.get_by_role("heading", name="Prices", exact=True).click()
    await page.keyboard.press("/")

    await page.keyboard.type("house")
    await expect(page.get_by_role("table", name="All prices").get_by_role("row")).to_have_count(2)
    assert "q=house" in page.url
    await page.get_by_role("button", name="Edit house-model-1").click()
    await page.get_by_role("button", name="Remove it").click()

    asked = page.get_by_role("dialog", name="Remove the price of house-model-1?")
    await check_accessible(page)
    await asked.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("table", name="All prices").get_by_role("row")).to_have_count(2)
    await page.get_by_role("button", name="Remove it").click()
    await asked.get_by_role("button", name="Remove", exact=True).click()
    await expect(page.get_by_text("No price matches.")).to_be_visible()


async def test_lines_with_one_name_are_all_shown(platform: Platform, traces: None, page: Page) -> None:
    section = (await platform.call("POST", "/charts/section", title="Twins"))["id"]
    series = [{"metric": metric, "name": "twin"} for metric in ("total_tokens", "prompt_tokens")]
    await platform.call("POST", "/charts/create", title="Both", series=series, section_id=section)
    await open_page(page, platform, "figures")

    both = page.get_by_role("region", name=re.compile("^Both"))
    await expect(both.get_by_role("listitem")).to_have_text(["twin", "twin"])
    await page.get_by_label("Period").select_option("1h")
    await expect(both.get_by_role("listitem")).to_have_text(["twin", "twin"])
    await both.get_by_text("Table", exact=True).click()
    await expect(both.get_by_role("columnheader")).to_have_count(3)
    await platform.call("DELETE", f"/charts/section/{section}")


async def test_figures_have_charts_tables_and_sections(platform: Platform, traces: None, page: Page) -> None:
    await page.get_by_role("link", name="Figures").click()
    cost = page.get_by_role("region", name="Cost by model USD")
    await expect(cost.get_by_role("img")).to_be_visible()
    await expect(cost.get_by_role("list")).to_contain_text("gpt-4o")
    await cost.get_by_text("Table", exact=True).click()
    await expect(cost.get_by_role("table")).to_contain_text("$5.00")
    await check_accessible(page)

    await page.get_by_label("Period").select_option("1h")
    await page.get_by_label("Step").select_option("15m")
    await page.get_by_label("Project").select_option("research")
    await expect(page.get_by_role("region", name="Traces").get_by_role("img")).to_be_visible()
    assert all(part in page.url for part in ("range=1h", "step=15m", "project="))
    await page.reload()
    await expect(page.get_by_label("Step")).to_have_value("15m")

    await page.get_by_label("Title of a new section").fill("Support")
    await page.get_by_role("button", name="Add a section").click()
    await page.get_by_role("button", name="New chart in Support").click()
    await page.get_by_label("Title", exact=True).fill("Spend")
    await page.get_by_label("Filter").fill("eq(")
    await page.get_by_role("button", name="Save the chart").click()
    await expect(page.get_by_role("form", name="New chart").get_by_role("alert")).to_be_visible()

    await page.get_by_label("Filter").fill("")
    await page.get_by_label("Group by").select_option("node")
    await page.get_by_role("button", name="Save the chart").click()
    spend = page.get_by_role("region", name="Spend USD")

    await expect(spend.get_by_role("list")).to_contain_text("plan")
    await check_accessible(page)
    await spend.get_by_role("button", name="Edit Spend").click()
    await page.get_by_label("Title", exact=True).fill("Calls")
    await page.get_by_label("Metric").select_option("run_count")
    await page.get_by_role("button", name="Save the chart").click()

    calls = page.get_by_role("region", name="Calls")
    await calls.get_by_role("button", name="Delete Calls").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(calls).to_have_count(0)
    await page.get_by_role("button", name="Rename Support").click()
    await page.get_by_label("Title of the section").fill("Service")
    await page.get_by_role("button", name="Save", exact=True).click()

    await expect(page.get_by_role("heading", name="Service")).to_be_visible()
    await page.get_by_role("button", name="Delete the section").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Service")).to_have_count(0)


async def test_home_shows_the_spend_of_the_month(platform: Platform, traces: None, page: Page) -> None:
    await expect(page.locator(".figure", has_text="Spent this month")).to_contain_text("$")
    await page.get_by_role("link", name="Spent this month").click()
    await expect(page.get_by_role("heading", name="Usage")).to_be_visible()


async def test_a_viewer_reads_and_changes_nothing(platform: Platform, traces: None, chromium: Browser) -> None:
    await platform.add_member("reader@example.com", "Viewer")
    at = "/console/figures"
    async with sign_in_as(chromium, platform.server.url, "reader@example.com", at) as page:
        await expect(page.get_by_role("region", name="Tokens tokens").get_by_role("img")).to_be_visible()
        await expect(page.get_by_role("button", name="Add a section")).to_have_count(0)
        await open_page(page, platform, "prices")
        await expect(page.get_by_role("table", name="All prices")).to_be_visible()

        for name in ("New price", "Compute again", "Set a price"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)

        await open_page(page, platform, "usage")
        await expect(page.get_by_role("table", name="Usage by project")).to_be_visible()
