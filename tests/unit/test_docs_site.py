"""The documentation's site: its navigation has every page, its links lead somewhere, it loads nothing from elsewhere.

The site is built once, by the program that `make docs` runs; a build of the same sources comes from the user's cache.
"""

import gzip
import importlib.util
import json
import re
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

from portside.console import site

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docs_site = load_script()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("built") / "help"
    try:
        docs_site.build(target)
    except docs_site.CannotBuildError as problem:
        pytest.skip(str(problem))

    return target


def test_navigation_has_every_page():
    pages = docs_site.list_sources()
    sections = docs_site.read_navigation((ROOT / docs_site.CONTENTS).read_text("utf-8"))
    sections.append(docs_site.read_examples(pages))
    docs_site.check_navigation(sections, pages)
    assert sections[0].pages == [("Start here", docs_site.START)]

    with pytest.raises(docs_site.BadSiteError, match=r"does not name docs/new\.md"):
        docs_site.check_navigation(sections, {**pages, "docs/new.md": "new.md"})

    with pytest.raises(docs_site.BadSiteError, match="which is no page"):
        docs_site.check_navigation(sections, {"docs/README.md": "contents.md"})


def test_links_lead_to_pages_of_the_site_or_name_files_of_the_repository():
    pages = docs_site.list_sources()
    text = (
        "[start](../start-here.md#4-talk-to-it), [list](../README.md), [trust](../../SECURITY.md) "
        "and [code](../../src/portside/core)\n"
        "![picture](../images/x.png) `[no](link.md)` [there](https://example.com)\n```\n[no](link.md)\n```\n"
    )
    assert docs_site.rewrite_links(text, "docs/guides/store.md", pages) == (
        "[start](../index.md#4-talk-to-it), [list](../contents.md), [trust](../security.md) "
        "and code (`src/portside/core` of the repository)\n"
        " `[no](link.md)` [there](https://example.com)\n```\n[no](link.md)\n```\n"
    )

    with pytest.raises(docs_site.BadSiteError, match=r"links to gone\.md"):
        docs_site.rewrite_links("[gone](gone.md)", "docs/guides/store.md", pages)


def test_links_to_files_of_the_repository_name_files_that_exist():
    for name in docs_site.list_sources():
        source = ROOT / name
        for target in LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", source.read_text("utf-8"), flags=re.DOTALL)):
            assert (source.parent / target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('<script src="https://example.com/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example.com/css">', 1),
        ('<img src="http://example.com/x.png">', 1),
        ("@import url(https://example.com/x.css);", 1),
        ("body { background: url('https://example.com/x.png') }", 1),
        ('<a href="https://example.com">there</a><script src="assets/x.js"></script>', 0),
    ],
)
def test_loads_from_elsewhere_are_found(text: str, count: int):
    assert len(docs_site.find_loads(text)) == count


def test_broken_links_are_found():
    pages = {
        "index.html": '<h2 id="here"></h2><a href="#here"></a><a class="x" href="guides/a.html#b"></a>',
        "guides/a.html": '<a href="../index.html#there"></a><a href="https://example.com"></a>',
    }
    assert docs_site.find_broken_links(pages) == [
        "index.html links to guides/a.html#b, which is not there",
        "guides/a.html links to ../index.html#there, which is not there",
    ]


def test_code_keeps_its_lines():
    page = '<p>one\n two</p>\n<pre><code><span class="n">a</span>  =  1\n\nb</code></pre>'
    assert docs_site.shrink(page) == "<p>one two</p><pre><code>a  =  1\n\nb</code></pre>"


def test_cells_of_tables_need_no_end():
    table = '<tbody><tr class="odd">\n<td id="a b">1</td>\n<td>2 <b>x</b></td>\n</tr>\n<tr></tr></tbody>'
    assert docs_site.shrink(table) == '<tbody><tr class=odd><td id="a b">1<td>2 <b>x</b><tr></tbody>'


def test_built_site_is_small_and_loads_nothing_from_elsewhere(folder: Path):
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 3_000_000
    assert {file.relative_to(folder).with_suffix(".md").as_posix() for file in files if file.suffix == ".html"} == set(
        docs_site.list_sources().values()
    )

    for file in files:
        if file.suffix in {".html", ".css"}:
            text = file.read_text("utf-8")
            assert docs_site.find_loads(unescape(text)) == [], file.name
            assert "<script>" not in text, "its policy allows no script in a page"
            assert " style=" not in text, "nor a style"

    index = json.loads(gzip.decompress((folder / "search.json.gz").read_bytes()))
    assert any("DISK_RESERVE_BYTES" in item["text"] for item in index["items"])


def test_pages_are_served_with_a_strict_policy(folder: Path):
    page = site.respond_with_help("", {}, folder)
    assert page.status_code == 200
    assert b"Start here" in page.body
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["content-type"].startswith("text/html")

    packed = site.respond_with_help("guides/store.html", {"accept-encoding": "gzip"}, folder)
    assert packed.headers["content-encoding"] == "gzip"
    again = site.respond_with_help("", {"if-none-match": page.headers["etag"]}, folder)
    assert again.status_code == 304
    assert (
        "content-encoding" not in site.respond_with_help("search.json.gz", {"accept-encoding": "gzip"}, folder).headers
    )


def test_documentation_that_is_not_built_has_no_pages(tmp_path: Path):
    with pytest.raises(site.HelpPageNotFound):
        site.respond_with_help("", {}, tmp_path)


@pytest.mark.parametrize(
    "path", ["guides/none.html", "../site.py", "guides/../../site.py", "/etc/passwd", "guides", "\0"]
)
def test_other_paths_are_no_pages(folder: Path, path: str):
    with pytest.raises(site.HelpPageNotFound):
        site.respond_with_help(path, {}, folder)
