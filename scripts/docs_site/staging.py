"""What the builder reads: the pages as the site has them, its configuration, and our style."""

import shutil
from pathlib import Path

from scripts.docs_site.links import rewrite_links
from scripts.docs_site.navigation import Section, to_toml
from scripts.docs_site.sources import FAVICON

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


def stage(folder: Path, texts: dict[str, str], pages: dict[str, str], sections: list[Section]) -> None:
    """Write into a folder what the builder reads."""
    for source, name in pages.items():
        file = folder / "pages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(rewrite_links(texts[source], source, pages), "utf-8")

    shutil.copy(FAVICON, folder / "pages")
    (folder / "pages" / "portside.css").write_text(STYLE, "utf-8")
    (folder / "zensical.toml").write_text(CONFIGURATION.format(nav=to_toml(sections, pages)), "utf-8")
