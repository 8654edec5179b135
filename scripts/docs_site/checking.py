"""What must be true of a built site.

No link leads nowhere, nothing is loaded from elsewhere, no page has a script or a style that its policy refuses, and
the site has at most 3 MB.
"""

import html
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from scripts.docs_site.problems import BadSiteError

MAX_BYTES = 3_000_000
_ANCHOR = re.compile(r'\bid="?([^"> ]+)')
_TARGET = re.compile(r'<a\b[^>]* href="?((?![a-z]+:|//)[^"> ]*)')
# What makes a browser load something: an address of a link may lead elsewhere, these may not.
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data|srcset)=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
    r"""|(?:url\(|@import\s+)["']?(?:https?:)?//[^)\s]+""",
    re.IGNORECASE,
)
# What the policy of the site refuses in a page: scripts and styles that are no files.
_REFUSED = re.compile(r"<script\b(?![^>]*\bsrc=)[^>]*>|<style\b[^>]*>|<[a-z][^<>]*\s(?:style|on[a-z]+)=[^<>]*>")


def check_site(site: Path) -> None:
    """Read all files of a built site. Raises BadSiteError."""
    problems = []
    pages = {}

    for file in sorted(site.rglob("*")):
        if file.suffix in {".html", ".css"}:
            name = file.relative_to(site).as_posix()
            text = file.read_text("utf-8")
            problems += [f"{name} loads {load}" for load in find_loads(html.unescape(text))]
            if file.suffix == ".html":
                problems += [f"{name} has {element}" for element in find_refused(text)]
                pages[name] = text

    problems += find_broken_targets(pages)
    problems += find_excess(site)
    if problems:
        raise BadSiteError("\n".join(problems))


def find_loads(text: str) -> list[str]:
    """Return what in an HTML page or a style sheet makes a browser load something from another server."""
    return _LOADS.findall(text)


def find_refused(text: str) -> list[str]:
    """Return what in an HTML page its policy refuses."""
    return _REFUSED.findall(text)


def find_broken_targets(pages: dict[str, str]) -> list[str]:
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


def find_excess(site: Path, limit: int = MAX_BYTES) -> list[str]:
    """Return what is too large about a site: nothing, or its size."""
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    return [f"the site has {size} bytes, {limit} are allowed"] if size > limit else []
