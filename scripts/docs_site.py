"""Builds the documentation's site into the package, which serves it below `/help/`.

    docs_site.py build            build it if its sources changed; without its builder say so, and exit with 0
    docs_site.py build --strict   exit with 1 then

`docs/README.md` orders the pages: its headings are the sections of the navigation, its tables the pages. A page that it
lacks, a broken link and a load from elsewhere fail the build. The builder, Zensical, has an environment of its own in
the user's cache, with the pins of `docs/requirements.lock`; builds are kept there too, by the hash of their sources.
"""

import gzip
import hashlib
import html
import importlib.util
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOCK = DOCS / "requirements.lock"
CONTENTS = "docs/README.md"
START = "docs/start-here.md"
EXAMPLES = "examples/README.md"
TARGET = ROOT / "src" / "portside" / "console" / "help"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "portside" / "docs"
HASH_FILE = ".sources"
KEPT_BUILDS = 5
MAX_BYTES = 3_000_000
# The other pages of the repository are for those who change it; the site has no room for them, nor for pictures.
SECURITY = "SECURITY.md"
# `toc` makes the anchors that code hosts make, so that a link works in both places.
CONFIGURATION = """\
[project]
site_name = "Portside"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}
extra_css = ["portside.css"]

[project.theme]
language = "en"
font = false
favicon = "favicon.svg"
logo = "favicon.svg"
features = ["navigation.tabs", "navigation.prune", "navigation.top", "content.code.copy", "search.highlight"]

[project.theme.palette]
scheme = "default"

[project.markdown_extensions]
tables = {{}}
pymdownx.superfences = {{}}
pymdownx.highlight.use_pygments = true

[project.markdown_extensions.toc]
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
"""
# Colours of the theme that are too faint to be read.
STYLE = """\
[data-md-color-scheme="default"] { --md-accent-fg-color: #3a4fc4; }
[data-md-color-scheme="slate"] { --md-accent-fg-color: #a3b1ff; }
.md-nav__link--passed, .md-nav__link--passed code { color: var(--md-default-fg-color--light); }
"""
# Runs before a page is drawn.
_CHOOSE_SCHEME = """\
const dark = matchMedia("(prefers-color-scheme: dark)");
const choose = () => document.body.setAttribute("data-md-color-scheme", dark.matches ? "slate" : "default");
choose();
dark.addEventListener("change", choose);
"""
# Runs before the site's own script: it adds the settings that the builder writes into each page, and reads the search
# index in its compressed form.
_SET_UP = """\
const settings = document.createElement("script");
settings.id = "__config";
settings.type = "application/json";
settings.textContent = SETTINGS;
document.body.append(settings);

window.XMLHttpRequest = class extends XMLHttpRequest {
  open(method, url) {
    this.isPacked = `${url}`.endsWith("/search.json");
    super.open(method, this.isPacked ? `${url}.gz` : url);
  }

  get response() {
    if (!this.isPacked) return super.response;
    const unpacked = super.response.stream().pipeThrough(new DecompressionStream("gzip"));
    return { text: () => new Response(unpacked).text() };
  }
};
"""
_FENCE = re.compile(r"^ *(```|~~~)")
# A span of code, which is left alone, or a link or picture.
_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+).+?(?P=ticks)(?!`))|(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)", re.DOTALL
)
_HEADING = re.compile(r"^(?P<level>#{2,3}) (?P<title>.+)$")
_ROW = re.compile(r"^\| (?P<links>\[.+?\)) \|")
_PAGE_LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<target>[^)]+\.md)\)")
_PRE = re.compile(r"(<pre\b.*?</pre>|<script\b.*?</script>)", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_SETTINGS = re.compile(r'<script id="__config" type="application/json">(.*?)</script>', re.DOTALL)
_ANCHOR = re.compile(r'\bid="?([^"> ]+)')
_TARGET = re.compile(r'<a\b[^>]* href="?((?![a-z]+:|//)[^"> ]*)')
_STYLE_ELEMENT = re.compile(r'(\w+)\.appendChild\(\w+\("style",\{\},(\w+\.toString\(\))\)\)')
_BODY = re.compile(r"<body\b[^>]*>")
_BUNDLE = re.compile(r'<script src="(?P<root>[./]*)assets/javascripts/bundle\.')
_ICON = re.compile(r'(?<=<svg) xmlns="[^"]*"|(?<= class="lucide) lucide-[\w-]+')
# The form in which a reader would choose colours, of which there is one choice: those of the system.
_PALETTE = re.compile(r'<form\b[^>]*data-md-component="palette".*?</form>', re.DOTALL)
_ELLIPSIS = re.compile(r'<span class="md-ellipsis">([^<]*)</span>')
_HEADING_ENTRY = re.compile(
    r'<span class="md-ellipsis">\s*(<span class="md-typeset">)\s*(.*?)\s*</span>\s*</span>', re.DOTALL
)
# A tag that HTML lets one leave out: the next one implies it.
_IMPLIED_END = re.compile(r"</(?:td|th|tr|li)>(?=<(?:td|th|tr|li)\b|</(?:tr|thead|tbody|ul|ol)>)")
_QUOTED = re.compile(r'(?<==)"([\w.-]+)"(?=[ >])')
_TAG = re.compile(r"<[a-z][^<>]*>")
# Blanks beside these are seen by nobody.
_BLOCK = re.compile(
    r" ?(</?(?:article|aside|body|div|footer|form|h[1-6]|head|header|html|input|label|li|link|main|meta|nav|ol|p|script"
    r"|table|tbody|td|th|thead|title|tr|ul)\b[^>]*>) ?"
)
# The headings of a page are listed beside it; the navigation lists them once more, for the older look of the builder.
_SECOND_HEADINGS = re.compile(r'(?<=</a>)\s*<nav class="md-nav md-nav--secondary"')
_NAV = re.compile(r"<(?P<end>/?)nav\b[^>]*>")
# Words of code without a colour of their own: names, punctuation and blanks.
_PLAIN_WORD = re.compile(r'<span class="(?:n|nn|nx|o|p|w|err|nt|na)">([^<]*)</span>')
# What makes a browser load something: an address of a link may lead elsewhere, these may not.
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data|srcset)=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
    r"""|(?:url\(|@import\s+)["']?(?:https?:)?//[^)\s]+""",
    re.IGNORECASE,
)


class CannotBuildError(Exception):
    """What builds the site cannot be had here; the message says what to do."""


class BadSiteError(Exception):
    """Something is wrong with the pages; each line of the message names one problem."""


class Section(NamedTuple):
    """A part of the navigation: its title, its pages by title and source, and the sections in it."""

    title: str
    pages: list[tuple[str, str]]
    sections: "list[Section]"


def main(arguments: list[str]) -> int:
    if arguments not in (["build"], ["build", "--strict"]):
        print(__doc__, file=sys.stderr)
        return 2

    try:
        build()
    except CannotBuildError as problem:
        print(f"· the documentation's site is not built: {problem}", file=sys.stderr)
        return 1 if "--strict" in arguments else 0
    except BadSiteError as problem:
        print(problem, file=sys.stderr)
        return 1

    return 0


def build(target: Path = TARGET) -> None:
    """Build the site if its sources changed. Raises CannotBuildError and BadSiteError."""
    digest = hash_sources()
    if _read_built_hash(target) == digest:
        return

    with _lock():
        cached = CACHE / digest
        if not (cached / "index.html").is_file():
            print("· building the documentation's site", flush=True)
            _build_into(cached)

        _replace(target, cached, digest)
        _drop_old_builds()


def list_sources() -> dict[str, str]:
    """Return the pages of the site by their files in the repository, as the names that they have in the site."""
    pages = {START: "index.md", CONTENTS: "contents.md", SECURITY: "security.md", EXAMPLES: "examples/index.md"}
    for file in sorted(DOCS.rglob("*.md")):
        name = file.relative_to(ROOT).as_posix()
        pages.setdefault(name, name.removeprefix("docs/"))

    for file in sorted((ROOT / "examples").glob("*/README.md")):
        pages[file.relative_to(ROOT).as_posix()] = f"examples/{file.parent.name}.md"

    return pages


def hash_sources() -> str:
    """Return the hash of everything that the site is made of."""
    files = [Path(__file__), LOCK, *(ROOT / name for name in list_sources())]

    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT).as_posix()}\0{len(content)}\0".encode() + content)

    return digest.hexdigest()[:32]


def read_navigation(text: str) -> list[Section]:
    """Return the sections of the contents page, whose text is given."""
    sections: list[Section] = []

    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading is not None:
            section = Section(title=heading["title"], pages=[], sections=[])
            siblings = sections if heading["level"] == "##" else sections[-1].sections
            siblings.append(section)
            continue

        row = _ROW.match(line)
        if row is not None and sections:
            section = sections[-1].sections[-1] if sections[-1].sections else sections[-1]
            for link in _PAGE_LINK.finditer(row["links"]):
                source = posixpath.normpath(posixpath.join("docs", link["target"]))
                section.pages.append((link["title"], source))

    return [section for section in sections if section.pages or section.sections]


def read_examples(pages: dict[str, str]) -> Section:
    """Return the pages of the examples, in the order of their names; the contents page need not name them."""
    sources = [source for source in pages if source.startswith("examples/")]
    return Section(title="Examples", pages=[(_read_title(source), source) for source in sources], sections=[])


def check_navigation(sections: list[Section], pages: dict[str, str]) -> None:
    """Raise BadSiteError for pages that are missing in the navigation, and for those that it names twice or in vain."""
    named = [source for section in sections for source in _list_pages(section)]
    problems = [f"{CONTENTS} does not name {source}" for source in pages if source not in {*named, CONTENTS}]
    problems += [f"{CONTENTS} names {source}, which is no page" for source in named if source not in pages]
    problems += [f"{CONTENTS} names {source} twice" for source in sorted(set(named)) if named.count(source) > 1]

    if problems:
        raise BadSiteError("\n".join(problems))


def rewrite_links(text: str, source: str, pages: dict[str, str]) -> str:
    """Return a page with links that are right in the site; a link to a file that the site lacks becomes its name."""
    own_folder = posixpath.dirname(pages[source])

    def rewrite(match: re.Match[str]) -> str:
        target = match["target"]
        if match["code"] is not None or "://" in target or target.startswith(("#", "mailto:")):
            return match[0]

        path, _, anchor = target.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path)))
        if match["text"].startswith("!"):
            return ""

        # A link to a folder means its page.
        if f"{name}/README.md" in pages:
            name = f"{name}/README.md"

        if name in pages:
            place = posixpath.relpath(pages[name], own_folder or ".")
        elif name.startswith("docs/") and not (ROOT / name).exists():
            raise BadSiteError(f"{source} links to {target}, which does not exist")
        else:
            label = match["text"][1:-1]
            return label if name in label.replace("`", "") else f"{label} (`{name}` of the repository)"

        return f"{match['text']}({place}{'#' if anchor else ''}{anchor})"

    return "".join(part if is_code else _LINK.sub(rewrite, part) for is_code, part in _split_fences(text))


def find_loads(text: str) -> list[str]:
    """Return what in an HTML page or a style sheet makes a browser load something from another server."""
    return _LOADS.findall(text)


def find_broken_links(pages: dict[str, str]) -> list[str]:
    """Return which links between these HTML pages lead nowhere."""
    anchors = {name: set(_ANCHOR.findall(text)) for name, text in pages.items()}
    problems = []

    for name, text in pages.items():
        for target in sorted(set(_TARGET.findall(text))):
            path, _, anchor = unquote(html.unescape(target)).partition("#")
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if page not in anchors or (anchor and anchor not in anchors[page]):
                problems.append(f"{name} links to {target}, which is not there")

    return problems


def shrink(text: str) -> str:
    """Return an HTML page without what nobody sees; code keeps its blanks and lines."""
    text = _drop_second_headings(text)
    text = _PALETTE.sub("", text)
    text = _HEADING_ENTRY.sub(r"\1\2</span>", text)
    text = _ICON.sub("", _ELLIPSIS.sub(r"\1", _PLAIN_WORD.sub(r"\1", text)))
    parts = _PRE.split(text)
    return "".join(part if index % 2 else _shrink_markup(part) for index, part in enumerate(parts))


def _shrink_markup(text: str) -> str:
    text = _BLOCK.sub(r"\1", re.sub(r"\s+", " ", text))
    return _TAG.sub(lambda tag: _QUOTED.sub(r"\1", tag[0]), _IMPLIED_END.sub("", text))


def _drop_second_headings(text: str) -> str:
    start = _SECOND_HEADINGS.search(text)
    if start is None:
        return text

    depth = 0
    for tag in _NAV.finditer(text, start.start()):
        depth += -1 if tag["end"] else 1
        if depth == 0:
            return text[: start.start()] + text[tag.end() :]

    return text


def move_scripts(text: str, site: Path) -> str:
    """Return an HTML page whose scripts are files of the site, so that its policy allows no script in a page."""
    bundle = _BUNDLE.search(text)
    if bundle is None:
        return text

    def refer(script: str) -> str:
        name = f"assets/javascripts/{hashlib.sha256(script.encode()).hexdigest()[:16]}.js"
        (site / name).write_text(script, "utf-8")
        return f'<script src="{bundle["root"]}{name}"></script>'

    text = _BODY.sub(lambda body: body[0] + refer(_CHOOSE_SCHEME), text)
    text = _SCRIPT.sub(lambda script: refer(script[1]), text)
    return _SETTINGS.sub(lambda settings: refer(_SET_UP.replace("SETTINGS", json.dumps(settings[1]))), text)


def adopt_style(bundle: str) -> str:
    """Return the site's script with the style of the search as a sheet, because the policy refuses style elements.

    Raises BadSiteError.
    """
    adopted, count = _STYLE_ELEMENT.subn(r"(\1.adoptedStyleSheets=[new CSSStyleSheet()])[0].replaceSync(\2)", bundle)
    if count != 1:
        raise BadSiteError("the style of the search is not where this version of the builder had it")

    return adopted


def pack_search(site: Path) -> None:
    """Replace the index of the search by a compressed one of plain text."""
    index = json.loads((site / "search.json").read_text("utf-8"))
    for item in index["items"]:
        item["text"] = re.sub(r"<[^>]+>", "", item["text"])

    content = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode()
    (site / "search.json.gz").write_bytes(gzip.compress(content, mtime=0))
    (site / "search.json").unlink()


def _read_title(source: str) -> str:
    heading = (ROOT / source).read_text("utf-8").partition("\n")[0]
    return heading.removeprefix("# ").strip()


def _list_pages(section: Section) -> Iterator[str]:
    for _, source in section.pages:
        yield source

    for inner in section.sections:
        yield from _list_pages(inner)


def _split_fences(text: str) -> Iterator[tuple[bool, str]]:
    """Return the parts of a text in turn, each with whether it is a block of code."""
    lines: list[str] = []
    fence = None

    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if mark is None or (fence is not None and mark[1] != fence):
            lines.append(line)
        elif fence is None:
            yield False, "".join(lines)
            lines = [line]
            fence = mark[1]
        else:
            yield True, "".join([*lines, line])
            lines = []
            fence = None

    yield fence is not None, "".join(lines)


def _to_toml(sections: list[Section], pages: dict[str, str]) -> str:
    items = []
    for section in sections:
        links = [f"{{ {_quote(title)} = {_quote(pages[source])} }}" for title, source in section.pages]
        if section.sections:
            links.append(_to_toml(section.sections, pages)[1:-1])

        is_one_page = len(section.pages) == 1 and not section.sections
        value = _quote(pages[section.pages[0][1]]) if is_one_page else f"[{', '.join(links)}]"
        items.append(f"{{ {_quote(section.title)} = {value} }}")

    return f"[{', '.join(items)}]"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _build_into(cached: Path) -> None:
    pages = list_sources()
    sections = read_navigation((ROOT / CONTENTS).read_text("utf-8"))
    sections.insert(1, read_examples(pages))
    check_navigation(sections, pages)
    program = _install_builder()

    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        _stage(folder / "pages", pages)
        sections = [*sections, Section(title="Contents", pages=[("Contents", CONTENTS)], sections=[])]
        configuration = CONFIGURATION.format(nav=_to_toml(sections, pages))
        (folder / "zensical.toml").write_text(configuration, "utf-8")

        command = [program, "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadSiteError(f"zensical build failed:\n{done.stdout}{done.stderr}")

        _finish(folder / "site")
        shutil.rmtree(cached, ignore_errors=True)
        (folder / "site").rename(cached)


def _stage(folder: Path, pages: dict[str, str]) -> None:
    """Write the pages as the site has them."""
    for source, name in pages.items():
        text = (ROOT / source).read_text("utf-8")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(rewrite_links(text, source, pages), "utf-8")

    shutil.copy(ROOT / "console" / "public" / "favicon.svg", folder)
    (folder / "portside.css").write_text(STYLE, "utf-8")


def _finish(site: Path) -> None:
    """Make the built files smaller, and check them. Raises BadSiteError."""
    problems = []
    shutil.rmtree(site / "assets" / "stylesheets" / "classic")  # an older look, which no page uses
    (site / "404.html").unlink()

    for file in sorted(site.rglob("*")):
        if file.suffix in {".html", ".css"}:
            text = file.read_text("utf-8")
            problems += [f"{file.relative_to(site)} loads {load}" for load in find_loads(html.unescape(text))]
            if file.suffix == ".html":
                file.write_text(move_scripts(shrink(text), site), "utf-8")

    for file in (site / "assets" / "javascripts").glob("bundle.*.js"):
        file.write_text(adopt_style(file.read_text("utf-8")), "utf-8")

    pack_search(site)
    problems += find_broken_links(
        {file.relative_to(site).as_posix(): file.read_text("utf-8") for file in site.rglob("*.html")}
    )
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    if size > MAX_BYTES:
        problems.append(f"the site has {size} bytes, {MAX_BYTES} are allowed")

    if problems:
        raise BadSiteError("\n".join(problems))


def _install_builder() -> str:
    """Return the program that builds the site, installed if it is missing. Raises CannotBuildError."""
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    environment = CACHE / f"builder-{lock}-{sys.version_info.major}.{sys.version_info.minor}"
    program = environment / "bin" / "zensical"
    if program.exists():
        return str(program)

    for old in CACHE.glob("builder-*"):
        shutil.rmtree(old, ignore_errors=True)

    print("· getting what builds the documentation's site", flush=True)
    python = str(environment / "bin" / "python")
    # Images are built without uv, which is many times as quick.
    has_uv = importlib.util.find_spec("uv") is not None
    pip = (
        [sys.executable, "-m", "uv", "pip", "install", "--python", python]
        if has_uv
        else [python, "-m", "pip", "install"]
    )
    try:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, capture_output=True, text=True)
        command = [*pip, "--quiet", "--require-hashes", "--requirement", str(LOCK)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as problem:
        shutil.rmtree(environment, ignore_errors=True)
        raise CannotBuildError(f"run “make docs” with a network; pip said: {problem.stderr.strip()}") from problem

    return str(program)


def _read_built_hash(target: Path) -> str | None:
    try:
        return (target / HASH_FILE).read_text("utf-8").strip()
    except FileNotFoundError:
        return None


def _replace(target: Path, source: Path, digest: str) -> None:
    """Swap the files in; a platform that runs reads the old ones or the new ones."""
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".static-"))
    shutil.copytree(source, fresh, dirs_exist_ok=True)
    fresh.chmod(0o755)
    (fresh / HASH_FILE).write_text(f"{digest}\n", "utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def _drop_old_builds() -> None:
    builds = sorted((each.parent for each in CACHE.glob("*/index.html")), key=lambda each: each.stat().st_mtime)
    for old in builds[:-KEPT_BUILDS]:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _lock() -> Iterator[None]:
    """Keep two commands from building at the same time."""
    import fcntl

    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
