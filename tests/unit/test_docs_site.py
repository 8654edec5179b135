"""The documentation's site: its navigation has every page, its links lead somewhere, it loads nothing from elsewhere.

The parts of the build are tested by themselves, with a small site of the builder's form. The test of the whole build
tells whether the builder still writes this form. A build of the same sources comes from the user's cache.
"""

import gzip
import json
import re
from pathlib import Path

import pytest
from scripts.docs_site import building
from scripts.docs_site.checking import MAX_BYTES, check_site, find_broken_targets, find_excess, find_loads, find_refused
from scripts.docs_site.links import find_broken_links, list_anchors, list_links, rewrite_links
from scripts.docs_site.navigation import Section, check_navigation, order_pages, to_toml
from scripts.docs_site.policy import adopt_style, move_scripts
from scripts.docs_site.problems import BadSiteError
from scripts.docs_site.shrinking import shrink_page
from scripts.docs_site.sources import CONTENTS, ROOT, START, list_sources, read_sources
from scripts.docs_site.staging import stage
from scripts.kept_builds import CannotBuildError

from portside.console import site

# Pages of the repository that the site lacks; their links are read too.
OTHER_PAGES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "README.md",
    "bench/README.md",
)
# What the builder writes, as far as the build changes it.
PAGE = """\
<!doctype html>
<html>
 <head><link rel="stylesheet" href="{root}assets/main.css"><script>first()</script></head>
 <body dir="ltr">
  <nav class="md-nav"><a href="{root}index.html">Start</a> <a href="{root}guides/store.html#search">Search</a></nav>
  <h1 id="search">Search</h1>
  <script id="__config" type="application/json">{{"base": "{root}"}}</script>
  <script src="{root}assets/javascripts/bundle.1.min.js"></script>
 </body>
</html>
"""
BUNDLE = 'a.appendChild(h("style",{},css.toString()))'


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The files that the builder writes."""
    folder = tmp_path / "site"
    (folder / "assets" / "javascripts").mkdir(parents=True)
    (folder / "assets" / "stylesheets" / "classic").mkdir(parents=True)
    (folder / "guides").mkdir()
    (folder / "404.html").write_text("gone")
    (folder / "index.html").write_text(PAGE.format(root=""))
    (folder / "guides" / "store.html").write_text(PAGE.format(root="../"))
    (folder / "assets" / "main.css").write_text("body { color: black }")
    (folder / "assets" / "javascripts" / "bundle.1.min.js").write_text(BUNDLE)
    (folder / "search.json").write_text(json.dumps({"items": [{"text": "<p>a <code>DISK</code></p>"}]}))
    return folder


@pytest.fixture
def finished(built: Path) -> Path:
    building.finish(built)
    return built


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return read_sources(list_sources())


def test_navigation_has_every_page(sources: dict[str, str]):
    sections = order_pages(sources)
    assert sections[0].pages == [("Start here", START)]

    with pytest.raises(BadSiteError, match=r"does not name docs/new\.md"):
        order_pages({**sources, "docs/new.md": "# New\n"})

    with pytest.raises(BadSiteError, match="which is no page"):
        check_navigation(sections, {CONTENTS: ""})

    with pytest.raises(BadSiteError, match=f"names {START} twice"):
        check_navigation([*sections, sections[0]], sources)


def test_navigation_is_written_for_the_builder():
    inner = Section(title="Use", pages=[('The "store"', "docs/store.md"), ("Crons", "docs/crons.md")], sections=[])
    sections = [
        Section(title="Start", pages=[("Start here", START)], sections=[]),
        Section(title="Guides", pages=[], sections=[inner]),
    ]
    pages = {START: "index.md", "docs/store.md": "store.md", "docs/crons.md": "crons.md"}

    assert to_toml(sections, pages) == (
        '[{ "Start" = "index.md" }, '
        '{ "Guides" = [{ "Use" = [{ "The \\"store\\"" = "store.md" }, { "Crons" = "crons.md" }] }] }]'
    )


def test_pages_are_staged_under_the_names_of_the_site(tmp_path: Path):
    texts = {START: "[list](README.md)\n", "docs/guides/store.md": "[start](../start-here.md)\n"}
    pages = {START: "index.md", "docs/guides/store.md": "guides/store.md", CONTENTS: "contents.md"}
    stage(tmp_path, {**texts, CONTENTS: ""}, pages, [Section(title="Start", pages=[("Start", START)], sections=[])])

    assert (tmp_path / "pages" / "index.md").read_text() == "[list](contents.md)\n"
    assert (tmp_path / "pages" / "guides" / "store.md").read_text() == "[start](../index.md)\n"
    assert 'nav = [{ "Start" = "index.md" }]' in (tmp_path / "zensical.toml").read_text()


def test_links_lead_to_pages_of_the_site_or_name_files_of_the_repository():
    text = (
        "[start](../start-here.md#4-talk-to-it), [list](../README.md), [trust](../../SECURITY.md) "
        "and [code](../../src/portside/core)\n"
        "![picture](../images/x.png) `[no](link.md)` [there](https://example.com)\n```\n[no](link.md)\n```\n"
    )
    assert rewrite_links(text, "docs/guides/store.md", list_sources()) == (
        "[start](../index.md#4-talk-to-it), [list](../contents.md), [trust](../security.md) "
        "and code (`src/portside/core` of the repository)\n"
        " `[no](link.md)` [there](https://example.com)\n```\n[no](link.md)\n```\n"
    )


def test_links_and_their_headings_exist(sources: dict[str, str]):
    texts = {**sources, **{name: (ROOT / name).read_text("utf-8") for name in OTHER_PAGES}}
    assert find_broken_links(texts) == []

    for name, text in texts.items():
        for link in list_links(text, name):
            assert (ROOT / link.file).exists(), f"{name} links to {link.target}"


def test_broken_links_are_found():
    texts = {
        START: "# Start\n[a](guides/store.md#find-it) [b](guides/store.md#gone) [c](#start) [d](#end) [e](none.md)\n",
        "docs/guides/store.md": "# Store\n\n## Find `it`\n[up](../start-here.md#begin) [code](../../src/none.py)\n",
    }
    assert find_broken_links(texts) == [
        f"{START} links to guides/store.md#gone, and docs/guides/store.md has no such heading",
        f"{START} links to #end, and {START} has no such heading",
        f"{START} links to none.md, which does not exist",
        f"docs/guides/store.md links to ../start-here.md#begin, and {START} has no such heading",
    ]


def test_headings_have_the_anchors_of_code_hosts():
    text = (
        "# 1. Ways to start it\n## `DISK_RESERVE_BYTES`, and more\n### See [the guide](guide.md) ##\n"
        '```sh\n# no heading\n```\n<a id="own"></a>\n## It has "this" -- or that\n'
    )
    assert list_anchors(text) == {
        "1-ways-to-start-it",
        "disk_reserve_bytes-and-more",
        "see-the-guide",
        "own",
        "it-has-this----or-that",
    }


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
    assert len(find_loads(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("<script>first()</script>", 1),
        ('<script type="application/json">{}</script>', 1),
        ("<style>a {}</style>", 1),
        ('<p class="a" style="color: red">a</p>', 1),
        ('<a href="x.html" onclick="first()">a</a>', 1),
        ('<script src="x.js"></script><p class="style">style=a onclick=b</p>', 0),
    ],
)
def test_scripts_and_styles_in_pages_are_found(text: str, count: int):
    assert len(find_refused(text)) == count


def test_broken_targets_are_found():
    pages = {
        "index.html": '<h2 id="here"></h2><a href="#here"></a><a class="x" href="guides/a.html#b"></a>',
        "guides/a.html": '<a href="../index.html#there"></a><a href="https://example.com"></a>',
    }
    assert find_broken_targets(pages) == [
        "index.html links to guides/a.html#b, which is not there",
        "guides/a.html links to ../index.html#there, which is not there",
    ]


def test_a_site_that_is_too_large_is_refused(finished: Path):
    assert MAX_BYTES == 3_000_000
    size = sum(file.stat().st_size for file in finished.rglob("*") if file.is_file())
    assert find_excess(finished, limit=size) == []
    assert find_excess(finished, limit=size - 1) == [f"the site has {size} bytes, {size - 1} are allowed"]


def test_each_problem_of_a_site_is_named(finished: Path):
    (finished / "guides" / "store.html").unlink()
    (finished / "assets" / "main.css").write_text("@import url(https://example.com/x.css);")
    (finished / "index.html").write_text((finished / "index.html").read_text() + "<script>last()</script>")
    with (finished / "assets" / "large").open("wb") as file:
        file.truncate(MAX_BYTES)

    with pytest.raises(BadSiteError) as caught:
        check_site(finished)

    loads, script, target, size = str(caught.value).splitlines()
    assert loads.startswith("assets/main.css loads ")
    assert script == "index.html has <script>"
    assert target == "index.html links to guides/store.html#search, which is not there"
    assert size.startswith("the site has ")


def test_code_keeps_its_lines():
    page = '<p>one\n two</p>\n<pre><code><span class="n">a</span>  =  1\n\nb</code></pre>'
    assert shrink_page(page) == "<p>one two</p><pre><code>a  =  1\n\nb</code></pre>"


def test_cells_of_tables_need_no_end():
    table = '<tbody><tr class="odd">\n<td id="a b">1</td>\n<td>2 <b>x</b></td>\n</tr>\n<tr></tr></tbody>'
    assert shrink_page(table) == '<tbody><tr class=odd><td id="a b">1<td>2 <b>x</b><tr></tbody>'


def test_headings_are_listed_once():
    page = '<li><a href="#">x</a>\n<nav class="md-nav md-nav--secondary"><nav>a</nav></nav></li><nav>b</nav>'
    assert shrink_page(page) == '<li><a href="#">x</a></li><nav>b</nav>'


def test_scripts_of_a_page_become_files(built: Path):
    page = move_scripts(PAGE.format(root="../"), built)
    assert "first()" not in page
    assert "application/json" not in page

    scripts = re.findall(r'<script src="\.\./(assets/javascripts/[0-9a-f]{16}\.js)"></script>', page)
    first, scheme, settings = [(built / name).read_text() for name in scripts]
    assert first == "first()"
    assert "prefers-color-scheme" in scheme
    assert json.dumps('{"base": "../"}') in settings


def test_another_form_of_the_builders_script_is_noticed():
    assert adopt_style(BUNDLE) == "(a.adoptedStyleSheets=[new CSSStyleSheet()])[0].replaceSync(css.toString())"

    with pytest.raises(BadSiteError, match="style of the search"):
        adopt_style("a.append(style)")


def test_files_of_the_builder_are_finished(finished: Path):
    assert not (finished / "404.html").exists()
    assert not (finished / "search.json").exists()
    assert json.loads(gzip.decompress((finished / "search.json.gz").read_bytes())) == {"items": [{"text": "a DISK"}]}

    check_site(finished)


def test_whole_site_is_built(tmp_path: Path, sources: dict[str, str]):
    folder = tmp_path / "help"
    try:
        building.build(folder)
    except CannotBuildError as problem:
        pytest.skip(str(problem))

    check_site(folder)
    pages = {file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in folder.rglob("*.html")}
    assert pages.keys() == {name.removesuffix(".md") + ".html" for name in list_sources().values()}

    # The anchors that the builder makes are those that links are checked with.
    for source, name in list_sources().items():
        page = pages[name.removesuffix(".md") + ".html"]
        assert set(re.findall(r'<h[1-6] id="?([^"> ]+)', page)) == list_anchors(sources[source])

    index = json.loads(gzip.decompress((folder / "search.json.gz").read_bytes()))
    assert any("DISK_RESERVE_BYTES" in item["text"] for item in index["items"])


def test_pages_are_served_with_a_strict_policy(finished: Path):
    page = site.respond_with_help("", {}, finished)
    assert page.status_code == 200
    assert b"Start" in page.body
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["content-type"].startswith("text/html")

    packed = site.respond_with_help("guides/store.html", {"accept-encoding": "gzip"}, finished)
    assert packed.headers["content-encoding"] == "gzip"
    again = site.respond_with_help("", {"if-none-match": page.headers["etag"]}, finished)
    assert again.status_code == 304

    index = site.respond_with_help("search.json.gz", {"accept-encoding": "gzip"}, finished)
    assert "content-encoding" not in index.headers


def test_documentation_that_is_not_built_has_no_pages(tmp_path: Path):
    with pytest.raises(site.HelpPageNotFound):
        site.respond_with_help("", {}, tmp_path)


@pytest.mark.parametrize(
    "path", ["guides/none.html", "../site.py", "guides/../../site.py", "/etc/passwd", "guides", "\0"]
)
def test_other_paths_are_no_pages(finished: Path, path: str):
    with pytest.raises(site.HelpPageNotFound):
        site.respond_with_help(path, {}, finished)
