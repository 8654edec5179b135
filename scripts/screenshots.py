"""Takes the pictures of the console in docs/images, from a platform that runs on this machine.

    python scripts/screenshots.py [URL] [HOME]

Needs Debian's Chromium. The pictures show what the platform has: start one with the example agent for the README.
"""

import shutil
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1200, "height": 660}


def main(url: str = "http://127.0.0.1:8700", home: str = "~/.portside") -> int:
    key = Path(home, "api-key").expanduser().read_text("utf-8").strip()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("Chromium is not installed", file=sys.stderr)
        return 1
    (deployment, *_) = ask(url, key, "GET", "/v2/deployments")["resources"]
    revision = f"/console/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}?log=build"
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, path, theme in (("home", "/console/", "light"), ("revision", revision, "dark")):
            page = browser.new_page(viewport=SIZE, color_scheme=theme)
            page.goto(url + ask(url, key, "POST", "/users/me/sign-in-links")["path"])
            page.get_by_role("navigation", name="Places").wait_for()
            page.goto(url + path)
            take(page, IMAGES / f"console-{name}.png")
        browser.close()
    return 0


def take(page: Page, file: Path) -> None:
    page.get_by_role("heading").first.wait_for()
    # What is live never is idle; this is for people, not a test.
    page.wait_for_timeout(1500)
    page.screenshot(path=file)
    print(f"{file.name}: {file.stat().st_size // 1024} KB")


def ask(url: str, key: str, method: str, path: str) -> dict:
    request = Request(url + path, method=method, headers={"X-Api-Key": key})
    with urlopen(request, timeout=60) as response:
        return dict(msgspec.json.decode(response.read()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
