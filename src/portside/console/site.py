"""The built files of the console and of the documentation, as responses.

The platform serves both by its routes; the console alone is also served in front of one agent. In the console, every
path that is not a file is an address inside the application, so it answers `index.html`. Its files below `assets/` have
a hash of their content in their name, so browsers may keep them.
"""

import gzip
import hashlib
import html
import mimetypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from portside.kernel.errors import NotFound

STATIC = Path(__file__).parent / "static"
HELP_FILES = Path(__file__).parent / "help"
INDEX = "index.html"
HOME = "/console/"
ASSETS = "assets/"
_REDIRECTED = frozenset({"/console", "/studio"})
_A_YEAR_S = 365 * 24 * 3600
_GZIP_LEVEL = 9
# Fonts and pictures are compressed already.
_COMPRESSED = frozenset({".css", ".html", ".js", ".json", ".map", ".svg", ".txt"})
# `{}` stands for the other origins that pages may call: those of agents.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{}; "
    "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # An address with a share token may be posted somewhere.
    "X-Robots-Tag": "noindex",
}
# The documentation calls nobody but this server, for its own search.
HELP_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HELP_MISSING = (
    "The documentation is not built here",
    (
        "Its pages are the files in the folder docs of the repository. Run “make docs” there to have them here, with "
        "search; released packages and images have them."
    ),
)
MISSING = (
    "The console is not built here",
    (
        "Everything else of the platform works. The console is built by “make install” with Node 20.19 or newer and "
        "packages of the npm registry. Run “make console” in the repository: it says what is missing."
    ),
)


class FileNotBuilt(NotFound):
    """The console has no such file; it may be of an older version: load the page again."""

    code = "console_file_not_found"


class HelpPageNotFound(NotFound):
    """The documentation has no such page; /help/ has the list of its pages, and a search."""

    code = "help_page_not_found"


class _SiteFile(NamedTuple):
    content: bytes
    compressed: bytes | None
    media_type: str
    etag: str


def is_built(folder: Path = STATIC) -> bool:
    """Whether the console's files are there."""
    return (folder / INDEX).is_file()


def respond(
    path: str,
    headers: dict[str, str],
    folder: Path = STATIC,
    *,
    agent_origins: Sequence[str] = (),
    own_agent: str | None = None,
) -> Response:
    """Return the file at a path below `/console/`, or the application for any other path. Raises FileNotBuilt.

    `headers` are those of the request in lower case. `agent_origins` are the origins of agents that pages may call, as
    in a Content Security Policy. `own_agent` is the path before the routes of the one agent that serves the console,
    where there is no platform. The caller has checked `is_built`.
    """
    is_asset = path.startswith(ASSETS)
    try:
        if path in _list_names(folder) and path != INDEX:
            file = _read(folder, path)
        elif is_asset:
            raise FileNotBuilt
        else:
            file = _read(folder, INDEX, own_agent)
    except FileNotFoundError as exc:
        _forget_files()
        raise FileNotBuilt from exc

    other_origins = "".join(f" {origin}" for origin in agent_origins)
    policy = CONTENT_SECURITY_POLICY.format(other_origins)
    return _to_response(file, headers, policy=policy, is_kept=is_asset)


def respond_with_help(path: str, headers: dict[str, str], folder: Path = HELP_FILES) -> Response:
    """Return the file at a path below `/help/`. Raises HelpPageNotFound, also where the documentation is not built."""
    name = path or INDEX
    if name not in _list_names(folder):
        raise HelpPageNotFound

    try:
        file = _read(folder, name)
    except FileNotFoundError as exc:
        _forget_files()
        raise HelpPageNotFound from exc

    return _to_response(file, headers, policy=HELP_POLICY)


def _to_response(file: "_SiteFile", headers: dict[str, str], *, policy: str, is_kept: bool = False) -> Response:
    """Return a file as the response to a request with these headers; browsers may keep it for a year if `is_kept`."""
    response_headers = {
        **_SECURITY,
        "Content-Security-Policy": policy,
        "Cache-Control": f"public, max-age={_A_YEAR_S}, immutable" if is_kept else "no-cache",
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }

    if headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=response_headers)

    body = file.content
    if file.compressed is not None and "gzip" in headers.get("accept-encoding", ""):
        body = file.compressed
        response_headers["Content-Encoding"] = "gzip"

    return Response(body, headers=response_headers, media_type=file.media_type)


class ServeConsole:
    """The console of one agent without a platform, which `portside dev` serves in front of the agent's own routes.

    There is no session and nobody signs in: the pages call the agent as any other client on this machine does.
    """

    def __init__(self, app: Any, agent_prefix: str = "", folder: Path = STATIC) -> None:
        self._app = app
        self._agent_prefix = agent_prefix
        self._folder = folder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "http" and scope["method"] in {"GET", "HEAD"}:
            path = scope["path"]
            if path in _REDIRECTED:
                await Response(status_code=307, headers={"Location": HOME})(scope, receive, send)
                return

            if path.startswith(HOME):
                response = self._respond(path.removeprefix(HOME), Headers(scope=scope))
                await response(scope, receive, send)
                return

        await self._app(scope, receive, send)

    def _respond(self, path: str, headers: Headers) -> Response:
        if not is_built(self._folder):
            return PlainTextResponse("\n".join(MISSING), 503)

        try:
            return respond(path, dict(headers), self._folder, own_agent=self._agent_prefix)
        except FileNotBuilt as exc:
            return PlainTextResponse(str(exc), exc.status)


def _forget_files() -> None:
    """Read everything again: it was built again while the platform runs."""
    _list_names.cache_clear()
    _read.cache_clear()


@cache
def _list_names(folder: Path) -> frozenset[str]:
    return frozenset(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@cache
def _read(folder: Path, name: str, own_agent: str | None = None) -> _SiteFile:
    """Read a file and compress it, at its first request: the start of the platform stays as quick as without it."""
    content = (folder / name).read_bytes()
    if own_agent is not None:
        mark = f'<meta name="portside-agent" content="{html.escape(own_agent)}"><title>'
        content = content.replace(b"<title>", mark.encode(), 1)

    is_text = Path(name).suffix in _COMPRESSED
    media_type, encoding = mimetypes.guess_type(name)
    if media_type is None or encoding is not None:
        media_type = "application/octet-stream"

    digest = hashlib.sha256(content).hexdigest()[:32]

    return _SiteFile(
        content=content,
        compressed=gzip.compress(content, _GZIP_LEVEL, mtime=0) if is_text else None,
        media_type=media_type,
        etag=f'"{digest}"',
    )
