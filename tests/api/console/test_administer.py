"""The pages of the console about people, prompts and the system, in Chromium, against a real platform.

What a page changes is read back with a stock client or another session. A Viewer sees no control.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langsmith import Client
from playwright.async_api import Browser, Page, expect

from portside.kernel.crypto import SecretBox
from portside.operate.service import find_running_service
from tests.browser import OF_THE_CONSOLE, check_accessible, sign_in_as, view
from tests.platforms import Platform, Repository

pytestmark = [
    *OF_THE_CONSOLE,
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
]
PEOPLE = "/console/people"


def prompt_client(platform: Platform) -> Client:
    return Client(api_url=platform.server.url, api_key=platform.headers["X-Api-Key"])


async def test_member_is_added_changed_and_removed(platform: Platform, chromium: Browser, page: Page) -> None:
    await page.get_by_role("link", name="People").click()
    await expect(page.get_by_role("row", name="admin@localhost")).to_be_visible()
    await page.get_by_role("link", name="Add a member").click()
    assert "add=yes" in page.url
    await page.get_by_label("E-mail required").fill("not an address")
    await page.get_by_role("button", name="Add", exact=True).click()
    await expect(page.locator(".field.wrong", has_text="E-mail")).to_be_visible()

    await page.get_by_label("E-mail required").fill("dev@example.com")
    await page.get_by_role("button", name="Generate").click()
    await check_accessible(page)
    await page.get_by_role("button", name="Add", exact=True).click()

    letter = await page.get_by_label("The member is added").locator("pre").inner_text()
    password = letter.split("Password: ")[1].strip()
    await page.get_by_label("The member is added").get_by_role("button", name="Close").click()
    role = page.get_by_label("Role of dev@example.com in the workspace")

    await expect(role.locator("option:checked")).to_have_text("Editor")
    await role.select_option(label="Viewer")
    await expect(role.locator("option:checked")).to_have_text("Viewer")

    async with sign_in_as(chromium, platform.server.url, "dev@example.com", PEOPLE, password) as theirs:
        await expect(theirs.get_by_role("row", name="dev@example.com")).to_contain_text("Viewer")
        await page.get_by_role("button", name="Remove dev@example.com").click()
        await check_accessible(page)
        await page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
        await expect(page.get_by_role("row", name="dev@example.com")).to_have_count(0)
        await theirs.reload()
        await expect(theirs).to_have_url(re.compile("/login"))

    await page.get_by_label("Role of admin@localhost in the organization").select_option(label="Organization Viewer")
    await expect(page.get_by_role("alert")).to_be_visible()
    await expect(page.get_by_role("row", name="admin@localhost")).to_contain_text("Organization Admin")


async def test_key_for_a_colleague_is_shown_once_works_and_is_revoked(platform: Platform, page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/people/keys")
    await page.get_by_role("link", name="New key").click()
    await page.get_by_label("What or whom it is for required").fill("for a colleague")
    await page.get_by_label("Role").select_option(label="Viewer")
    await check_accessible(page)
    await page.get_by_role("button", name="Create", exact=True).click()

    key = await page.get_by_test_id("new-key").inner_text()
    await check_accessible(page)

    headers = {"X-Api-Key": key}
    async with httpx2.AsyncClient(base_url=platform.server.url, headers=headers) as colleague:
        assert (await colleague.get("/v2/deployments")).status_code == 200
        assert (await colleague.post("/repos", json={"repo_handle": "no"})).status_code == 403
        await page.get_by_role("button", name="Done").click()
        await expect(page.get_by_role("row", name="for a colleague")).to_contain_text("permissions")
        await expect(page.get_by_role("row", name="for a colleague")).to_contain_text("by admin@localhost")
        assert key not in await page.content()
        await page.reload()

        await expect(page.get_by_role("row", name="for a colleague")).to_be_visible()
        await page.get_by_role("button", name="Revoke for a colleague").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
        await expect(page.get_by_role("row", name="for a colleague")).to_have_count(0)
        assert (await colleague.get("/v2/deployments")).status_code == 401


async def test_key_of_the_platform_is_marked_and_revoked_only_on_demand(platform: Platform, page: Page) -> None:
    await page.goto(f"{platform.server.url}/console/people/keys")
    # Deployments of other tests have keys of the platform too.
    row = page.get_by_role("row", name="listener").filter(has=page.locator(".tag.system"))
    await row.first.get_by_role("button").click()
    dialog = page.get_by_role("dialog")

    await expect(dialog.get_by_role("button", name="Revoke", exact=True)).to_be_disabled()
    await check_accessible(page)
    await dialog.get_by_label("Revoke it all the same").check()
    await expect(dialog.get_by_role("button", name="Revoke", exact=True)).to_be_enabled()
    await dialog.get_by_role("button", name="Cancel").click()


async def test_sessions_end_and_roles_are_explained(platform: Platform, chromium: Browser, page: Page) -> None:
    await platform.add_member("elsewhere@example.com", "Editor")
    url = platform.server.url
    async with sign_in_as(chromium, url, "elsewhere@example.com", PEOPLE) as theirs:
        await page.goto(f"{url}/console/people/sessions")
        row = page.get_by_role("row", name="elsewhere@example.com")
        await expect(row).to_contain_text("password")
        await expect(page.get_by_text("this one")).to_be_visible()
        await check_accessible(page)
        await row.get_by_role("button", name="End").click()
        await page.get_by_role("button", name="End the session").click()

        await expect(row).to_have_count(0)
        await theirs.reload()
        await expect(theirs).to_have_url(re.compile("/login"))

    await page.get_by_role("link", name="Roles").click()
    await expect(page.get_by_role("row", name="deployments").first).to_contain_text("everything")
    await check_accessible(page)


async def test_prompt_is_written_committed_compared_and_tagged(platform: Platform, page: Page) -> None:
    await page.get_by_role("link", name="Prompts").click()
    # Another test of this platform may have made one.
    await expect(page.get_by_text("No prompts yet").or_(page.get_by_role("table", name="Prompts"))).to_be_visible()
    await page.keyboard.press("c")
    await page.get_by_label("Name required").fill("Not A Name")
    await page.get_by_label("Text of message 1").fill("Answer in one sentence.")
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.locator(".field.wrong", has_text="Name")).to_be_visible()

    await check_accessible(page)
    await page.get_by_label("Name required").fill("greeting")
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_role("list", name="Messages")).to_contain_text("Answer in one sentence.")
    await check_accessible(page)

    pulled: Any = await asyncio.to_thread(prompt_client(platform).pull_prompt, "greeting", skip_cache=True)
    assert [message.content for message in pulled.invoke({"question": "Why?"}).to_messages()] == [
        "Answer in one sentence.",
        "Why?",
    ]

    await page.get_by_label("Tag for this commit").fill("production")
    await page.get_by_role("button", name="Set tag").click()
    await expect(page.get_by_role("button", name="Remove the tag production")).to_be_visible()
    await page.get_by_role("button", name="New version").click()
    await page.get_by_label("Text of message 1").fill("Answer in two sentences.")
    await page.get_by_label("What changed").fill("longer answers")
    await check_accessible(page)

    await page.get_by_role("button", name="Commit", exact=True).click()
    await view(page, "Changes").click()
    changes = page.get_by_label("Changes", exact=True)
    await expect(changes.locator(".removed")).to_contain_text("one sentence")
    await expect(changes.locator(".added")).to_contain_text("two sentences")
    await check_accessible(page)
    await page.reload()

    await expect(changes.locator(".added")).to_contain_text("two sentences")
    await page.get_by_label("Tag for this commit").fill("production")
    await page.get_by_role("button", name="Move from").click()
    await expect(page.get_by_role("button", name="Remove the tag production")).to_be_visible()

    pulled = await asyncio.to_thread(prompt_client(platform).pull_prompt, "greeting:production", skip_cache=True)
    assert pulled.messages[0].prompt.template == "Answer in two sentences."


async def test_an_old_commit_is_found_beyond_the_first_page(platform: Platform, page: Page) -> None:
    await platform.call("POST", "/repos", repo_handle="revised", is_public=False)
    hashes = []
    for number in range(120):
        manifest = {"lc": 1, "type": "constructor", "id": ["text"], "kwargs": {"text": f"text {number}"}}
        parent = {"parent_commit": hashes[-1]} if hashes else {}
        made = await platform.call("POST", "/commits/-/revised", manifest=manifest, **parent)
        hashes.append(made["commit"]["commit_hash"])

    await page.goto(f"{platform.server.url}/console/prompts/revised?view=json&commit={hashes[1][:8]}")
    await expect(page.get_by_text("text 1", exact=False).first).to_be_visible()
    commits = page.get_by_role("region", name="Commits")
    await expect(commits.get_by_role("button", name=hashes[1][:8])).to_have_attribute("aria-current", "true")
    await check_accessible(page)
    await page.goto(f"{platform.server.url}/console/prompts/revised?commit=00000000")
    await expect(page.get_by_text("There is no such commit")).to_be_visible()


async def test_commits_of_others_are_not_overwritten(platform: Platform, page: Page) -> None:
    client = prompt_client(platform)
    first = ChatPromptTemplate.from_messages([("system", "{{literal}} {tone}"), ("placeholder", "{history}")])
    await asyncio.to_thread(client.push_prompt, "shared", object=first)
    await page.goto(f"{platform.server.url}/console/prompts/shared")
    await expect(page.get_by_text("The messages of history")).to_be_visible()
    await page.get_by_role("button", name="New version").click()
    await expect(page.get_by_text("Variables: tone, history")).to_be_visible()

    await page.get_by_label("Text of message 1").fill("mine {tone}")
    second = ChatPromptTemplate.from_messages([("system", "theirs"), ("placeholder", "{history}")])
    await asyncio.to_thread(client.push_prompt, "shared", object=second)
    await page.get_by_role("button", name="Commit", exact=True).click()
    await expect(page.get_by_text("The parent commit is not the latest one")).to_be_visible()
    await expect(page.get_by_label("Text of message 1")).to_have_value("mine {tone}")
    await page.goto(f"{platform.server.url}/console/prompts/shared?view=about")

    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("README").fill("# Tone\n<img src=x onerror=alert(1)>")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".markdown h1")).to_have_text("Tone")
    await expect(page.locator(".markdown img")).to_have_count(0)
    await check_accessible(page)
    await page.goto(f"{platform.server.url}/console/prompts?q=tone")

    await page.get_by_role("table", name="Prompts").get_by_role("link", name="shared").wait_for()
    await check_accessible(page)
    await page.get_by_role("heading", name="Prompts").click()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete for good").click()

    await expect(page.get_by_text("No prompts yet").or_(page.get_by_role("table", name="Prompts"))).to_be_visible()
    await expect(page.get_by_role("link", name="shared")).to_have_count(0)


async def test_system_shows_parts_listeners_and_agents(platform: Platform, page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "agent")
    repository.commit("one")
    made = await platform.deploy(repository, "measured-agent")
    await platform.ended(made)

    version = (await platform.call("GET", "/info"))["portside_version"]
    await page.get_by_role("link", name="System").click()
    parts = page.get_by_label("Platform", exact=True)
    await expect(parts).to_contain_text("DatabaseAnswers")
    await expect(parts).to_contain_text("free of")
    await expect(parts).to_contain_text(version)
    await expect(page.get_by_label("Listeners").get_by_text("Connected")).to_be_visible()

    agent = page.get_by_role("row", name="measured-agent")
    await expect(agent).to_contain_text("Ready")
    await expect(agent).to_contain_text(version)
    await check_accessible(page)
    await page.get_by_role("link", name="Settings").click()
    await expect(page.get_by_text("PORTSIDE_PORT")).to_be_visible()
    await page.get_by_label("Which settings").select_option(label="All")

    await expect(page.get_by_text("LOG_LEVEL")).to_be_visible()
    await check_accessible(page)
    await page.get_by_label("Search settings").fill("DATABASE_URL")
    await expect(page).to_have_url(re.compile("q=DATABASE_URL"))
    await expect(page.get_by_text("set, and not shown")).to_be_visible()
    assert platform.database_url not in await page.content()


async def test_page_says_whether_the_platform_is_a_service(page: Page) -> None:
    await page.get_by_role("link", name="System").click()
    await page.get_by_role("link", name="Settings").click()

    # The platform is a child of this process, and belongs to what this process belongs to.
    service = find_running_service()
    text = "sudo portside service install" if service is None else f"{service.unit} of the user {service.user}"
    await expect(page.get_by_label("Service")).to_contain_text(text)
    await check_accessible(page)


async def test_master_key_is_replaced(platform: Platform, page: Page) -> None:
    file = platform.home / "master-key"
    before = SecretBox.from_file(file).keys
    await page.get_by_role("link", name="System").click()
    await page.get_by_role("link", name="Settings").click()

    card = page.get_by_label("Master key")
    opener = card.get_by_role("button", name="Replace the master key")
    await opener.click()
    await check_accessible(page)
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(opener).to_be_focused()
    assert SecretBox.from_file(file).keys == before
    await opener.click()
    await page.get_by_role("dialog").get_by_role("button", name="Replace it").click()

    await expect(card.get_by_role("status")).to_contain_text("values are encrypted with the new key")
    assert SecretBox.from_file(file).keys[1:] == before
    await check_accessible(page)


async def test_git_accounts_are_added_and_removed(page: Page) -> None:
    await page.get_by_role("link", name="System").click()
    await page.get_by_role("link", name="Git hosts").click()
    await page.get_by_role("link", name="Add an account").click()
    await page.get_by_label("Name required").fill("our-gitea")
    await page.get_by_label("Host").select_option("gitea")
    await page.get_by_label("Token").fill("t0ken-of-the-host")
    await page.get_by_role("button", name="Add", exact=True).click()

    await expect(page.locator(".field.wrong", has_text="Address")).to_be_visible()
    await page.get_by_label("Address required").fill("https://git.example.com")
    await check_accessible(page)
    await page.get_by_role("button", name="Add", exact=True).click()

    row = page.get_by_role("row", name="our-gitea")
    await expect(row).to_contain_text("https://git.example.com")
    await page.reload()
    await expect(row).to_contain_text("by polling")
    assert "t0ken-of-the-host" not in await page.content()
    await page.get_by_role("button", name="Create the webhook of our-gitea").click()
    await expect(page.get_by_role("dialog")).to_contain_text("/v1/webhooks/")

    await check_accessible(page)
    await page.get_by_role("button", name="Done").click()
    await expect(row).to_contain_text("has a webhook")
    await check_accessible(page)
    await page.get_by_role("button", name="Remove our-gitea").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    await expect(page.get_by_text("No git accounts")).to_be_visible()


async def test_viewer_sees_no_control(platform: Platform, chromium: Browser) -> None:
    await platform.add_member("reader@example.com", "Viewer")
    prompt = ChatPromptTemplate.from_messages([("system", "read me")])
    await asyncio.to_thread(prompt_client(platform).push_prompt, "readable", object=prompt)

    url = platform.server.url
    async with sign_in_as(chromium, url, "reader@example.com", PEOPLE) as page:
        await expect(page.get_by_role("row", name="admin@localhost")).to_contain_text("Organization Admin")
        main = page.get_by_role("main")
        await expect(main.get_by_role("combobox")).to_have_count(0)
        await expect(main.get_by_role("button")).to_have_count(0)
        await page.goto(f"{url}/console/people?add=yes")
        await expect(page.get_by_role("row", name="admin@localhost")).to_be_visible()
        await expect(page.get_by_label("E-mail")).to_have_count(0)

        await page.goto(f"{url}/console/people/keys")
        await expect(page.get_by_role("table")).to_be_visible()
        await expect(main.get_by_role("button")).to_have_count(0)
        await page.get_by_role("link", name="New key").click()
        await expect(page.get_by_label("Acts as").locator("option")).to_have_text(["me (reader@example.com)"])
        await page.goto(f"{url}/console/prompts/readable")
        await expect(page.get_by_role("list", name="Messages")).to_contain_text("read me")

        for name in ("New version", "Delete", "Set tag", "Edit"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)

        await page.goto(f"{url}/console/prompts/new")
        await expect(page.get_by_text("You may not create prompts")).to_be_visible()
        await page.goto(f"{url}/console/system/git")
        await expect(page.get_by_text("No git accounts")).to_be_visible()
        await expect(page.get_by_role("link", name="Add an account")).to_have_count(0)
        await expect(page.get_by_role("link", name="Settings")).to_have_count(0)
        await page.goto(f"{url}/console/system/settings")

        await expect(page.get_by_text("You may not see the settings")).to_be_visible()
