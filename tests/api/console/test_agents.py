"""The console's pages of agents in Chromium: they call a real agent of a real platform with tokens of their own.

Each page is used with mouse and keyboard, and read by axe in both themes and at 1280 and 390 pixels.
"""

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import OF_THE_CONSOLE, WITHIN_MS, check_accessible, sign_in_as, view
from tests.platforms import Platform, find_servers
from tests.repositories import Repository
from tests.servers import PROJECTS

pytestmark = OF_THE_CONSOLE
PROJECT = PROJECTS / "studio"


class Agent:
    """A deployed agent: its deployment, its address, and a client."""

    def __init__(self, platform: Platform, deployment: str, url: str) -> None:
        self.pages = f"{platform.server.url}/console/agents/{deployment}"
        self.client = httpx2.AsyncClient(base_url=f"{url}/", headers=platform.headers, timeout=300)

    async def call(self, method: str, path: str, **body: Any) -> Any:
        """Call the agent with the platform's key."""
        response = await self.client.request(method, path, json=body or None)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def say(self, text: str, thread: str | None = None, **metadata: Any) -> str:
        """Say something to the chat, and return its thread."""
        thread = thread or (await self.call("POST", "threads", metadata=metadata))["thread_id"]
        message = {"role": "user", "content": text}
        body = {"assistant_id": "chat", "input": {"messages": [message]}}
        await self.call("POST", f"threads/{thread}/runs/wait", **body)
        return str(thread)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    repository = Repository(tmp_path_factory.mktemp("of-the-agent") / "agent")
    files = {file.name: file.read_text("utf-8") for file in PROJECT.iterdir() if file.is_file()}
    config = {**json.loads(files["langgraph.json"]), "store": {"index": {"embed": "./embed.py:embed", "dims": 4}}}
    embed = (PROJECT.parent / "store" / "embed.py").read_text("utf-8")

    repository.commit({**files, "embed.py": embed, "langgraph.json": json.dumps(config)})
    deployment = await platform.deploy(repository, "studio-agent")
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    found = Agent(platform, deployment, await platform.url(deployment))

    yield found
    await found.client.aclose()


async def test_threads_are_found_by_id_metadata_and_state(agent: Agent, page: Page) -> None:
    ada = await agent.say("hello of ada", user="ada")
    bob = await agent.say("please mail bob", user="bob")
    await page.get_by_role("link", name="Agents").click()
    await expect(page).to_have_url(re.compile(agent.pages))
    await page.get_by_role("link", name="Threads", exact=True).first.click()

    row_of_ada = page.get_by_role("row", name=re.compile("hello of ada"))
    row_of_bob = page.get_by_role("row", name=re.compile("please mail bob"))
    await expect(row_of_ada).to_contain_text("Idle")
    await expect(row_of_bob).to_contain_text("Waits for a person")
    await check_accessible(page)
    await page.keyboard.press("/")

    for text in ("user=ada", ada):
        await page.get_by_label("Search threads").fill(text)
        await expect(row_of_bob).to_be_hidden()
        await expect(row_of_ada).to_be_visible()

    await expect(page).to_have_url(re.compile(f"q={ada}"))
    await expect(page.get_by_role("heading", level=1, name="Threads of studio-agent")).to_have_count(1)
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Search by name or id").fill(bob)
    await expect(page.get_by_role("option", name=re.compile("Thread"))).to_contain_text("of studio-agent")
    await page.keyboard.press("Escape")
    await page.get_by_label("Search threads").fill("")

    await expect(row_of_bob).to_be_visible()
    await page.get_by_label("State").select_option("Waits for a person")
    await expect(row_of_ada).to_be_hidden()
    await page.reload()
    await expect(row_of_bob).to_be_visible()
    await expect(row_of_ada).to_be_hidden()
    await row_of_bob.get_by_role("link").click()

    await expect(page).to_have_url(re.compile(bob))


