"""Serves an application below path prefixes: beside the plain paths, or instead of them."""

from typing import Any

import msgspec

from portside.kernel.errors import NotFound

A_PREFIX = msgspec.Meta(pattern=r"^(/[A-Za-z0-9_.~-]+)*$", max_length=200)


class StripPrefix:
    """Takes the first matching prefix off the path, so that `/api/v1/X` and `/X` are one route."""

    def __init__(self, app: Any, prefixes: tuple[str, ...]) -> None:
        self.app = app
        self.prefixes = prefixes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on with the shorter path."""
        if scope["type"] in {"http", "websocket"}:
            for prefix in self.prefixes:
                if scope["path"].startswith(prefix + "/"):
                    scope = {**scope, "path": scope["path"][len(prefix) :]}
                    break
        await self.app(scope, receive, send)


class MountBelow:
    """Serves everything below one prefix, and nothing elsewhere but the paths that answer at the root as well."""

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
        await self.app(scope, receive, send)
