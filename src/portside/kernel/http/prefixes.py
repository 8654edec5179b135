"""Serves an application under more than one path prefix."""

from typing import Any


class StripPrefix:
    """Takes the first matching prefix off the path, so that `/api/v1/X` and `/X` are one route."""

    def __init__(self, app: Any, prefixes: tuple[str, ...]) -> None:
        self.app = app
        self.prefixes = prefixes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on with the shorter path."""
        if scope["type"] == "http":
            for prefix in self.prefixes:
                if scope["path"].startswith(prefix + "/"):
                    scope = {**scope, "path": scope["path"][len(prefix) :]}
                    break
        await self.app(scope, receive, send)
