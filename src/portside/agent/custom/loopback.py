"""`get_client()` of the SDK without an address: a client of the very server that the code runs in.

The SDK looks for such a server under the names of the modules of another one, which it imports while it makes a client.
`introduce` puts stand-ins under these names: what the SDK asks for, and nothing else. They are there before the
project's code is imported, so that a client may be made there; it can be used when the server runs, from any loop.
"""

import os
import sys
from collections.abc import AsyncIterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import httpx

from portside.agent.graphs.acting import acting_for
from portside.kernel.http.inside import BrokeOff, Call, Exchange, Inside, NotServing

HOST_PACKAGE = "langgraph_api"
_DEFERS = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"
# The SDK makes its clients without being given anything, so there is one way in for the process.
INSIDE = Inside()


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Carries requests of an HTTP client to the server of this process."""

    def __init__(self, app: Any = None, **options: Any) -> None:
        """Take what the SDK gives its transports; there is only one server to call, and one root path."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make a call. Raises ConnectError when no server runs in this process, and ReadError."""
        url = request.url
        raw_path, _, query = url.raw_path.partition(b"?")
        call = Call(request.method, url.path, raw_path, query, request.headers.raw, await request.aread(), acting_for())
        try:
            head, exchange = await INSIDE.ask(call)
        except NotServing as exc:
            raise httpx.ConnectError(str(exc), request=request) from exc
        except BrokeOff as exc:
            raise httpx.ReadError(str(exc), request=request) from exc
        return httpx.Response(head.status, headers=head.headers, stream=_Answer(exchange))


class _Answer(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._exchange.next():
                yield data
        except ConnectionError as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def aclose(self) -> None:
        await self._exchange.leave()


def introduce(**modules: dict[str, Any]) -> None:
    """Have the SDK find this server; `modules` are further ones that it asks a server for, with what is in them."""
    os.environ.pop(_DEFERS, None)
    package = _stand_in(HOST_PACKAGE, is_package=True)
    package.__path__ = []
    offered: dict[str, dict[str, Any]] = {
        "server": {"app": INSIDE},
        "asgi_transport": {"ASGITransport": LoopbackTransport},
        **modules,
    }
    for name, content in offered.items():
        module = _stand_in(f"{HOST_PACKAGE}.{name}")
        vars(module).update(content)
        setattr(package, name, module)


def _stand_in(name: str, *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "What the SDK asks the server for that it runs in.")
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    sys.modules[name] = module
    return module