async def test_thread_shows_checkpoints_states_and_changes(agent: Agent, page: Page) -> None:
    thread = await agent.say("first words")
    await page.goto(f"{agent.pages}/threads/{thread}")
    checkpoints = page.get_by_role("region", name="Checkpoints")
    await expect(checkpoints.get_by_role("button")).to_have_count(3)
    await check_accessible(page)

    # What happens elsewhere shows without a reload.
    await agent.say("second words", thread)
    await expect(checkpoints.get_by_role("button")).to_have_count(6)
    await view(page, "Changes").click()
    await expect(view(page, "Changes")).to_have_attribute("aria-current", "page")
    await expect(view(page, "State")).not_to_have_attribute("aria-current", "page")
    await expect(page.locator(".diff")).to_contain_text("second words")
    await expect(page.locator(".diff")).not_to_contain_text("first words")

    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(page.locator(".diff")).to_have_count(1)
    assert "checkpoint=" in page.url
    await check_accessible(page)
    await page.get_by_role("button", name="Compare others with this one").click()
    await checkpoints.get_by_role("button").first.click()

    await expect(page.locator(".diff .added")).to_have_count(2)
    await view(page, "Runs").click()
    await expect(page.get_by_text("Done")).to_have_count(2)
    await expect(page.get_by_role("link", name="Trace", exact=True)).to_have_count(2)
    await check_accessible(page)
    await page.get_by_role("link", name="Open this checkpoint in the studio").click()
    await expect(message(page, "You said second words")).to_be_visible()


async def test_a_large_value_is_previewed_and_downloaded(agent: Agent, page: Page) -> None:
    thread = await agent.say("something large")
    await page.goto(f"{agent.pages}/threads/{thread}?view=diff")
    await page.get_by_role("button", name=re.compile("^{content")).click()
    await expect(page.get_by_text("5.0 MB in all")).to_be_visible()
    assert len(await page.content()) < 200_000

    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download content").click()

    assert (await (await download.value).path()).stat().st_size == 5_000_000


async def open_chat(page: Page, agent: Agent, thread: str | None = None) -> None:
    """Open the studio with the chat."""
    await page.goto(f"{agent.pages}/studio" + (f"?thread={thread}" if thread else ""))
    await page.get_by_label("Assistant", exact=True).select_option(label="chat")
    if thread:
        await page.goto(f"{page.url}&thread={thread}")

    await expect(page.get_by_label("Message", exact=True)).to_be_visible()


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


def message(page: Page, text: str) -> Any:
    return page.get_by_role("article").filter(has_text=text)


async def test_chat_streams_answers_and_tools(platform: Platform, agent: Agent, page: Page) -> None:
    await open_chat(page, agent)
    await expect(page.get_by_role("figure", name=re.compile("^Graph: .*model"))).to_be_visible()
    await check_accessible(page)
    await say(page, "what is the weather?")

    tool = page.get_by_role("region", name="Tool weather")
    await expect(tool).to_contain_text("rain in Bergen")
    await expect(tool).to_contain_text("done")
    await expect(message(page, "The tool says: rain in Bergen")).to_have_count(1)
    await expect(page.locator('[data-state="done"]')).to_have_count(2)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await say(page, "hello")

    answer = message(page, "You said hello")
    await expect(answer.locator("strong", has_text="hello")).to_have_count(1)
    await expect(answer).to_contain_text("<script>alert(1)</script>")
    await expect(answer.locator("script")).to_have_count(0)
    await expect(answer.locator(".token-text")).to_have_text("'hello'")
    await expect(answer.locator("time")).to_have_text(re.compile("ago|now"))
    await answer.get_by_role("button", name="Copy the code").click()
    await expect(answer.get_by_role("button", name="Copy the code")).to_have_text(re.compile("Copied|Could not"))

    await check_accessible(page)
    await page.reload()
    await expect(page.get_by_role("article")).to_have_count(5)

    # The run's trace is there, so that somebody may rate it.
    await page.get_by_role("button", name="Good", exact=True).click()
    await expect(page.get_by_text("stored as user_score")).to_be_visible()
    run = re.search(r"run=([0-9a-f-]+)", await page.get_by_text("Trace of the last run").get_attribute("href") or "")
    assert run
    (feedback,) = await platform.call("GET", f"/feedback?run={run[1]}")
    assert (feedback["key"], feedback["score"]) == ("user_score", 1)


