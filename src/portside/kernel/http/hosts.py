"""By which names a server may be called.

A web page can make its own name stand for an address of its visitor's network, and then counts as a page of whatever
answers there. A server that knows its names is not taken in: the browser says by which one it calls.
"""

from typing import Any

from starlette.datastructures import Headers

from portside.kernel.errors import BadRequest

ANY = "*"
# What load balancers and orchestrators ask by address.
ASKED_BY_ADDRESS = frozenset({"/ok", "/metrics"})


class HostNotAllowed(BadRequest):
    """The server is not called by this host name; the setting ALLOWED_HOSTS lists the names it has."""

    code = "host_not_allowed"


class HostUnclear(BadRequest):
    """A request names the host that it is for, once."""

    code = "host_unclear"


def check_host(scope: Any) -> None:
    """Look whether it is clear which host a request is for: whatever stands before this server may have read another.

    Raises HostUnclear.
    """
    named = [name for name, _ in scope["headers"]].count(b"host")
    if named > 1 or (named == 0 and scope["http_version"] == "1.1"):
        raise HostUnclear


class KnownHosts:
    """Refuses requests by names that the server does not have; `*.example.org` is any name below that one."""

    def __init__(self, app: Any, names: list[str]) -> None:
        self.app = app
        self._names = frozenset(name.lower() for name in names)
        self._endings = tuple(name[1:].lower() for name in names if name.startswith("*."))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. Raises HostNotAllowed; a WebSocket is closed before it is accepted."""
        if scope["type"] not in {"http", "websocket"} or scope["path"] in ASKED_BY_ADDRESS or self._knows(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            raise HostNotAllowed

    def _knows(self, scope: Any) -> bool:
        name = _name_of(Headers(scope=scope).get("host", "").lower())
        return name in self._names or name.endswith(self._endings)


def _name_of(host: str) -> str:
    """Return a host header without its port; the name of an IPv6 address keeps its brackets."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
