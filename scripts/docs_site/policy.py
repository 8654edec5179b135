"""Makes the built files obey the policy that they are served with: no script and no style element in a page.

What the builder writes into pages becomes files of the site, and its own script is changed in one place. It also reads
the index of the search in its compressed form (`shrinking.pack_search`).
"""

import hashlib
import json
import re
from pathlib import Path

from scripts.docs_site.problems import BadSiteError

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
_BODY = re.compile(r"<body\b[^>]*>")
_BUNDLE = re.compile(r'<script src="(?P<root>[./]*)assets/javascripts/bundle\.')
_SCRIPT = re.compile(r"<script>(?P<script>.*?)</script>", re.DOTALL)
_SETTINGS = re.compile(r'<script id="__config" type="application/json">(?P<settings>.*?)</script>', re.DOTALL)
_STYLE_ELEMENT = re.compile(r'(?P<parent>\w+)\.appendChild\(\w+\("style",\{\},(?P<style>\w+\.toString\(\))\)\)')


def move_scripts(text: str, site: Path) -> str:
    """Return an HTML page whose scripts are files of the site, which this writes."""
    bundle = _BUNDLE.search(text)
    if bundle is None:
        return text

    def write_script(script: str) -> str:
        """Write a file of the site, and return the tag that loads it."""
        name = f"assets/javascripts/{hashlib.sha256(script.encode()).hexdigest()[:16]}.js"
        (site / name).write_text(script, "utf-8")
        return f'<script src="{bundle["root"]}{name}"></script>'

    def write_settings(element: re.Match[str]) -> str:
        return write_script(_SET_UP.replace("SETTINGS", json.dumps(element["settings"])))

    text = _BODY.sub(lambda body: body[0] + write_script(_CHOOSE_SCHEME), text)
    text = _SCRIPT.sub(lambda element: write_script(element["script"]), text)
    return _SETTINGS.sub(write_settings, text)


def adopt_style(bundle: str) -> str:
    """Return the site's own script with the style of the search as a sheet, in place of an element.

    Raises BadSiteError.
    """
    sheet = r"(\g<parent>.adoptedStyleSheets=[new CSSStyleSheet()])[0].replaceSync(\g<style>)"
    adopted, count = _STYLE_ELEMENT.subn(sheet, bundle)
    if count != 1:
        raise BadSiteError("the style of the search is not where this version of the builder had it")

    return adopted