async def test_run_is_followed_after_a_refresh_and_in_a_second_tab(agent: Agent, page: Page, tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    await open_chat(page, agent)
    await say(page, f"hold {tmp_path / 'go'}")
    await expect(message(page, "word29")).to_be_visible()

    second = await page.context.new_page()
    await second.goto(page.url)
    await page.reload()

    for each in (page, second):
        await expect(message(each, "word29")).to_be_visible()
        await expect(each.locator('[data-state="running"]')).to_have_text("model")

    (tmp_path / "go").touch()

    for each in (page, second):
        answer = each.get_by_role("article", name="Message of Agent")
        await expect(answer.locator(".markdown")).to_have_text(words, use_inner_text=True)
        await expect(each.get_by_role("button", name="Send")).to_be_visible()
        await expect(each.get_by_role("article")).to_have_count(2)

    # What the second tab begins shows in the first one, and may be stopped there.
    await say(second, f"hold {tmp_path / 'never'}")
    await expect(message(page, "never")).to_be_visible()
    await page.get_by_role("button", name="Stop").click()

    for each in (page, second):
        await expect(each.get_by_role("button", name="Send")).to_be_visible()
        # What was written stays on the page, and nothing looks like a failure.
        await expect(message(each, "not part of the thread")).to_contain_text("word29")
        await expect(each.get_by_text("model was stopped")).to_be_visible()
        await expect(each.get_by_text("CancelledError")).to_have_count(0)

    await second.close()


async def test_stream_goes_on_when_the_server_is_killed(
    platform: Platform, agent: Agent, page: Page, tmp_path: Path
) -> None:
    await open_chat(page, agent)
    await say(page, f"hold {tmp_path / 'go'}")
    await expect(message(page, "word29")).to_be_visible()

    for process in find_servers(platform.home):
        os.kill(process, signal.SIGKILL)

    await expect(page.get_by_text("The connection was lost")).to_be_visible()
    (tmp_path / "go").touch()
    await expect(message(page, "word59")).to_be_visible(timeout=2 * WITHIN_MS)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_count(2)


async def test_every_question_is_answered_by_its_id(agent: Agent, page: Page) -> None:
    await open_chat(page, agent)
    await say(page, "ask twice")
    questions = page.get_by_role("article", name="Question")
    await expect(questions).to_have_count(2)
    await check_accessible(page)
    await page.reload()
    await questions.filter(has_text="When?").get_by_label("Answer").fill("noon")

    await expect(page.get_by_role("button", name="Send 1 of 2 answers")).to_be_enabled()
    await questions.filter(has_text="Who?").get_by_label("Answer").fill("Ada")
    await page.get_by_role("button", name="Send 2 of 2 answers").click()
    await expect(message(page, "who: Ada")).to_be_visible()
    await expect(message(page, "when: noon")).to_be_visible()
    await expect(questions).to_have_count(0)
    await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()

    await say(page, "please mail")
    await page.get_by_role("radio", name="Edit").click()
    await page.get_by_label("Arguments of send_mail").fill('{"to": "bob"')
    await expect(page.get_by_text("Not JSON yet")).to_be_visible()
    await expect(page.get_by_role("button", name="Send the answer")).to_be_disabled()
    await page.get_by_label("Arguments of send_mail").fill('{"to": "bob"}')
    await check_accessible(page)

    await page.get_by_role("button", name="Send the answer").click()
    await expect(message(page, "decided: edit {'to': 'bob'}")).to_be_visible()


async def test_edited_message_begins_a_branch(agent: Agent, page: Page) -> None:
    thread = await agent.say("one")
    await agent.say("two", thread)
    await open_chat(page, agent, thread)
    await message(page, "one").first.get_by_role("button", name="Edit").click()
    await page.get_by_label("Edited message").fill("uno")
    await page.get_by_role("button", name="Run from here").click()
    await expect(message(page, "You said uno")).to_be_visible()

    await expect(page.get_by_role("article")).to_have_count(2)
    await expect(page.get_by_text("Branch 2 of 2")).to_be_visible()
    await page.get_by_role("button", name="Earlier branch").click()
    await expect(message(page, "You said two")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_count(4)
    await check_accessible(page)
    await page.reload()

    await expect(page.get_by_role("article")).to_have_count(4)
    await say(page, "three")
    await expect(message(page, "You said three")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_count(6)
    await page.get_by_role("button", name="Run again").last.click()
    await expect(page.get_by_text("Branch 3 of 3")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_count(6)


async def test_state_is_edited_and_replayed(agent: Agent, page: Page) -> None:
    thread = await agent.say("one")
    await open_chat(page, agent, thread)
    await view(page, "State").click()
    notes = page.get_by_role("region", name="notes")

    await notes.get_by_role("button", name="Edit").click()
    await page.get_by_label("New value of notes").fill('["remember"]')
    await check_accessible(page)
    await page.get_by_role("button", name="Save as a new checkpoint").click()
    await expect(notes.get_by_role("button", name="Edit")).to_be_visible()
    await expect(notes).to_contain_text("remember")

    state = await agent.call("GET", f"threads/{thread}/state")
    assert state["values"]["notes"] == ["remember"]
    history = await agent.call("POST", f"threads/{thread}/history", limit=100)
    (before_model,) = [each for each in history if each["next"] == ["model"]]

    await page.goto(f"{page.url}&checkpoint={before_model['checkpoint']['checkpoint_id']}")
    await expect(page.get_by_text("You look at an earlier checkpoint")).to_be_visible()
    await page.get_by_role("button", name="Run again from here").click()
    await expect(page.get_by_text("You look at an earlier checkpoint")).to_be_hidden()
    await expect(notes).not_to_contain_text("remember")
    await expect(message(page, "You said one")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()

    assert (await agent.call("GET", f"threads/{thread}/state"))["values"]["notes"] == []


async def test_form_is_made_from_the_schema(agent: Agent, page: Page) -> None:
    await page.goto(f"{agent.pages}/studio")
    await page.get_by_label("Assistant", exact=True).select_option(label="form")
    await page.get_by_label("Name").fill("tea")
    await page.get_by_label("Count").fill("3")
    await page.get_by_label("Mood").select_option("busy")
    await page.get_by_label("Tags").fill("hot")
    await page.get_by_role("button", name="Run").click()

    await expect(page.get_by_label("Tags")).to_be_focused()
    await expect(page.get_by_role("button", name="Run")).to_be_enabled()
    await page.get_by_label("Tags").fill('["hot"]')
    await check_accessible(page)
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_text("done: 3 x tea, busy, ['hot']").first).to_be_visible()


async def test_assistant_is_changed_versioned_and_restored(agent: Agent, page: Page) -> None:
    await open_chat(page, agent)
    await view(page, "Assistant").click()
    await page.get_by_label("Signature").fill("yours")
    await page.get_by_label("New assistant with these values").fill("signed")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_label("Assistant", exact=True)).to_contain_text("signed (chat)")
    await say(page, "hello")

    await expect(message(page, "— yours")).to_be_visible()
    await page.get_by_label("Signature").fill("theirs")
    await page.get_by_role("button", name="Save as version").click()
    versions = page.get_by_role("region", name="Versions")

    await expect(versions.get_by_role("listitem")).to_have_count(2)
    await check_accessible(page)
    await versions.get_by_role("button", name="Use").click()
    await expect(page.get_by_label("Signature")).to_have_value("yours")
    await page.get_by_role("button", name="Delete the assistant").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(page.get_by_label("Assistant", exact=True)).to_contain_text("signed (chat)")

    await page.get_by_role("button", name="Delete the assistant").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_label("Assistant", exact=True)).not_to_contain_text("signed (chat)")


async def test_a_thread_of_2000_messages_shows_those_in_view(agent: Agent, page: Page) -> None:
    messages = [
        {"type": "human" if number % 2 == 0 else "ai", "content": f"message number {number}", "id": f"m{number}"}
        for number in range(2000)
    ]

    updates = [{"values": {"messages": messages}, "as_node": "model"}]
    thread = (await agent.call("POST", "threads", metadata={"graph_id": "chat"}, supersteps=[{"updates": updates}]))[
        "thread_id"
    ]

    await open_chat(page, agent, thread)
    await expect(message(page, "message number 1999")).to_be_visible()
    assert await page.get_by_role("article").count() < 60
    log = page.get_by_role("log", name="Messages")

    await log.press("Home")
    await expect(message(page, "message number 0").first).to_be_visible()
    assert await page.get_by_role("article").count() < 60
    await page.get_by_role("button", name="Latest").click()
    await expect(message(page, "message number 1999")).to_be_visible()
    await log.press("Home")
    await expect(page.get_by_role("button", name="Latest")).to_be_visible()

    await say(page, "hello")
    await expect(message(page, "You said hello")).to_be_visible()


async def test_inbox_lists_waiting_threads_and_answers_in_place(agent: Agent, page: Page) -> None:
    thread = await agent.say("please mail the inbox")
    await page.goto(agent.pages.partition("/console/")[0] + "/console/")
    attention = page.get_by_role("region", name="Wants attention")
    await expect(attention).to_contain_text("Waits for a person")
    await attention.get_by_role("link", name=re.compile("thread")).click()

    row = page.get_by_role("listitem").filter(has_text="please mail the inbox")
    await expect(row).to_contain_text("Send this mail?")
    await row.get_by_role("button", expanded=False).first.click()
    await expect(page).to_have_url(re.compile(f"thread={thread}"))
    await check_accessible(page)
    await page.reload()
    await row.get_by_role("radio", name="Approve").click()

    await row.get_by_role("button", name="Send the answer").click()
    await expect(row).to_contain_text("answered")
    await row.get_by_role("link", name="Studio").click()
    await expect(message(page, "decided: approve")).to_be_visible()


async def test_forks_are_no_questions(agent: Agent, page: Page) -> None:
    thread = await agent.say("hello before a fork")
    asking = await agent.say("please mail after the fork")
    await agent.call("POST", f"threads/{thread}/state", values={"notes": ["forked"]}, as_node="__start__")
    assert (await agent.call("GET", f"threads/{thread}"))["status"] == "interrupted"
    await page.goto(f"{agent.pages.partition('/console/')[0]}/console/inbox")
    await expect(page.get_by_role("listitem").filter(has_text="please mail after the fork")).to_be_visible()
    await expect(page.get_by_role("listitem").filter(has_text="hello before a fork")).to_have_count(0)

    await page.goto(f"{agent.pages}/threads?q={thread}")
    await expect(page.get_by_role("row", name=re.compile("hello before"))).to_contain_text("Paused")
    await agent.call("DELETE", f"threads/{asking}")


async def test_inbox_says_that_somebody_else_answered(agent: Agent, page: Page) -> None:
    thread = await agent.say("please mail the others")
    await page.goto(f"{agent.pages.partition('/console/')[0]}/console/inbox?thread={thread}")
    row = page.get_by_role("listitem").filter(has_text="please mail the others")
    await expect(row).to_contain_text("1 question")
    await expect(row.get_by_role("radio", name="Approve")).to_be_visible()
    await agent.call("DELETE", f"threads/{thread}")
    await expect(row).to_contain_text("no longer waiting")

    await expect(row.get_by_role("radio", name="Approve")).to_have_count(0)
    await check_accessible(page)


async def test_queue_says_why_runs_wait_and_cancels_them(agent: Agent, page: Page, tmp_path: Path) -> None:
    thread = (await agent.call("POST", "threads", metadata={"of": "queue"}))["thread_id"]
    words = [{"role": "user", "content": f"hold {tmp_path / 'never'}"}]

    # Only a streamed answer can be held.
    body = {"assistant_id": "chat", "input": {"messages": words}, "stream_mode": ["messages-tuple"]}
    runs = [
        (await agent.call("POST", f"threads/{thread}/runs", **body, multitask_strategy="enqueue"))["run_id"]
        for _ in range(3)
    ]

    await agent.call("POST", "runs", **body, after_seconds=3600)
    await page.goto(f"{agent.pages}/queue")
    first, second, third = [page.get_by_role("row", name=re.compile(f"Run {run[-8:]}")) for run in runs]
    await expect(first).to_contain_text("Running")
    await expect(second).to_contain_text(f"run {runs[0][-8:]} of its thread")
    await expect(page.get_by_role("row", name=re.compile("its time, in"))).to_have_count(1)
    await expect(page.locator(".figure", has_text="Waiting")).to_contain_text("3")

    await check_accessible(page)
    # The page reads this run alone, however many runs the thread has.
    async with page.expect_request(
        lambda request: request.url.endswith("/runs/search") and runs[1] in (request.post_data or "")
    ):
        await second.get_by_role("link", name=re.compile("^Run")).click()

    details = page.get_by_role("complementary", name=f"Run {runs[1][-8:]}")
    await expect(details).to_contain_text(f"run {runs[0][-8:]} of its thread")
    await expect(details).to_contain_text("0, of which 0 lost")
    assert f"run={runs[1]}" in page.url
    await check_accessible(page)
    await page.reload()
    await details.get_by_role("button", name="Cancel").click()

    await expect(details).to_contain_text("Interrupted")
    await expect(second).to_be_hidden()
    await page.keyboard.press("Escape")
    await third.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Cancel 1 marked").click()
    await page.get_by_role("button", name="Cancel the runs").click()
    await expect(third).to_be_hidden()

    await page.get_by_role("button", name="Cancel all", exact=True).click()
    await page.get_by_role("button", name="Cancel the runs").click()
    await expect(page.get_by_text("Nothing waits or runs")).to_be_visible()


async def test_failed_run_is_found_and_run_again(agent: Agent, page: Page) -> None:
    thread = (await agent.call("POST", "threads", metadata={"of": "queue"}))["thread_id"]
    body = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "fail"}]}}
    run = await agent.call("POST", f"threads/{thread}/runs", **body)
    await page.goto(f"{agent.pages}/queue")
    await page.get_by_role("combobox", name="Runs").select_option("Failed")

    row = page.get_by_role("row", name=re.compile(f"Run {run['run_id'][-8:]}"))
    await expect(row).to_contain_text("the stand-in model fails on request")
    await check_accessible(page)
    await row.get_by_role("link", name=re.compile("^Run")).click()
    await page.get_by_role("button", name="Run again").click()
    await expect(page).not_to_have_url(re.compile(run["run_id"]))
    await expect(page.get_by_role("complementary")).to_contain_text("Failed")

    runs = await agent.call("GET", f"threads/{thread}/runs")
    assert [each["kwargs"]["input"] for each in runs] == [body["input"]] * 2


