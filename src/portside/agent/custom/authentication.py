"""Authentication in the middle of the project's application: before its middleware, or between that and its routes.

Our own routes are guarded where they are, whatever comes before. This is for routes of the project, and for middleware
that wants to know who asks.
"""

from collections.abc import Callable
from typing import Any

from starlette.authentication import AuthCredentials, UnauthenticatedUser
from starlette.requests import Request

from portside.agent.access.service import Access
from portside.kernel.http.refusals import ErrorForm, error_of, error_response
from portside.kernel.http.websockets import refuse


class Authenticate:
    """Lets requests through whose sender is known, and says so in their scope: `request.user`, `request.auth`."""

    def __init__(self, app: Any, access: Access, is_asked: Callable[[Any], bool]) -> None:
        self.app = app
        self.access = access
        self.is_asked = is_asked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer who is unknown; calls from inside the process and open servers have no user."""
        if scope["type"] not in {"http", "websocket"} or not self.is_asked(scope):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            await self.access.authenticate(request)
        except Exception as exc:  # noqa: BLE001 - whatever keeps a client out keeps it out
            await error_response(error_of(exc, scope["path"]), ErrorForm.TEXT)(scope, receive, send)
            return
        _name_nobody(scope)
        await self.app(scope, _again(request, receive), send)

    async def _connect(self, scope: Any, receive: Any, send: Any) -> None:
        # A handshake is a GET request, and its sender is known by the headers of it.
        asking = Request({**scope, "type": "http", "method": "GET"})
        try:
            await self.access.authenticate(asking)
        except Exception as exc:  # noqa: BLE001 - the same
            await receive()
            await refuse(error_response(error_of(exc, scope["path"]), ErrorForm.TEXT), scope, send)
            return
        for name in ("user", "auth"):
            if name in asking.scope:
                scope[name] = asking.scope[name]
        _name_nobody(scope)
        await self.app(scope, receive, send)


def _name_nobody(scope: Any) -> None:
    scope.setdefault("user", UnauthenticatedUser())
    scope.setdefault("auth", AuthCredentials())


def _again(request: Request, receive: Any) -> Any:
    """Give the body that was read for the authentication to who comes after it."""
    if not hasattr(request, "_body"):
        return receive
    kept = [request._body]  # noqa: SLF001 - the framework's own middleware looks there too

    async def from_the_start() -> Any:
        return {"type": "http.request", "body": kept.pop(), "more_body": False} if kept else await receive()

    return from_the_start
