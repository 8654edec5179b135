"""The path of requests: taking a prefix off it, and serving an application below one."""

from functools import partial
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders

from portside.kernel.errors import NotFound
from portside.kernel.http.headers import get_header
from portside.kernel.http.proxies import add_prefix, with_prefix

PATH_PREFIX = msgspec.Meta(pattern=r"^(/[A-Za-z0-9_.~-]+)*$", max_length=200)


class StripPrefix:
    """Takes the first matching prefix off the path, so that `/api/v1/X` and `/X` are one route."""

    def __init__(self, app: Any, prefixes: tuple[str, ...]) -> None:
        self.app = app
        self.prefixes = prefixes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on without the prefix."""
        if scope["type"] in {"http", "websocket"}:
            for prefix in self.prefixes:
                if scope["path"].startswith(prefix + "/"):
                    scope = {**scope, "path": scope["path"][len(prefix) :]}
                    break

        await self.app(scope, receive, send)


class MountBelow:
    """Serves an application below a prefix; the paths in `at_root` are served at the root too.

    The application does not know the prefix, so its redirects get it.
    """

    def __init__(self, app: Any, prefix: str, at_root: frozenset[str]) -> None:
        self.app = app
        self.prefix = prefix
        self.at_root = at_root

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on with the path below the prefix. Raises NotFound."""
        if scope["type"] == "websocket" and not scope["path"].startswith(self.prefix + "/"):
            await send({"type": "websocket.close", "code": 1000})
            return

        if scope["type"] in {"http", "websocket"} and scope["path"] not in self.at_root:
            path = scope["path"].removeprefix(self.prefix) or "/"
            if path == scope["path"] or not path.startswith("/"):
                raise NotFound

            scope = {**scope, "path": path}
            add_prefix(scope, self.prefix)
            send = partial(self._send, get_header(scope, b"host") or "", send)

        await self.app(scope, receive, send)

    def _send(self, host: str, send: Any, message: Any) -> Any:
        if message["type"] == "http.response.start" and leads_elsewhere(message["status"]):
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            if location := headers.get("location"):
                headers["location"] = with_prefix(location, self.prefix, host)

            message = {**message, "headers": headers.raw}

        return send(message)


def leads_elsewhere(status: int) -> bool:
    """Whether the Location of a response is that of a redirect or of something new.

    Other responses of agent servers have one that their clients read relative to the server's own address.
    """
    return status == 201 or 300 <= status < 400