async def test_cron_is_created_changed_run_paused_and_deleted(agent: Agent, page: Page) -> None:
    thread = await agent.say("a thread with a cron")
    await page.goto(f"{agent.pages}/crons")
    await page.get_by_role("button", name="New cron").click()
    await page.get_by_label("Schedule").fill("every day")
    await expect(page.locator(".field.wrong", has_text="Schedule")).to_contain_text("Invalid cron schedule")
    await page.get_by_label("Schedule").fill("30 9 1 1 *")
    await page.get_by_label("Time zone").fill("Europe/Berlin")

    times = page.get_by_role("list", name="Next times").get_by_role("listitem")
    await expect(times).to_have_count(5)
    await expect(times.first).to_contain_text("-01-01 09:30:00 +01:00")
    await page.get_by_label("On the thread").fill(thread)
    await page.get_by_label("Input").fill('{"messages": [{"role": "user", "content": "hello of a cron"}]}')
    await check_accessible(page)
    await page.get_by_role("button", name="Create").click()

    panel = page.get_by_role("complementary", name=re.compile("^Cron "))
    await expect(panel).to_contain_text("Active")
    await expect(times).to_have_count(5)
    await panel.get_by_role("button", name="Run now").click()

    runs = panel.get_by_role("list", name="Runs of the cron").get_by_role("listitem")
    await expect(runs).to_have_count(1)
    await expect(runs).to_contain_text("Done")
    await check_accessible(page)
    await panel.get_by_role("button", name="Pause").click()
    await expect(panel).to_contain_text("while it is paused")
    await page.reload()

    await expect(panel.get_by_role("button", name="Run now")).to_have_count(0)
    await panel.get_by_role("button", name="Resume").click()
    await panel.get_by_role("button", name="Edit").click()
    await page.get_by_label("Schedule").fill("0 7 1 1 *")
    await page.get_by_role("button", name="Save").click()
    await expect(panel).to_contain_text("0 7 1 1 *")
    await page.keyboard.press("Escape")

    await page.get_by_label("Thread of the cron").fill(thread)
    row = page.get_by_role("row", name=re.compile("0 7 1 1"))
    await expect(row).to_contain_text("Active")
    await check_accessible(page)
    await row.get_by_role("link").click()
    await panel.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete the cron").click()

    await expect(page.get_by_text("No cron matches")).to_be_visible()
    assert await agent.call("POST", "runs/crons/count", thread_id=thread) == 0


