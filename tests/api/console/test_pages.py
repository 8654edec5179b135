"""The pages of the console in Chromium, against a real platform with a real agent.

Each page is used with mouse and keyboard, and read by axe in both themes and at 1280 and 390 pixels.
"""

import asyncio
import re
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from portside.console import site
from tests import traced
from tests.browser import OF_THE_CONSOLE, check_accessible, open_console, sign_in_as
from tests.conftest import eventually
from tests.platforms import Platform, Repository

pytestmark = [*OF_THE_CONSOLE, pytest.mark.filterwarnings("ignore:.*is deprecated")]
DEPLOYED_WITHIN_MS = 300_000
ASLEEP_WITHIN_MS = 300_000
# It prints as many lines as a run asks for. That is below what a listener keeps of lines that it has not sent yet.
TALKATIVE = """
import sys
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict):
    first: int
    end: int
    version: str

def talk(state):
    sys.stdout.writelines(f"line {{number}} of many\\n" for number in range(state["first"], state["end"]))
    sys.stdout.flush()
    return {{"version": "{version}"}}

graph = StateGraph(State).add_node("talk", talk).add_edge(START, "talk").compile()
"""
LINES_AT_ONCE = 5_000
AGENT_PARTS = ("studio", "threads", "queue", "crons", "store")


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


@pytest.mark.skipif(not site.is_built(site.HELP_FILES), reason="the documentation is not built: make docs")
async def test_help_opens_the_documentation_whose_search_works_offline(platform: Platform, page: Page) -> None:
    async with page.context.expect_page() as opening:
        await page.get_by_role("link", name="Help").click()

    help_page = await opening.value
    requests: list[str] = []
    refusals: list[str] = []
    help_page.on("request", lambda request: requests.append(request.url))
    help_page.on("console", lambda said: refusals.append(said.text) if "Security Policy" in said.text else None)

    await help_page.reload()
    await expect(help_page.get_by_role("heading", name="Start here")).to_be_visible()
    await help_page.get_by_role("link", name="Operate", exact=True).first.click()
    await help_page.get_by_role("button", name="Search").click()
    await help_page.keyboard.type("DISK_RESERVE_BYTES")
    await expect(help_page.get_by_text(re.compile(r"\d+ results"))).to_be_visible()
    await help_page.keyboard.press("Enter")
    await expect(help_page).to_have_url(re.compile(r"operate\.html.*#disk-space$"))

    assert refusals == []
    assert [url for url in requests if not url.startswith(platform.server.url)] == []
    await help_page.close()


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


