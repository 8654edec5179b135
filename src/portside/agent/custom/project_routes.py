"""The project's own routes, called from inside the process."""

from collections.abc import Mapping

import httpx

from portside.agent.custom.web_app import WebApp
from portside.kernel.timeouts import timeout

PROJECT_HOST = "http://api"


class ProjectRoutes:
    """The project's own routes, called from inside the process for webhooks that name only a path.

    Only routes that the project added are called, never ours. The call has no user: a route that needs to know its
    caller has to check the headers that are configured for webhooks.
    """

    def __init__(self, custom: WebApp) -> None:
        self._custom = custom

    def has(self, url: str) -> bool:
        """Whether the project has a route for POST requests at this URL path; a query is ignored."""
        return self._custom.takes_post(httpx.URL(PROJECT_HOST + url).path)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call a route and return the status. Raises TimeoutError, and what the route raises."""
        transport = httpx.ASGITransport(self._custom)
        async with timeout(within_s), httpx.AsyncClient(transport=transport, base_url=PROJECT_HOST) as client:
            return (await client.post(url, headers=dict(headers), content=body)).status_code
