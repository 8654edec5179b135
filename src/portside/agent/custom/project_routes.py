"""The project's own routes, as the rest of the server uses them."""

from collections.abc import Mapping

import httpx

from portside.agent.custom.openapi import add_project_api
from portside.agent.custom.web_app import WebApp
from portside.kernel.timeouts import timeout

PROJECT_HOST = "http://api"


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