async def test_home_misses_no_deployment_of_a_later_page(platform: Platform, deployment: str, page: Page) -> None:
    connection = await asyncpg.connect(platform.database_url)
    # A hundred silent ones before another one, which comes on a page of its own.
    await connection.execute(
        """
        insert into deployments select (jsonb_populate_record(d, jsonb_build_object(
            'id', gen_random_uuid(), 'name', 'silent-' || n, 'status', 'UNKNOWN', 'assigned_listener_id', null,
            'created_at', d.created_at - n * interval '1 hour'
        ))).* from deployments d, generate_series(1, 101) n where d.id = $1
        """,
        UUID(deployment),
    )

    try:
        # Other tests of the module may have made deployments too.
        deployments = await connection.fetchval("select count(*) from deployments")
        await page.reload()
        await expect(page.get_by_text(f"of {deployments} serving")).to_be_visible()
        await expect(page.get_by_role("region", name="Wants attention")).to_contain_text("silent-101")
    finally:
        await connection.execute("delete from deployments where name like 'silent-%'")
        await connection.close()


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
    await expect(page.get_by_label("Name of secret 1")).to_be_focused()
    await page.get_by_role("button", name="Add a secret").click()
    await expect(page.get_by_label("Name of secret 1")).to_be_focused()
    await expect(page.get_by_label("Name of secret 2")).to_have_count(0)

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
    await expect(page.get_by_text("1 line", exact=True)).to_be_visible()
    assert "q=finished" in page.url
    await page.reload()
    await expect(page.get_by_text("1 line", exact=True)).to_be_visible()
    await check_accessible(page)

    states = page.get_by_role("list", name="States").get_by_role("listitem")
    boxes = [await each.bounding_box() for each in await states.all()]
    assert len({(box["x"], box["y"]) for box in boxes if box}) == len(boxes) > 1, "states lie on top of each other"
    before = page.url

    await page.get_by_role("button", name="Roll back to this").click()
    await check_accessible(page)
    await page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
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
    await expect(page.get_by_text("on main · two, by t")).to_be_visible()

    commits = {
        (await platform.call("GET", f"/v2/deployments/{deployment}/revisions/{each['id']}"))["source_revision_config"][
            "repo_commit_sha"
        ]
        for each in (await platform.call("GET", f"/v2/deployments/{deployment}/revisions"))["resources"]
    }

    assert len(commits) == 2
    await page.goto(f"{platform.server.url}/console/deployments/{deployment}")
    await expect(page.get_by_text("on main · two, by t")).to_be_visible()
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
    waiting = page.get_by_role("region", name="Threads that wait")

    await waiting.get_by_label("Hours").fill("9000")
    await waiting.get_by_role("button", name="Save").click()
    await expect(waiting.locator(".field.wrong")).to_have_count(1)
    await waiting.get_by_label("Hours").fill("12.5")
    await waiting.get_by_role("button", name="Save").click()
    await expect(waiting.get_by_role("button", name="Save")).to_have_count(0)

    pinned = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert pinned["pin_threads"] == 12.5
    assert pinned["latest_revision_id"] == stored["latest_revision_id"]


async def test_log_of_a_talkative_agent_does_not_fill_the_page(platform: Platform, page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "agent")
    repository.commit("one", agent=TALKATIVE)
    deployment = await platform.deploy(repository, "talkative-agent")
    await platform.ended(deployment)

    agent = await platform.url(deployment)
    await page.goto(f"{platform.server.url}/console/deployments/{deployment}/log")
    await expect(page.get_by_role("log")).to_be_visible()
    printed = 0

    async def shows_the_last_line() -> bool:
        return f"line {printed - 1} of many" in await page.get_by_role("log").inner_text()

    async def let_talk(lines: int) -> None:
        """Have lines printed, no faster than the page shows them."""
        nonlocal printed

        for _ in range(lines // LINES_AT_ONCE):
            first = printed
            printed = printed + LINES_AT_ONCE
            body = {"assistant_id": "agent", "input": {"first": first, "end": printed}}
            response = await platform.client.post(f"{agent}/runs/wait", json=body, timeout=300)
            assert response.status_code == 200, response.text
            await eventually(shows_the_last_line)

    await let_talk(25_000)
    await expect(page.get_by_text("20,000 lines")).to_be_visible()
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")

    async def heap() -> float:
        await session.send("HeapProfiler.collectGarbage")
        metrics = (await session.send("Performance.getMetrics"))["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize"))

    full = await heap()
    # By then twice as many lines were let go as are kept.
    await let_talk(40_000)
    await expect(page.get_by_text("20,000 lines")).to_be_visible()
    assert await page.locator(".log-line").count() < 200
    assert await heap() < 1.5 * full
    await page.get_by_role("button", name="Live").click()

    older = page.get_by_role("button", name="Older lines")
    for thousands in range(2, 21):
        await older.click()
        await expect(page.get_by_text(f"{thousands},000 lines", exact=True)).to_be_visible()

    await expect(page.get_by_text("search for older ones")).to_be_visible()
    await expect(older).to_have_count(0)


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


