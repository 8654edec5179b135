"""Calls to the project's own routes from inside the process, for webhooks that name only a path.

Only what the project itself added is called, never a route of ours, and nobody vouches for the call: a route that
wants to know who calls is told what the headers of webhooks say.
"""

import asyncio
from collections.abc import Mapping

import httpx2
from starlette.routing import Match

from portside.agent.custom.application import ASKED_PATH, CustomApp, OurRoutes

HOST = "http://api"


class OwnRoutes:
    """The routes that the project's application has beside ours."""

    def __init__(self, custom: CustomApp) -> None:
        self._custom = custom

    def has(self, url: str) -> bool:
        """Whether a path, maybe with a query, is that of a route of the project that takes a POST."""
        path = httpx2.URL(HOST + url).path
        scope = {"type": "http", "method": "POST", "path": path, ASKED_PATH: path, "root_path": "", "headers": []}
        taking = (route for route in self._custom.app.router.routes if route.matches(scope)[0] is Match.FULL)
        first = next(taking, None)
        return first is not None and not isinstance(first, OurRoutes)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call a route and return the status. Raises TimeoutError, and what the route raises."""
        transport = httpx2.ASGITransport(self._custom)
        async with asyncio.timeout(within_s), httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
            return (await client.post(url, headers=dict(headers), content=body)).status_code
