"""The bundles of React components that a project has for its users' browsers (`ui` of the configuration file).

A build, or `portside dev`, writes them with the executor's program `ui.mjs`, into `.langgraph_api/ui` beside the
configuration file. This module reads them, and writes the HTML that loads one.
"""

import asyncio
import hashlib
import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from portside.kernel.errors import NotFound

BUNDLES = Path(".langgraph_api", "ui")
SCRIPT = "entrypoint.js"
STYLES = "entrypoint.css"
_MEDIA_TYPES = {SCRIPT: "text/javascript", STYLES: "text/css"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]")


class ComponentsNotFound(NotFound):
    """No UI component has this name; add it to `ui` in the configuration file, and deploy again."""

    code = "components_not_found"


class BundleFile(NamedTuple):
    """A file of a bundle, with the ETag of its content."""

    content: bytes
    media_type: str
    etag: str


class Bundles:
    """The bundles of a project, by the names of its configuration file. They may change while the server runs."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder / BUNDLES
        self._names = frozenset(names)

    async def file(self, name: str, file: str) -> BundleFile:
        """Return a file of a bundle. Raises ComponentsNotFound."""
        if name not in self._names or file not in _MEDIA_TYPES:
            raise ComponentsNotFound

        try:
            content = await asyncio.to_thread((self._folder / name / file).read_bytes)
        except OSError as exc:
            raise ComponentsNotFound from exc

        return BundleFile(content, _MEDIA_TYPES[file], f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    async def page(self, name: str, component: str, base_url: str) -> str:
        """Return the HTML that loads a component from this server's URL. Raises ComponentsNotFound.

        The client puts it into a shadow root, whose id it writes in place of `{{shadowRootId}}`.
        """
        if name not in self._names or not await asyncio.to_thread((self._folder / name / SCRIPT).is_file):
            raise ComponentsNotFound

        address = html.escape(f"{base_url}/ui/{quote(name, safe='')}/")
        render = f'__LGUI_{_NOT_IN_NAMES.sub("_", name)}.render({json.dumps(component)}, "{{{{shadowRootId}}}}")'

        # Within single quotes, so that the quotation marks of JSON can stay.
        call = html.escape(render, quote=False).replace("'", "&#x27;")
        lines = [f"<script src=\"{address}{SCRIPT}\" onload='{call}'></script>"]
        if await asyncio.to_thread((self._folder / name / STYLES).is_file):
            lines.insert(0, f'<link rel="stylesheet" href="{address}{STYLES}" />')

        return "\n".join(lines)