CHANGES = re.compile(
    "^(new|add|create|save|delete|remove|revoke|deploy|redeploy|roll back|edit|rename|archive|cancel|commit|tag|upload|"
    "import|thumb|generate|send|invite|compute|write|set|replace|stop sharing|done|run now|pause|resume|retry)",
    re.IGNORECASE,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages(platform: Platform, deployment: str) -> list[str]:
    """The addresses of pages with something to change on each."""

    def send() -> dict[str, str]:
        client = traced.open_tracing_client(platform.server.url, platform.headers["X-Api-Key"])
        turn = traced.send_turn(client, "viewed", "thread-1", 1)
        client.create_feedback(turn, "correct", score=0.5)
        client.flush()

        dataset = client.create_dataset("viewed")
        client.create_example(inputs={"q": 1}, outputs={"a": 2}, dataset_id=dataset.id)
        project = client.read_project(project_name="viewed")

        return {"turn": str(turn), "dataset": str(dataset.id), "project": str(project.id)}

    ids = await asyncio.to_thread(send)
    queue = (await platform.call("POST", "/annotation-queues", name="viewed"))["id"]
    response = await platform.client.post(f"/annotation-queues/{queue}/runs", json=[ids["turn"]])
    assert response.is_success
    await platform.call("POST", "/repos", repo_handle="viewed", is_public=False)

    manifest = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "prompts", "prompt", "PromptTemplate"],
        "kwargs": {},
    }

    await platform.call("POST", "/commits/-/viewed", manifest=manifest)
    await platform.call("POST", "/charts/section", title="viewed")
    revision = (await platform.call("GET", f"/v2/deployments/{deployment}"))["latest_revision_id"]
    trace = f"traces/{ids['project']}/{ids['turn']}"

    return [
        "",
        "inbox",
        "deployments",
        "deployments/new",
        f"deployments/{deployment}",
        f"deployments/{deployment}/log",
        f"deployments/{deployment}/settings",
        f"deployments/{deployment}/revisions/{revision}",
        "agents",
        "traces",
        f"traces/{ids['project']}",
        trace,
        f"{trace}?tab=feedback",
        f"{trace}?view=breakdown",
        f"traces/{ids['project']}/threads/thread-1",
        "datasets",
        "datasets/new",
        f"datasets/{ids['dataset']}",
        f"datasets/{ids['dataset']}?view=versions",
        "annotation",
        "annotation/new",
        f"annotation/{queue}",
        f"annotation/{queue}/edit",
        "figures",
        f"figures?project={ids['project']}",
        "usage",
        "prices",
        "prompts",
        "prompts/new",
        "prompts/viewed",
        "people",
        "people/keys",
        "people/sessions",
        "people/roles",
        "system",
        "system/git",
        "system/disk",
        "system/doctor",
        "system/settings",
        *(f"agents/{deployment}/{part}" for part in AGENT_PARTS),
    ]