async def test_store_is_browsed_searched_changed_and_deleted(agent: Agent, page: Page) -> None:
    for number in range(60):
        await agent.call("PUT", "store/items", namespace=["users", "ada"], key=f"n{number}", value={"n": number})

    await agent.call("PUT", "store/items", namespace=["teams"], key="red", value={"color": "red"}, ttl=90)
    await agent.call("PUT", "store/items", namespace=["teams"], key="purrs", value={"pet": "cat"})
    await page.goto(f"{agent.pages}/store")
    tree = page.get_by_role("navigation", name="Namespaces")

    await tree.get_by_role("button", name="Open users").click()
    await tree.get_by_role("button", name="ada", exact=True).click()
    rows = page.get_by_role("table", name="Items").get_by_role("row")
    await expect(page.get_by_text(re.compile("^1.50$"))).to_be_visible()
    await page.get_by_role("button", name="Next").click()
    await expect(page.get_by_text(re.compile("^51.60$"))).to_be_visible()
    await expect(rows).to_have_count(11)

    await check_accessible(page)
    await page.reload()
    await expect(rows).to_have_count(11)
    await tree.get_by_role("button", name="All items").click()
    await page.get_by_label("Search items").fill("color=red")
    await expect(rows).to_have_count(2)
    await page.get_by_role("link", name="red").click()

    panel = page.get_by_role("complementary", name="red")
    await expect(panel).to_contain_text("90 minutes after it was last used")
    await check_accessible(page)
    await panel.get_by_role("button", name="Edit").click()
    await page.get_by_label("Value").fill('["no object"]')
    await expect(page.get_by_text("The value must be an object")).to_be_visible()
    await expect(page.get_by_role("button", name="Save")).to_be_disabled()

    await page.get_by_label("Value").fill('{"color": "red", "size": 3}')
    await page.get_by_label("Lifetime in minutes").fill("120")
    await check_accessible(page)
    await page.get_by_role("button", name="Save").click()
    await expect(panel).to_contain_text("120 minutes")

    item = await agent.call("GET", "store/items?namespace=teams&key=red")
    assert (item["value"], item["ttl"]) == ({"color": "red", "size": 3}, 120)
    await panel.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete the item").click()
    await expect(page.get_by_text("No item matches")).to_be_visible()
    await page.get_by_label("Search items").fill("a cat")
    await expect(rows.nth(1)).to_contain_text("purrs")

    await expect(page.get_by_role("columnheader", name="Score")).to_be_visible()
    await page.get_by_label("Search items").fill("")
    await page.get_by_role("button", name="New item").click()
    await page.get_by_label("Namespace required").fill("teams.new")
    await page.get_by_label("Key required").fill("blue")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("complementary", name="blue")).to_contain_text("without end")


async def test_a_viewer_without_access_to_the_agent_sees_no_control(
    platform: Platform, agent: Agent, chromium: Browser
) -> None:
    deployment = agent.pages.rsplit("/", 1)[-1]
    await platform.add_member("viewer@example.com", "Viewer")
    await platform.call("PATCH", f"/v2/deployments/{deployment}", agent_access={"allow": "permission"})

    try:
        at = f"/console/agents/{deployment}/queue"
        async with sign_in_as(chromium, platform.server.url, "viewer@example.com", at) as page:
            for place in ("queue", "crons", "store"):
                await page.goto(f"{agent.pages}/{place}")
                await expect(page.get_by_role("heading", name="You may not call this agent here")).to_be_visible()
                for name in ("Cancel all", "New cron", "New item"):
                    await expect(page.get_by_role("button", name=name)).to_have_count(0)
    finally:
        await platform.call("PATCH", f"/v2/deployments/{deployment}", agent_access={"allow": "workspace"})
