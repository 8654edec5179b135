"""The files of the console as responses: what browsers may keep, and what their policy allows.

Every path that is not a file is a page of the application, except below `assets/`.
"""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from portside.console import site
from portside.console.links import LinkedPageQuery, find_page
from portside.console.site import FileNotBuilt

INDEX = "<!doctype html><title>Portside</title>"
SCRIPT = "console.log(1);" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "assets" / "index-abc.js").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("path", ["", "deployments", "deployments/1/revisions/2", "../site.py", "index.html"])
def test_every_page_is_the_application(folder: Path, path: str) -> None:
    response = site.respond(path, {}, folder)
    assert (response.status_code, response.body) == (200, INDEX.encode())
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["content-type"].startswith("text/html")


def test_assets_are_kept_for_a_year_and_sent_compressed(folder: Path) -> None:
    response = site.respond("assets/index-abc.js", {"accept-encoding": "gzip, br"}, folder)
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(response.body) == SCRIPT.encode()
    assert "javascript" in response.headers["content-type"]
    plain = site.respond("assets/index-abc.js", {}, folder)
    assert "content-encoding" not in plain.headers

    assert plain.body == SCRIPT.encode()


def test_an_asset_of_another_version_is_not_found(folder: Path) -> None:
    with pytest.raises(FileNotBuilt):
        site.respond("assets/index-old.js", {}, folder)


def test_a_file_that_the_browser_has_is_not_sent_again(folder: Path) -> None:
    etag = site.respond("", {}, folder).headers["etag"]
    response = site.respond("", {"if-none-match": etag}, folder)
    assert (response.status_code, response.body) == (304, b"")


def test_the_policy_allows_no_inline_script_and_no_frame(folder: Path) -> None:
    policy = site.respond("", {}, folder).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy


def test_pages_and_documentation_are_in_no_frame_and_call_nobody_else(folder: Path) -> None:
    for response in (site.respond("", {}, folder), site.respond_with_help("", {}, folder)):
        policy = response.headers["content-security-policy"]
        parts = dict(part.split(" ", 1) for part in policy.split("; "))
        assert parts["connect-src"] == "'self'"
        assert {parts["default-src"], parts["base-uri"], parts["frame-ancestors"]} == {"'none'"}
        names = ("x-frame-options", "x-content-type-options", "referrer-policy", "x-robots-tag")
        assert [response.headers[name] for name in names] == ["DENY", "nosniff", "same-origin", "noindex"]
        assert response.headers["cross-origin-opener-policy"] == "same-origin"


def test_a_page_is_compressed_for_those_who_read_gzip_alone(folder: Path) -> None:
    assert "content-encoding" not in site.respond("", {"accept-encoding": "br"}, folder).headers


def test_a_console_that_is_not_built_is_noticed(tmp_path: Path) -> None:
    assert not site.is_built(tmp_path)


def test_pages_may_call_named_origins_of_agents(folder: Path) -> None:
    policy = site.respond("", {}, folder, agent_origins=["https://*.example.com"]).headers["content-security-policy"]
    assert "connect-src 'self' https://*.example.com;" in policy


def test_start_of_the_platform_reads_no_file_of_the_console() -> None:
    script = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == 'open' else None)\n"
        "import portside.identity.pages, portside.kernel.http.routes\n"
        "before = set(sys.modules)\n"
        "import portside.console.http\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "import portside.platform.app\n"
        "print(sorted(names - sys.stdlib_module_names), [path for path in opened if 'console/static' in path])\n"
    )

    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['portside'] []"


ID = "0190a0c0-0000-7000-8000-000000000001"
OTHER = "0190a0c0-0000-7000-8000-000000000002"


@pytest.mark.parametrize(
    ("link", "page"),
    [
        (f"projects/p/{ID}", f"traces/{ID}"),
        (f"projects/p/{ID}/r/{OTHER}", f"traces?run={OTHER}"),
        (f"datasets/{ID}", f"datasets/{ID}"),
        (f"datasets/{ID}/e/{OTHER}", f"datasets/{ID}?example={OTHER}"),
        (f"datasets/{ID}/compare", f"datasets/{ID}/compare?experiments={ID},{OTHER}"),
        (f"host/deployments/{ID}", f"deployments/{ID}"),
        ("settings/apikeys", ""),
        ("//evil.example", ""),
    ],
)
def test_links_of_sdks_lead_to_the_page_that_shows_the_same(link: str, page: str) -> None:
    assert find_page(link, LinkedPageQuery(f"{ID},{OTHER},//evil.example")) == page
