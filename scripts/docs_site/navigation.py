"""The navigation of the site, which is that of the contents page: its headings are sections, its tables list pages."""

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from scripts.docs_site.problems import BadSiteError
from scripts.docs_site.sources import CONTENTS

_HEADING = re.compile(r"^(?P<level>#{2,3}) (?P<title>.+)$")
_ROW = re.compile(r"^\| (?P<links>\[.+?\)) \|")
_PAGE_LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<target>[^)]+\.md)\)")


class Section(NamedTuple):
    """A part of the navigation: its title, its pages by title and source, and the sections in it."""

    title: str
    pages: list[tuple[str, str]]
    sections: "list[Section]"


def order_pages(texts: dict[str, str]) -> list[Section]:
    """Return the navigation of pages, whose texts are given by their files. Raises BadSiteError."""
    sections = read_navigation(texts[CONTENTS])
    sections.insert(1, list_examples(texts))
    check_navigation(sections, texts)
    sections.append(Section(title="Contents", pages=[("Contents", CONTENTS)], sections=[]))

    return sections


def read_navigation(contents: str) -> list[Section]:
    """Return the sections of the contents page, whose text is given."""
    sections: list[Section] = []

    for line in contents.splitlines():
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


def list_examples(texts: dict[str, str]) -> Section:
    """Return the pages of the examples, in the order of their names; the contents page need not name them."""
    sources = [source for source in texts if source.startswith("examples/")]
    return Section(title="Examples", pages=[(_read_title(texts[source]), source) for source in sources], sections=[])


def check_navigation(sections: list[Section], texts: dict[str, str]) -> None:
    """Raise BadSiteError for pages that are missing in the navigation, and for those that it names twice or in vain."""
    sources = [source for section in sections for source in _list_pages(section)]
    problems = [f"{CONTENTS} does not name {source}" for source in texts if source not in {*sources, CONTENTS}]
    problems += [f"{CONTENTS} names {source}, which is no page" for source in sources if source not in texts]
    problems += [f"{CONTENTS} names {source} twice" for source in sorted(set(sources)) if sources.count(source) > 1]

    if problems:
        raise BadSiteError("\n".join(problems))


def to_toml(sections: list[Section], pages: dict[str, str]) -> str:
    """Return the navigation in the form of the builder's configuration."""
    items = []
    for section in sections:
        links = [f"{{ {_quote(title)} = {_quote(pages[source])} }}" for title, source in section.pages]
        if section.sections:
            links.append(to_toml(section.sections, pages)[1:-1])

        is_one_page = len(section.pages) == 1 and not section.sections
        value = _quote(pages[section.pages[0][1]]) if is_one_page else f"[{', '.join(links)}]"
        items.append(f"{{ {_quote(section.title)} = {value} }}")

    return f"[{', '.join(items)}]"


def _list_pages(section: Section) -> Iterator[str]:
    for _, source in section.pages:
        yield source

    for inner in section.sections:
        yield from _list_pages(inner)


def _read_title(text: str) -> str:
    heading = text.partition("\n")[0]
    return heading.removeprefix("# ").strip()


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
