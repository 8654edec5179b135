"""Links between pages in Markdown: where they lead, and how the site writes them."""

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from scripts.docs_site.sources import ROOT

_FENCE = re.compile(r"^ *(```|~~~)")
# A span of code, which is left alone, or a link or picture.
_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+).+?(?P=ticks)(?!`))|(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)", re.DOTALL
)
_HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)(?: +#+)?$", re.MULTILINE)
# What a heading shows of a link in it.
_LABEL = re.compile(r"\[(?P<label>[^\]]*)\]\([^)]*\)")
_OWN_ANCHOR = re.compile(r'<\w+ [^>]*\b(?:id|name)="(?P<anchor>[^"]+)"')
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


class Link(NamedTuple):
    """A link to another file of the repository, or to a heading of the same one (`file` is its own then)."""

    target: str
    file: str
    anchor: str


def find_broken_links(texts: dict[str, str]) -> list[str]:
    """Return which links of these pages lead nowhere: to a missing file of the documentation, or to a missing heading.

    The texts are given by their files in the repository. The headings of a file that is not among them are not known.
    Files outside the documentation may be missing: images are built without them.
    """
    anchors = {source: list_anchors(text) for source, text in texts.items()}
    problems = []

    for source, text in texts.items():
        for link in list_links(text, source):
            if link.file.startswith("docs/") and not (ROOT / link.file).exists():
                problems.append(f"{source} links to {link.target}, which does not exist")
            elif link.anchor and link.anchor not in anchors.get(link.file, {link.anchor}):
                problems.append(f"{source} links to {link.target}, and {link.file} has no such heading")

    return problems


def list_links(text: str, source: str) -> Iterator[Link]:
    """Return the links of a page that lead into the repository."""
    for is_code, part in _split_fences(text):
        for match in _LINK.finditer(part):
            if not is_code and match["code"] is None and not _leads_elsewhere(match["target"]):
                yield _to_link(match["target"], source)


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page: those that the builder and code hosts make of its headings, and its own.

    Of equal headings only the first one has an anchor: those of the others differ between the builder and code hosts.
    """
    prose = "".join(part for is_code, part in _split_fences(text) if not is_code)
    anchors = {_to_anchor(heading["title"]) for heading in _HEADING.finditer(prose)}
    return anchors | {own["anchor"] for own in _OWN_ANCHOR.finditer(prose)}


def rewrite_links(text: str, source: str, pages: dict[str, str]) -> str:
    """Return a page with links that are right in the site; a link to a file that the site lacks becomes its name."""
    own_folder = posixpath.dirname(pages[source])

    def rewrite(match: re.Match[str]) -> str:
        if match["code"] is not None or match["target"].startswith("#") or _leads_elsewhere(match["target"]):
            return match[0]

        link = _to_link(match["target"], source)
        if match["text"].startswith("!"):
            return ""

        # A link to a folder means its page.
        readme = f"{link.file}/README.md"
        file = readme if readme in pages else link.file

        if file not in pages:
            label = match["text"][1:-1]
            return label if file in label.replace("`", "") else f"{label} (`{file}` of the repository)"

        place = posixpath.relpath(pages[file], own_folder or ".")
        return f"{match['text']}({place}{'#' if link.anchor else ''}{link.anchor})"

    return "".join(part if is_code else _LINK.sub(rewrite, part) for is_code, part in _split_fences(text))


def _leads_elsewhere(target: str) -> bool:
    return "://" in target or target.startswith("mailto:")


def _to_link(target: str, source: str) -> Link:
    path, _, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path))) if path else source
    return Link(target=target, file=file, anchor=anchor)


def _to_anchor(title: str) -> str:
    shown = _LABEL.sub(r"\g<label>", title)
    return _NOT_IN_ANCHORS.sub("", shown.strip().lower()).replace(" ", "-")


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