async def list_controls(platform: Platform, page: Page, pages: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Open pages; return the controls of each that change something, and the requests that the server refused."""
    refused: list[str] = []
    page.on(
        "response",
        lambda got: (
            refused.append(f"{got.status} {got.request.method} {got.url}") if got.status in {401, 403} else None
        ),
    )

    # A page that follows what happens is never done.
    await page.get_by_role("button", name="Live").click()
    found: dict[str, list[str]] = {}
    for path in pages:
        await page.goto(f"{platform.server.url}/console/{path}")
        await page.wait_for_load_state("networkidle")
        await expect(page.get_by_role("progressbar", name="Loading")).to_have_count(0)
        await expect(page.locator("#page")).not_to_be_empty()

        names = [
            await each.get_attribute("aria-label") or await each.inner_text()
            for each in await page.locator("#page").locator("button:enabled, a.button").all()
        ]

        found[path] = [name for name in names if CHANGES.match(name.strip())]

    return {path: names for path, names in found.items() if names}, refused


async def test_admin_sees_controls_on_most_pages(platform: Platform, pages: list[str], page: Page) -> None:
    found, refused = await list_controls(platform, page, pages)
    assert len(found) >= len(pages) // 2
    assert refused == []


async def test_key_of_a_viewer_sees_no_control_and_is_refused_nothing(
    platform: Platform, pages: list[str], chromium: Browser
) -> None:
    key = (await platform.call("POST", "/api-key", description="a colleague", role_id="Viewer"))["key"]
    async with open_console(chromium) as page:
        await page.goto(f"{platform.server.url}/login")
        await page.get_by_text("Use an API key").click()
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Sign in with the key").click()
        await page.get_by_role("link", name="Open the console").click()

        attention = page.get_by_role("region", name="Wants attention")
        await expect(attention).to_contain_text("served-agent")
        await expect(attention).to_contain_text("that wait for a person are not shown")
        found, refused = await list_controls(platform, page, pages)
        assert found == {}
        assert refused == []
        await page.goto(f"{platform.server.url}/console/agents")

        await expect(page.get_by_text("You may not call any agent here")).to_be_visible()
        await check_accessible(page)
        await page.get_by_role("link", name="Inbox").click()
        await expect(page.get_by_text("Nobody waits, as far as you may see")).to_be_visible()


async def test_viewer_sees_no_control(platform: Platform, deployment: str, pages: list[str], chromium: Browser) -> None:
    await platform.add_member("viewer@example.com", "Viewer")
    at = f"/console/deployments/{deployment}/settings"
    path = f"/v2/deployments/{deployment}"
    async with sign_in_as(chromium, platform.server.url, "viewer@example.com", at) as page:
        await expect(page.get_by_text("MY_SECRET")).to_be_visible()
        # Members may call this agent, so its pages have their controls.
        of_platform = [each for each in pages if not each.startswith("agents")]
        found, refused = await list_controls(platform, page, of_platform)

        # Members of an organization make keys of their own.
        assert found == {"people/keys": ["New key"]}
        assert refused == []
        await page.goto(f"{platform.server.url}/console/deployments/new")
        await expect(page.get_by_text("You may not create deployments")).to_be_visible()
        await platform.call("PATCH", path, agent_access={"allow": "permission"})

        try:
            await page.goto(f"{platform.server.url}/console/agents/{deployment}/studio")
            await expect(page.get_by_text("need the permission deployments:call")).to_be_visible()
        finally:
            await platform.call("PATCH", path, agent_access={"allow": "workspace"})


async def test_agent_sleeps_and_is_woken_by_its_pages(platform: Platform, page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "agent")
    repository.commit("one")
    deployment = await platform.deploy(repository, "sleepy-agent")
    await platform.ended(deployment)

    at = f"{platform.server.url}/console/deployments/{deployment}"
    await page.goto(f"{at}/settings")
    sleep = page.get_by_role("region", name="Sleep")
    minutes = sleep.get_by_label("Minutes without a request and a run")

    await expect(minutes).to_have_value("")
    await check_accessible(page)

    for wrong, problem in (("1e9", "Expected"), ("an hour", "got `str`")):
        await minutes.fill(wrong)
        await sleep.get_by_role("button", name="Save").click()
        await expect(sleep.locator(".field.wrong")).to_contain_text(problem)

    await minutes.fill("0.02")
    await sleep.get_by_role("button", name="Save").click()
    await expect(page.locator(".head").get_by_text("Asleep")).to_be_visible(timeout=ASLEEP_WITHIN_MS)
    await check_accessible(page)

    # It stays awake from its next start on.
    await minutes.fill("60")
    await sleep.get_by_role("button", name="Save").click()
    await expect(sleep.get_by_role("button", name="Save")).to_have_count(0)

    # Neither lists nor the inbox wake it.
    await page.goto(f"{platform.server.url}/console/deployments")
    row = page.get_by_role("row").filter(has_text="sleepy-agent")
    await expect(row).to_contain_text("Asleep")
    await page.goto(f"{platform.server.url}/console/inbox")
    await expect(page.get_by_role("status").filter(has_text="sleepy-agent: asleep")).to_be_visible()
    await check_accessible(page)
    assert (await platform.call("GET", f"/v2/deployments/{deployment}"))["is_asleep"]

    await page.get_by_role("button", name="Wake and ask").click()

    async def is_awake() -> bool:
        return not (await platform.call("GET", f"/v2/deployments/{deployment}"))["is_asleep"]

    await eventually(is_awake, 120)
    await page.goto(f"{platform.server.url}/console/deployments")
    await expect(row).to_contain_text("Ready", timeout=ASLEEP_WITHIN_MS)
