"""Takes the pictures of the console in docs/images, from a platform that runs on this machine.

    python scripts/screenshots.py [URL] [HOME] [AGENT]

Needs Debian's Chromium. The pictures show what the platform has: AGENT (else the first deployment) is asked a question
that it answers with a tool, so that there is a conversation, its trace and figures.
"""

import shutil
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1200, "height": 660}
QUESTIONS = ("My name is Ada", "What is (17 + 25) * 2?")
ANSWERED_WITHIN_MS = 60_000


def main(url: str = "http://127.0.0.1:8700", home: str = "~/.portside", agent: str | None = None) -> int:
    key = Path(home, "api-key").expanduser().read_text("utf-8").strip()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("Chromium is not installed", file=sys.stderr)
        return 1

    deployments = ask(url, key, "GET", "/v2/deployments")["resources"]
    deployment = next((each for each in deployments if agent in {None, each["name"]}), None)
    if deployment is None:
        print(f"There is no deployment {agent or ''}: deploy one first", file=sys.stderr)
        return 1

    at = f"/console/deployments/{deployment['id']}"
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = sign_in(browser, url, key, "light")
        talk(page, f"{url}/console/agents/{deployment['id']}/studio")
        take(page, "studio")
        page.get_by_role("link", name="Trace of the last run").click()
        page.get_by_role("treeitem").first.wait_for()
        take(page, "trace")

        for name, path, theme in (
            ("home", "/console/", "light"),
            ("revision", f"{at}/revisions/{deployment['latest_revision_id']}?log=build", "dark"),
            ("figures", "/console/figures?range=1h", "dark"),
        ):
            page = sign_in(browser, url, key, theme)
            page.goto(url + path)
            page.get_by_role("heading").first.wait_for()
            take(page, name)

        browser.close()

    return 0


def sign_in(browser: Browser, url: str, key: str, theme: str) -> Page:
    page = browser.new_page(viewport=SIZE, color_scheme=theme)
    page.goto(url + ask(url, key, "POST", "/users/me/sign-in-links")["path"])
    page.get_by_role("navigation", name="Places").wait_for()
    return page


def talk(page: Page, studio: str) -> None:
    page.goto(studio)

    for number, question in enumerate(QUESTIONS, start=1):
        box = page.get_by_role("textbox", name="Message")
        box.fill(question)
        box.press("Enter")
        page.get_by_role("button", name="Edit").nth(number - 1).wait_for(timeout=ANSWERED_WITHIN_MS)
        page.get_by_role("link", name="Trace of the last run").wait_for(timeout=ANSWERED_WITHIN_MS)


def take(page: Page, name: str) -> None:
    file = IMAGES / f"console-{name}.png"
    # What is live never is idle; this is for people, not a test.
    page.wait_for_timeout(2500)
    page.screenshot(path=file)
    print(f"{file.name}: {file.stat().st_size // 1024} KB")


def ask(url: str, key: str, method: str, path: str) -> dict:
    request = Request(url + path, method=method, headers={"X-Api-Key": key})
    with urlopen(request, timeout=60) as response:
        return dict(msgspec.json.decode(response.read()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
