"""The project's own routes, as the rest of the server uses them."""

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from portside.agent.custom.web_app import WebApp
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

PROJECT_HOST = "http://api"
log = get_logger(__name__)
CLASH_PREFIX = "Custom"
_COMPONENTS = "#/components/"


class ProjectRoutes:
    """The project's own routes: called for webhooks that name only a path, and described in the OpenAPI document.

    The application contains the routes of this server, so it exists only after the services of those routes: it is
    given to `open`. Until then, and if the project has no application, there are no routes.

    Only routes that the project added are called, never ours. The call has no user: a route that needs to know its
    caller has to check the headers that are configured for webhooks.
    """

    def __init__(self) -> None:
        self._custom: WebApp | None = None

    def open(self, custom: WebApp) -> None:
        """Use the routes of this application. Call it before the server answers."""
        self._custom = custom

    def has(self, url: str) -> bool:
        """Whether the project has a route for POST requests at this URL path; a query is ignored."""
        return self._custom is not None and self._custom.takes_post(httpx.URL(PROJECT_HOST + url).path)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call a route and return the status. Raises TimeoutError, and what the route raises."""
        assert self._custom is not None  # noqa: S101 - `has` says so

        transport = httpx.ASGITransport(self._custom)
        async with timeout(within_s), httpx.AsyncClient(transport=transport, base_url=PROJECT_HOST) as client:
            return (await client.post(url, headers=dict(headers), content=body)).status_code

    async def fetch_document(self) -> None:
        """Fetch the application's OpenAPI document; await this before `add_to`. Raises Unavailable."""
        if self._custom is not None:
            await self._custom.fetch_document()

    def add_to(self, document: bytes) -> bytes:
        """Return our OpenAPI document with the project's routes."""
        return document if self._custom is None else add_project_api(document, self._custom.app)


def add_project_api(ours: bytes, app: Any) -> bytes:
    """Return our OpenAPI document with the operations of the project's application, if it has an OpenAPI document."""
    if not getattr(app, "openapi_url", None) or not callable(getattr(app, "openapi", None)):
        return ours

    try:
        theirs = msgspec.json.decode(msgspec.json.encode(app.openapi()))
    except Exception:
        # Serve without the project's part of the document. FastAPI alone would also fail only when somebody reads it.
        log.exception("the application of the project cannot be described")
        return ours

    return msgspec.json.encode(_merge_documents(msgspec.json.decode(ours), theirs))


def _merge_documents(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Add their operations to ours; theirs override ours, as their routes do."""
    renamed = _clashes(ours.get("components", {}), theirs.get("components", {}))
    theirs = _with_names(theirs, renamed)
    for path, operations in theirs.get("paths", {}).items():
        ours.setdefault("paths", {}).setdefault(path, {}).update(operations)

    for kind, entries in theirs.get("components", {}).items():
        components = ours.setdefault("components", {}).setdefault(kind, {})
        components.update({renamed.get(f"{_COMPONENTS}{kind}/{name}", name): entry for name, entry in entries.items()})

    tags = {tag["name"] for tag in ours.get("tags", [])}
    if new := [tag for tag in theirs.get("tags", []) if tag["name"] not in tags]:
        ours["tags"] = [*ours.get("tags", []), *new]

    return ours


def _clashes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """Return new names for their components that have the name of a different one of ours, by reference."""
    return {
        f"{_COMPONENTS}{kind}/{name}": f"{CLASH_PREFIX}{name}"
        for kind, entries in theirs.items()
        for name, entry in entries.items()
        if name in ours.get(kind, {}) and ours[kind][name] != entry
    }


def _with_names(value: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_names(part, renamed) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_names(part, renamed) for part in value]
    if isinstance(value, str) and value in renamed:
        return f"{value.rpartition('/')[0]}/{renamed[value]}"

    return value
