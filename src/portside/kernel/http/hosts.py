"""The Host header of requests: it must be there once, and name a host that the server accepts."""

from typing import Any

from starlette.datastructures import Headers

from portside.kernel.errors import BadRequest

ANY = "*"
# Load balancers and orchestrators request these paths by IP address.
PATHS_FOR_ANY_HOST = frozenset({"/ok", "/metrics"})


class HostNotAllowed(BadRequest):
    """The server does not accept this host name; use one that the setting ALLOWED_HOSTS lists, or add it there."""

    code = "host_not_allowed"


class HostUnclear(BadRequest):
    """A request must have exactly one Host header."""

    code = "host_unclear"


def check_host(scope: Any) -> None:
    """Raise HostUnclear unless a request or a handshake has one Host header.

    If there are two, a proxy may have routed the request by the first, while this server would act on the second.
    """
    count = [name for name, _ in scope["headers"]].count(b"host")
    is_missing = count == 0 and scope.get("http_version") == "1.1"
    if is_missing or count > 1:
        raise HostUnclear


class AllowedHosts:
    """Refuses requests for host names that are not allowed; `*.example.org` allows every subdomain.

    This stops DNS rebinding: a web page can point its own name at an address in its visitor's network, and browsers
    then treat the server at that address as part of the page. The Host header still shows the page's name.
    """

    def __init__(self, app: Any, names: list[str]) -> None:
        self.app = app
        self._names = frozenset(name.lower() for name in names)
        self._endings = tuple(name[1:].lower() for name in names if name.startswith("*."))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. Raises HostNotAllowed; a WebSocket is closed before it is accepted."""
        if scope["type"] not in {"http", "websocket"} or scope["path"] in PATHS_FOR_ANY_HOST or self._knows(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            raise HostNotAllowed

    def _knows(self, scope: Any) -> bool:
        name = _strip_port(Headers(scope=scope).get("host", "").lower())
        return name in self._names or name.endswith(self._endings)


def _strip_port(host: str) -> str:
    """Return the name in a Host header without the port; an IPv6 address keeps its brackets."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
