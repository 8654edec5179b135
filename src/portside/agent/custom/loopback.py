"""`get_client()` of the SDK without a URL: a client of the server that the code runs in.

For such a client the SDK imports modules of another server's package. `install_sdk_modules` registers substitutes
under their names, with only what the SDK uses. They are installed before the project's code is imported, so that it may
create clients at import time; the clients work once the server runs, from any event loop.
"""

import os
import sys
from collections.abc import AsyncIterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import httpx

from portside.executor.load import current_user
from portside.kernel.http.in_process import (
    InProcessRequest,
    InProcessResponse,
    InProcessServer,
    ResponseCutOff,
    ServerNotRunning,
)

HOST_PACKAGE = "langgraph_api"
_DEFERS = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"
# The SDK creates clients without arguments, so there is one entry point for the whole process.
LOOPBACK = InProcessServer()


def install_sdk_modules(**modules: dict[str, Any]) -> None:
    """Let the SDK find this server; `modules` are further modules that it imports, with their content."""
    os.environ.pop(_DEFERS, None)
    package = _substitute_module(HOST_PACKAGE, is_package=True)
    package.__path__ = []
    contents: dict[str, dict[str, Any]] = {
        "server": {"app": LOOPBACK},
        "asgi_transport": {"ASGITransport": LoopbackTransport},
        **modules,
    }
    for name, content in contents.items():
        module = _substitute_module(f"{HOST_PACKAGE}.{name}")
        vars(module).update(content)
        setattr(package, name, module)


def _substitute_module(name: str, *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "Imported by the SDK from the server that it runs in.")
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    sys.modules[name] = module
    return module


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Carries requests of an HTTP client to the server of this process."""

    def __init__(self, app: Any = None, **options: Any) -> None:
        """Accept the SDK's arguments; there is only one server to call, and one root path."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make a call. Raises ConnectError if no server runs in this process, and ReadError."""
        url = request.url
        raw_path, _, query = url.raw_path.partition(b"?")
        call = InProcessRequest(
            request.method, url.path, raw_path, query, request.headers.raw, await request.aread(), current_user()
        )
        try:
            head, exchange = await LOOPBACK.send(call)
        except ServerNotRunning as exc:
            raise httpx.ConnectError(str(exc), request=request) from exc
        except ResponseCutOff as exc:
            raise httpx.ReadError(str(exc), request=request) from exc
        return httpx.Response(head.status, headers=head.headers, stream=_ResponseStream(exchange))


class _ResponseStream(httpx.AsyncByteStream):
    """The body of a response, streamed."""

    def __init__(self, exchange: InProcessResponse) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._exchange.read():
                yield data
        except ConnectionError as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def aclose(self) -> None:
        await self._exchange.close()
