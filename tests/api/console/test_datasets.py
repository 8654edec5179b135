"""The pages of datasets and experiments in Chromium, with experiments that the stock client ran.

Every page is read by axe in both themes and widths. What got worse is shown first, and data of users never runs.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests import traced
from tests.browser import OF_THE_CONSOLE, check_accessible, view
from tests.platforms import Platform

pytestmark = [*OF_THE_CONSOLE, pytest.mark.filterwarnings("ignore:.*is deprecated")]
TABLE = 'question,answer,kind\n"Where is ""A"", exactly?",Here,easy\n"Two\nlines",There,hard\n'
LINES = [
    {"inputs": {"q": 1}, "outputs": {"a": 2}, "metadata": {"kind": "odd"}},
    {"inputs": {"q": "<script>window.hacked=1</script>"}, "outputs": {"a": "x" * 300_000}, "split": "large"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cities(platform: Platform) -> str:
    """A dataset with six examples and two experiments."""

    def send() -> str:
        client = traced.open_tracing_client(platform.server.url, platform.headers["X-Api-Key"])
        return traced.run_experiments(client, "cities")

    return await asyncio.to_thread(send)


async def test_csv_becomes_a_dataset(platform: Platform, cities: str, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "questions.csv"
    file.write_text(TABLE, "utf-8")
    await page.get_by_role("link", name="Datasets", exact=True).click()
    await expect(page.get_by_role("table", name="Datasets")).to_contain_text("cities")
    await check_accessible(page)
    await page.get_by_role("heading", name="Datasets").click()
    await page.keyboard.press("c")

    await page.get_by_label("File").set_input_files(file)
    await expect(page.get_by_role("region", name="Contents of the file")).to_contain_text("2 examples")
    await page.get_by_label("Column kind").select_option("Metadata")
    await check_accessible(page)
    await page.get_by_role("button", name="Create").click()

    listed = page.get_by_role("table", name="Examples")
    await expect(listed.get_by_role("row")).to_have_count(3)
    await expect(page.get_by_role("heading", name="questions")).to_be_visible()
    dataset = page.url.split("/datasets/")[1].split("?")[0]
    stored = await platform.call("GET", f"/examples?dataset={dataset}")
    found = sorted((one["inputs"]["question"], one["outputs"]["answer"], one["metadata"]["kind"]) for one in stored)
    assert found == [("Two\nlines", "There", "hard"), ('Where is "A", exactly?', "Here", "easy")]


async def test_lines_of_json_become_a_dataset(platform: Platform, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("{oops\n", "utf-8")
    await page.goto(f"{platform.server.url}/console/datasets/new")
    await page.get_by_label("File").set_input_files(file)
    await expect(page.get_by_text("Line 1 is not JSON")).to_be_visible()

    file = tmp_path / "corrected.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES), "utf-8")
    await page.get_by_label("File").set_input_files(file)
    await page.get_by_role("button", name="Create").click()

    listed = page.get_by_role("table", name="Examples")
    await expect(listed.get_by_role("row")).to_have_count(3)
    await page.get_by_label("Split").select_option("large")
    await expect(listed.get_by_role("row")).to_have_count(2)
    await listed.get_by_text("<script>").click()

    panel = page.get_by_role("complementary", name=re.compile("^Example"))
    await expect(panel).to_contain_text("300 KB in all")
    assert await page.evaluate("window.hacked") is None
    await expect(panel.get_by_role("button", name="Edit")).to_have_count(0)
    await check_accessible(page)

    async with page.expect_download() as download:
        await page.get_by_role("button", name="JSONL").click()

    saved = (await (await download.value).path()).read_text("utf-8").splitlines()
    assert {json.dumps(json.loads(line)["inputs"]) for line in saved} == {json.dumps(line["inputs"]) for line in LINES}


async def test_examples_are_changed_and_versions_compared(platform: Platform, cities: str, page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/datasets/{cities}")
    listed = page.get_by_role("table", name="Examples")
    await expect(listed.get_by_role("row")).to_have_count(7)
    await listed.get_by_text("Where is city 2?").click()

    panel = page.get_by_role("complementary", name=re.compile("^Example"))
    await panel.get_by_role("button", name="Edit").click()
    await panel.get_by_label("Reference outputs").fill("[1]")
    await expect(panel.get_by_text("This is not a JSON object")).to_be_visible()
    await expect(panel.get_by_role("button", name="Save as a new version")).to_be_disabled()
    await panel.get_by_label("Reference outputs").fill('{"answer": "Elsewhere."}')
    await panel.get_by_label("Split").fill("test, hard")

    await check_accessible(page)
    await panel.get_by_role("button", name="Save as a new version").click()
    await expect(panel).to_contain_text("Elsewhere.")
    await page.keyboard.press("Escape")
    await page.keyboard.press("c")

    added = page.get_by_role("complementary", name="New example")
    await added.get_by_label("Inputs").fill('{"question": "Where is city 7?"}')
    await added.get_by_role("button", name="Add", exact=True).click()
    await expect(listed.get_by_role("row")).to_have_count(8)
    await page.get_by_label("Mark example").first.check()
    await page.get_by_label("Name of the split").fill("picked")
    await page.get_by_role("button", name="Add to the split").click()

    await page.get_by_label("Split", exact=True).select_option("picked")
    await expect(listed.get_by_role("row")).to_have_count(2)
    await view(page, "Versions").click()
    versions = page.get_by_role("region", name="Versions")

    await expect(versions.get_by_role("row")).to_have_count(5)
    await versions.get_by_role("button", name="Tag version 1").click()
    await versions.get_by_label("Tag", exact=True).fill("begin")
    await versions.get_by_role("button", name="Set").click()
    await expect(versions.get_by_role("row").last).to_contain_text("begin")
    await versions.get_by_label("From version 1").check()
    await versions.get_by_label("To version 3").check()

    differences = page.get_by_role("region", name="Differences")
    await expect(differences).to_contain_text("1 added · 1 changed · 0 removed")
    await differences.get_by_role("button", name=re.compile("^Changed")).click()
    await expect(differences.get_by_role("region", name="Before")).to_contain_text("In country 2.")
    await expect(differences.get_by_role("region", name="After")).to_contain_text("Elsewhere.")
    await check_accessible(page)
    await versions.get_by_role("link", name="1", exact=True).click()

    await expect(listed.get_by_role("row")).to_have_count(7)
    await expect(page.get_by_text("An earlier version cannot be changed")).to_be_visible()
    assert "as_of=" in page.url


async def test_marks_end_with_the_filter(platform: Platform, page: Page) -> None:
    dataset = (await platform.call("POST", "/datasets", name="marked"))["id"]
    for number, split in enumerate(("hard", "easy", "easy")):
        await platform.call("POST", "/examples", dataset_id=dataset, inputs={"q": number}, split=split)

    await page.goto(f"{platform.server.url}/console/datasets/{dataset}")
    listed = page.get_by_role("table", name="Examples")
    await page.get_by_label("Mark example").first.check()
    await expect(page.get_by_text("1 example marked")).to_be_visible()
    await page.get_by_label("Split", exact=True).select_option("hard")
    await expect(listed.get_by_role("row")).to_have_count(2)
    await expect(page.get_by_text("1 example marked")).to_have_count(0)

    await page.get_by_label("Split", exact=True).select_option("Every split")
    await expect(listed.get_by_role("row")).to_have_count(4)
    await expect(page.get_by_text("1 example marked")).to_have_count(0)


async def test_every_version_keeps_its_number(platform: Platform, page: Page) -> None:
    dataset = (await platform.call("POST", "/datasets", name="many-versions"))["id"]
    for number in range(105):
        await platform.call("POST", "/examples", dataset_id=dataset, inputs={"q": number})

    await page.goto(f"{platform.server.url}/console/datasets/{dataset}?view=versions")
    versions = page.get_by_role("region", name="Versions")
    await expect(versions.get_by_role("row").nth(1).get_by_role("link")).to_have_text("105")

    for rows in (101, 106):
        await versions.get_by_role("button", name="Older versions").click()
        await expect(versions.get_by_role("row")).to_have_count(rows)

    await expect(versions.get_by_role("row").last.get_by_role("link")).to_have_text("1")
    await expect(versions.get_by_role("button", name="Older versions")).to_have_count(0)
    await check_accessible(page)
    await versions.get_by_role("link", name="2", exact=True).click()
    await expect(page.get_by_role("table", name="Examples").get_by_role("row")).to_have_count(3)


async def test_experiments_are_compared_regressions_first(platform: Platform, cities: str, page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/datasets/{cities}?view=experiments")
    listed = page.get_by_role("table", name="Experiments")
    await expect(listed.get_by_role("row")).to_have_count(3)
    await expect(listed.get_by_role("row").nth(1)).to_contain_text("0.83")
    await check_accessible(page)
    await page.get_by_role("heading", name="cities").click()

    for _ in range(2):
        await page.keyboard.press("j")
        await page.keyboard.press("x")

    await page.get_by_role("button", name="Compare 2").click()
    results = page.get_by_role("table", name="Results")
    await expect(results.get_by_role("row").nth(1)).to_contain_text("Where is city 6?")
    await expect(results.get_by_role("row").nth(1)).to_contain_text("▼ 1 worse")
    await expect(results.get_by_role("row").nth(2)).to_contain_text("▲ 1 better")
    assert await page.evaluate("window.hacked") is None
    await check_accessible(page)

    await page.get_by_label("Only what got worse (1)").check()
    await expect(results.get_by_role("row")).to_have_count(2)
    await page.reload()
    await expect(results.get_by_role("row")).to_have_count(2)
    await results.get_by_role("link", name=re.compile("In country 6")).click()
    await expect(page.get_by_role("treeitem").first).to_be_visible()


async def test_thousands_of_examples_are_compared_part_by_part(platform: Platform, page: Page) -> None:
    def send() -> tuple[str, list[str]]:
        client = traced.open_tracing_client(platform.server.url, platform.headers["X-Api-Key"])
        return traced.send_results(client, "many", 5_150)

    dataset, experiments = await asyncio.to_thread(send)
    address = f"{platform.server.url}/console/datasets/{dataset}/compare"
    await page.goto(f"{address}?experiments={','.join(experiments)}")
    await expect(page.get_by_text("The first 5,000 examples are compared")).to_be_visible()
    await expect(page.get_by_label("Only what got worse (0)")).to_be_visible()
    await check_accessible(page)
    await page.get_by_role("button", name="Compare the next 5,000").click()

    await expect(page.get_by_text("5,150 examples")).to_be_visible()
    await page.get_by_label("Only what got worse (1)").check()
    results = page.get_by_role("table", name="Results")
    await expect(results.get_by_role("row")).to_have_count(2)
    await expect(results.get_by_role("row").nth(1)).to_contain_text("It failed.")


async def test_dataset_is_renamed_and_deleted(platform: Platform, page: Page) -> None:
    dataset = await platform.call("POST", "/datasets", name="to-delete")
    await page.goto(f"{platform.server.url}/console/datasets/{dataset['id']}")
    await expect(page.get_by_text("No examples yet")).to_be_visible()
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("Name required").fill("renamed")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="renamed")).to_be_visible()

    await page.get_by_role("button", name="Delete").click()
    await page.get_by_label("Type renamed to confirm").fill("renamed")
    await page.get_by_role("button", name="Delete for good").click()
    await expect(page).to_have_url(f"{platform.server.url}/console/datasets")
    assert [one["name"] for one in await platform.call("GET", "/datasets") if one["name"] == "renamed"] == []
