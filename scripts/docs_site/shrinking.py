"""Takes out of the built files what nobody sees: the site has room for 3 MB.

The patterns are those of the HTML that the pinned version of the builder writes. Where it writes something else, a page
is only longer; `checking` then says that the site has no room for it.
"""

import gzip
import json
import re
import shutil
from pathlib import Path

# Code and scripts keep their blanks and lines.
_VERBATIM = re.compile(r"(<pre\b.*?</pre>|<script\b.*?</script>)", re.DOTALL)
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
_ANY_TAG = re.compile(r"<[^>]+>")


def drop_unused_files(site: Path) -> None:
    """Remove the files that no page uses."""
    shutil.rmtree(site / "assets" / "stylesheets" / "classic")  # an older look
    (site / "404.html").unlink()


def shrink_page(text: str) -> str:
    """Return an HTML page without what nobody sees; code keeps its blanks and lines."""
    text = _drop_second_headings(text)
    text = _PALETTE.sub("", text)
    text = _HEADING_ENTRY.sub(r"\1\2</span>", text)
    text = _PLAIN_WORD.sub(r"\1", text)
    text = _ELLIPSIS.sub(r"\1", text)
    text = _ICON.sub("", text)

    # The pattern has one group: every second part is verbatim.
    parts = _VERBATIM.split(text)
    return "".join(part if index % 2 else _shrink_markup(part) for index, part in enumerate(parts))


def pack_search(site: Path) -> None:
    """Replace the index of the search by a compressed one of plain text."""
    index = json.loads((site / "search.json").read_text("utf-8"))
    for item in index["items"]:
        item["text"] = _ANY_TAG.sub("", item["text"])

    content = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode()
    (site / "search.json.gz").write_bytes(gzip.compress(content, mtime=0))
    (site / "search.json").unlink()


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


def _shrink_markup(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    text = _BLOCK.sub(r"\1", text)
    text = _IMPLIED_END.sub("", text)
    return _TAG.sub(lambda tag: _QUOTED.sub(r"\1", tag[0]), text)
