"""The pages of traces in Chromium, with traces that the stock client sent.

Every page is read by axe in both themes and widths. Data of users never runs, never calls out and never stops a page,
and a trace of 10,000 spans keeps the page small.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from tests import traced
from tests.browser import OF_THE_CONSOLE, check_accessible, open_console, view
from tests.platforms import Platform

pytestmark = [*OF_THE_CONSOLE, pytest.mark.filterwarnings("ignore:.*is deprecated")]
THREAD = "11111111-1111-4111-8111-111111111111"
SPANS = 10_000
MAX_HEAP_BYTES = 400 * 1024 * 1024
MAX_ROWS = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traces(platform: Platform) -> dict[str, str]:
    """Send conversations, a hostile run and a large trace; return ids by name."""

    def send() -> dict[str, str]:
        client = traced.open_tracing_client(platform.server.url, platform.headers["X-Api-Key"])
        turns = [traced.send_turn(client, "weather", THREAD, turn) for turn in (1, 2, 3)]
        failed = traced.send_turn(client, "weather", "failing", 1, error="ValueError: no such city")
        hostile = traced.send_hostile(client, "weather")

        client.create_feedback(turns[0], "correct", score=0.25, comment="Not quite.")
        large = traced.send_large(client, "large", SPANS)
        waiting, resumed = traced.send_question(client, "booking")
        client.flush()

        projects = {project.name: str(project.id) for project in client.list_projects()}
        found = {"turn": turns[2], "failed": failed, "hostile": hostile, "trace": large, "waiting": waiting}
        return {**projects, **{name: str(run_id) for name, run_id in found.items()}, "resumed": resumed}

    return await asyncio.to_thread(send)


async def test_list_is_filtered_by_its_address(platform: Platform, traces: dict[str, str], page: Page) -> None:
    await page.get_by_role("link", name="Traces", exact=True).click()
    projects = page.get_by_role("table", name="Projects")
    await expect(projects.get_by_role("row", name=re.compile("weather"))).to_contain_text("2.2 s")
    await check_accessible(page)
    await projects.get_by_role("link", name="weather").click()

    listed = page.get_by_role("table", name="Traces")
    await expect(listed.get_by_role("row")).to_have_count(6)
    await expect(listed).to_contain_text("Answer 3: it is")
    await expect(listed).to_contain_text("$0.0063")
    await check_accessible(page)
    await page.get_by_label("State").select_option("error")
    await expect(listed.get_by_role("row")).to_have_count(3)

    await page.get_by_role("button", name="Filters").click()
    await page.get_by_label("Error", exact=True).fill("no such city")
    await expect(listed.get_by_role("row")).to_have_count(2)
    assert "error=no+such+city" in page.url
    await page.reload()
    await expect(listed.get_by_role("row")).to_have_count(2)
    await page.get_by_role("button", name="Remove all").click()

    await page.get_by_label("State").select_option("")
    await expect(listed.get_by_role("row")).to_have_count(6)
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_label("Until", exact=True).fill("2020-01-02T08:00")
    await expect(listed.get_by_role("row")).to_have_count(0)
    await page.get_by_label("Until", exact=True).fill("")
    await expect(listed.get_by_role("row")).to_have_count(6)
    await page.get_by_label("Latency", exact=True).fill("soon")
    await expect(page.get_by_text("Write > 5s")).to_be_visible()
    await check_accessible(page)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("name=weather", 4),
        ("latency=%3E+2s", 4),
        ("latency=100s..200s", 0),
        ("tokens=%3E+1100", 4),
        ("cost=%3E+0.006", 4),
        ("cost=%3E+1", 0),
        ("tag=turn-2", 1),
        ("metadata=customer%3Dacme", 4),
        (f"thread={THREAD}", 3),
        ("user=user-2", 1),
        ("feedback=correct+%3C+0.5", 1),
        ("feedback=correct+%3E+0.5", 0),
        ("type=tool", 4),
        ("since=1h", 5),
        ("until=2020-01-01", 0),
        ("q=Lisbon", 4),
        ("filter=eq(thread_id%2C+%22failing%22)", 1),
        ("error=no+such", 1),
        ("view=runs&type=llm&tokens=%3E+385", 3),
        ("status=success", 3),
    ],
)
async def test_every_filter_finds_its_traces(
    platform: Platform, traces: dict[str, str], page: Page, search: str, found: int
) -> None:
    await page.goto(f"{platform.server.url}/console/traces/{traces['weather']}?{search}")

    if found:
        await expect(page.get_by_role("row")).to_have_count(found + 1)
    else:
        await expect(page.get_by_text("No trace matches")).to_be_visible()


async def test_a_long_search_goes_on_when_asked(platform: Platform, traces: dict[str, str], page: Page) -> None:
    async def shorten(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        await route.continue_(post_data=json.dumps({**body, "search_seconds": 1e-6}))

    await page.route("**/v2/runs/query", shorten)
    await page.goto(f"{platform.server.url}/console/traces/{traces['large']}?view=runs&name=nobody")
    go_on = page.get_by_role("button", name="Go on searching")
    over = page.get_by_text("No run matches")

    await expect(page.get_by_text("Nothing found yet")).to_be_visible()
    await check_accessible(page)

    while await go_on.is_visible():
        await go_on.click()
        await expect(go_on.or_(over)).to_be_visible()

    await expect(over).to_be_visible()


async def test_trace_is_walked_with_the_keyboard(platform: Platform, traces: dict[str, str], page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/traces?run={traces['turn']}")
    spans = page.get_by_role("treeitem")
    await expect(spans).to_have_count(8)
    assert f"/console/traces/{traces['weather']}/{traces['turn']}" in page.url
    panel = page.get_by_role("complementary", name="Span")

    await expect(panel.get_by_role("list").first).to_contain_text("Question 3")
    await check_accessible(page)
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(panel.get_by_role("heading", name="ChatModel")).to_be_visible()
    await expect(panel).to_contain_text("in ·")
    await page.keyboard.press("ArrowLeft")

    await page.keyboard.press("ArrowLeft")
    await expect(spans).to_have_count(7)
    await page.keyboard.press("ArrowRight")
    await expect(spans).to_have_count(8)
    await page.reload()
    await expect(panel.get_by_role("heading", name="plan")).to_be_visible()
    await page.keyboard.press("/")

    await page.keyboard.type("get_weather")
    await expect(spans).to_have_count(3)
    await page.get_by_role("treeitem", name=re.compile("get_weather")).click()
    await expect(panel).to_contain_text("celsius")
    await view(panel, "Metadata").click()
    assert "tab=metadata" in page.url
    await view(page, "By node and model").click()

    await expect(page.get_by_role("region", name="By model")).to_contain_text("small-model-1")
    await expect(page.get_by_role("region", name="By node").get_by_role("row")).to_have_count(4)
    await check_accessible(page)


async def test_question_is_interrupted_and_its_answer_is_readable(
    platform: Platform, traces: dict[str, str], page: Page
) -> None:
    address = f"{platform.server.url}/console/traces/{traces['booking']}"
    await page.goto(f"{address}?view=runs&status=interrupted")
    await expect(page.get_by_role("table", name="Runs")).to_contain_text("Interrupted")
    await page.goto(f"{address}?status=interrupted")

    rows = page.get_by_role("table", name="Traces").get_by_role("row")
    await expect(rows).to_have_count(2)
    await expect(rows.last).to_contain_text("Interrupted")
    await page.goto(f"{address}?view=runs&status=error")
    await expect(page.get_by_text("No run matches")).to_be_visible()
    await page.goto(f"{address}/{traces['waiting']}")
    await expect(page.locator(".head")).to_contain_text("interrupted")

    await expect(page.locator(".head")).not_to_contain_text("failed")
    await page.get_by_role("treeitem", name="Interrupted ask", exact=False).last.click()
    panel = page.get_by_role("complementary", name="Span")
    await expect(panel.get_by_role("region", name="Interrupt")).to_contain_text("Which city?")
    await check_accessible(page)
    await page.goto(address)
    await expect(page.get_by_role("table", name="Traces")).to_contain_text("Answer: Lisbon")

    await page.goto(f"{address}/{traces['resumed']}")
    given = panel.get_by_role("region", name="Input")
    await expect(given.get_by_role("definition")).to_have_text("Lisbon")
    await check_accessible(page)
    await given.get_by_role("button", name="JSON").click()
    await expect(given).to_contain_text("resume")


async def test_run_is_judged_and_downloaded(platform: Platform, traces: dict[str, str], page: Page) -> None:
    run = traces["turn"]
    await page.goto(f"{platform.server.url}/console/traces/{traces['weather']}/{run}?tab=feedback")
    panel = page.get_by_role("complementary", name="Span")
    await expect(panel.get_by_text("Nobody has judged this run yet")).to_be_visible()
    await panel.get_by_label("Comment").fill("Well <b>done</b>")
    await panel.get_by_role("button", name="Thumb up").click()

    given = panel.get_by_role("list", name="Feedback")
    await expect(given).to_contain_text("Well <b>done</b>")
    await panel.get_by_label("Key of the feedback").fill("correct")
    await panel.get_by_label("Score", exact=True).fill("0.5")
    await panel.get_by_role("button", name="Add feedback").click()
    await expect(given.get_by_role("listitem")).to_have_count(2)
    await check_accessible(page)

    await panel.get_by_role("button", name="Delete the feedback user_score").click()
    await expect(given.get_by_role("listitem")).to_have_count(1)
    stored = await platform.call("GET", f"/feedback?run={run}")
    assert [(one["key"], one["score"], one["feedback_source"]["type"]) for one in stored] == [("correct", 0.5, "app")]

    async with page.expect_download() as download:
        await panel.get_by_role("button", name="JSON", exact=True).click()

    saved = json.loads((await (await download.value).path()).read_text("utf-8"))
    assert (saved["id"], saved["name"]) == (run, "weather agent")
    await page.route(f"**/runs/{run}", lambda route: route.fulfill(status=503, json={"detail": "in maintenance"}))
    await panel.get_by_role("button", name="JSON", exact=True).click()
    await expect(panel.get_by_role("alert")).to_contain_text("in maintenance")


async def test_shared_trace_is_read_without_an_account_until_sharing_ends(
    platform: Platform, traces: dict[str, str], page: Page, chromium: Browser
) -> None:
    await page.goto(f"{platform.server.url}/console/traces/{traces['weather']}/{traces['turn']}")
    panel = page.get_by_role("complementary", name="Span")
    await panel.get_by_role("button", name="Share").click()
    await panel.get_by_role("button", name="Create a link").click()

    link = await panel.get_by_role("link").filter(has_text="shared").get_attribute("href")
    assert link is not None
    async with visitor(chromium) as (theirs, sent):
        await theirs.goto(link)
        await expect(theirs.get_by_role("treeitem")).to_have_count(8)
        shown = theirs.get_by_role("complementary", name="Span")
        await expect(shown.get_by_role("list").first).to_contain_text("Question 3")
        await check_accessible(theirs)
        await theirs.get_by_role("treeitem", name=re.compile("get_weather")).click()
        await expect(shown).to_contain_text("celsius")

        await view(shown, "Metadata").click()
        await theirs.reload()
        await expect(shown.get_by_label("Metadata")).to_contain_text("langgraph_node")

        async with theirs.expect_download() as download:
            await view(shown, "Input and output").click()
            await shown.get_by_role("button", name="Download: Output").click()

        saved = json.loads((await (await download.value).path()).read_text("utf-8"))
        assert saved == {"output": {"celsius": 24, "sky": "clear"}}

        for name in ("Share", "Add to…", "JSON", "Sign out"):
            await expect(theirs.get_by_role("button", name=name, exact=True)).to_have_count(0)

        await expect(theirs.get_by_role("navigation", name="Places")).to_have_count(0)
        paths = {path for path in sent if not path.startswith(("/console/", "blob:"))}
        assert {path for path in paths if "/public/" not in path} == set()
        sdk = f"{platform.server.url}/public/{link.rsplit('/', 1)[1]}/r"

        await theirs.goto(sdk)
        await expect(theirs).to_have_url(link)
        await theirs.goto(f"{platform.server.url}/console/traces")
        await expect(theirs).to_have_url(re.compile("/login"))
        await panel.get_by_role("button", name="Stop sharing").click()
        await expect(panel.get_by_text("Not shared.")).to_be_visible()
        await theirs.goto(link)

        await expect(theirs.get_by_text("This link shares nothing")).to_be_visible()
        await expect(theirs.get_by_role("treeitem")).to_have_count(0)
        await check_accessible(theirs)


@pytest.mark.parametrize("name", ["hostile", "trace"])
async def test_shared_trace_holds_what_is_hostile_or_large(
    platform: Platform, traces: dict[str, str], chromium: Browser, name: str
) -> None:
    token = (await platform.call("PUT", f"/runs/{traces[name]}/share", share_token=None))["share_token"]
    async with visitor(chromium) as (theirs, sent):
        await theirs.goto(f"{platform.server.url}/console/shared/{token}")
        shown = theirs.get_by_role("complementary", name="Span")
        if name == "trace":
            await expect(theirs.locator(".head")).to_contain_text("10,000")
            assert await theirs.get_by_role("treeitem").count() < MAX_ROWS
        else:
            await expect(shown.get_by_role("heading", name="Title")).to_be_visible()
            await expect(shown.get_by_role("region", name="Output")).to_contain_text("too large to be shown")
            assert await theirs.evaluate("window.hacked") is None

        assert {path for path in sent if not path.startswith(("/console/", "/v2/public/", "/public/"))} == set()


@asynccontextmanager
async def visitor(chromium: Browser) -> AsyncIterator[tuple[Page, list[str]]]:
    """Open a page without a session; the list is of the paths that it asked for."""
    async with open_console(chromium) as page:
        sent: list[str] = []
        page.on("request", lambda asked: sent.append(urlsplit(asked.url).path))
        yield page, sent
        assert await page.context.cookies() == []


async def test_conversation_shows_what_each_turn_added(platform: Platform, traces: dict[str, str], page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/traces/{traces['weather']}?view=threads")
    listed = page.get_by_role("table", name="Conversations")
    await expect(listed.get_by_role("row")).to_have_count(3)
    await check_accessible(page)
    await listed.get_by_role("link", name=THREAD[-8:]).click()

    turns = page.get_by_role("list", name="Turns").locator("> li")
    await expect(turns).to_have_count(3)
    await expect(turns.nth(2)).to_contain_text("Question 3 about")
    await expect(turns.nth(2)).not_to_contain_text("Question 1 about")
    await check_accessible(page)
    await turns.nth(2).get_by_role("link", name="weather agent").click()
    await expect(page.get_by_role("treeitem")).to_have_count(8)

    await expect(page.get_by_role("link", name="Conversation", exact=True)).to_be_visible()


async def test_hostile_data_neither_runs_nor_calls_out_nor_stops_the_page(
    platform: Platform, traces: dict[str, str], page: Page
) -> None:
    outside: list[str] = []
    page.on("request", lambda sent: None if platform.server.url in sent.url else outside.append(sent.url))
    address = f"{platform.server.url}/console/traces/{traces['weather']}"
    await page.goto(address)
    await expect(page.get_by_role("link", name=re.compile("hostile <script>"))).to_be_visible()
    await page.goto(f"{address}/{traces['hostile']}")

    panel = page.get_by_role("complementary", name="Span")
    await expect(panel.get_by_role("region", name="Error")).to_contain_text("red link")
    await expect(panel.get_by_role("heading", name="Title")).to_be_visible()
    await expect(panel.get_by_role("region", name="Output")).to_contain_text("too large to be shown")
    await check_accessible(page)
    await panel.get_by_role("region", name="Input").get_by_role("button", name="JSON").click()
    await expect(panel.get_by_role("region", name="Input")).to_contain_text("<script>")

    async with page.expect_download() as download:
        await panel.get_by_role("button", name="Download: Output").click()

    saved = json.loads((await (await download.value).path()).read_text("utf-8"))
    assert saved["large"] == traced.LARGE
    await view(panel, "Metadata").click()
    await expect(panel).to_contain_text("![pixel]")

    links = await panel.get_by_role("link").evaluate_all("links => links.map((link) => link.href)")
    assert [link for link in links if link.startswith("javascript")] == []
    assert await page.evaluate("window.hacked") is None
    assert [url for url in outside if not url.startswith(("blob:", "data:"))] == []


async def test_ten_thousand_spans_keep_the_page_small(platform: Platform, traces: dict[str, str], page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/traces/{traces['large']}/{traces['trace']}")
    await expect(page.get_by_text("10,000", exact=False).first).to_be_visible()
    tree = page.get_by_role("tree", name="Spans")
    session = await page.context.new_cdp_session(page)

    async def measured() -> dict[str, Any]:
        await session.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}
        return {"heap": metrics["JSHeapUsedSize"], "rows": await page.get_by_role("treeitem").count()}

    await session.send("Performance.enable")
    at_first = await measured()
    await tree.focus()
    await page.keyboard.press("End")
    await expect(page.get_by_role("treeitem", selected=True)).to_be_visible()

    for _ in range(20):
        await page.keyboard.press("k")

    await page.get_by_role("button", name="Collapse all").click()
    await page.get_by_label("Find spans").fill("tool 9997")
    await expect(page.get_by_role("treeitem", name=re.compile("tool 9997"))).to_be_visible()

    at_last = await measured()
    for figures in (at_first, at_last):
        assert figures["rows"] < MAX_ROWS
        assert figures["heap"] < MAX_HEAP_BYTES


async def test_a_chosen_span_is_named_only_while_its_row_is_in_the_page(
    platform: Platform, traces: dict[str, str], page: Page
) -> None:
    await page.goto(f"{platform.server.url}/console/traces/{traces['large']}/{traces['trace']}")
    tree = page.get_by_role("tree", name="Spans")
    chosen = page.get_by_role("treeitem", selected=True)
    await tree.focus()
    await page.keyboard.press("End")
    await expect(chosen).to_be_in_viewport()

    named = await chosen.get_attribute("id") or "no id"
    await expect(tree).to_have_attribute("aria-activedescendant", named)
    await tree.evaluate("tree => { tree.scrollTop = 0 }")
    await expect(chosen).to_have_count(0)
    await expect(tree).not_to_have_attribute("aria-activedescendant", re.compile("."))
    await tree.evaluate("tree => { tree.scrollTop = tree.scrollHeight }")
    await expect(tree).to_have_attribute("aria-activedescendant", named)


async def test_marked_runs_become_examples_and_work_for_people(
    platform: Platform, traces: dict[str, str], page: Page
) -> None:
    dataset = await platform.call("POST", "/datasets", name="from-traces")
    queue = await platform.call("POST", "/annotation-queues", name="to-check")
    await page.goto(f"{platform.server.url}/console/traces/{traces['weather']}?status=success")
    listed = page.get_by_role("table", name="Traces")

    await expect(listed.get_by_role("row")).to_have_count(4)
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(page.get_by_text("2 runs marked")).to_be_visible()
    await check_accessible(page)

    await page.get_by_label("Dataset").select_option("from-traces")
    await page.get_by_role("button", name="Add as examples").click()
    await expect(page.get_by_text("Added to")).to_be_visible()
    assert len(await platform.call("GET", f"/examples?dataset={dataset['id']}")) == 2
    await page.get_by_label("Annotation queue").select_option("to-check")
    await page.get_by_role("button", name="Add to the queue").click()
    await expect(page.get_by_text("Added to")).to_have_count(2)

    size = await platform.call("GET", f"/annotation-queues/{queue['id']}/size")
    assert size == {"size": 2, "completed": 0}
