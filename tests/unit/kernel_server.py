"""An application of the kernel's own parts on a free port, as every program of ours puts them together."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from portside.kernel.errors import Unauthorized
from portside.kernel.http.body_settings import WITHIN_S
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.prefixes import StripPrefix
from portside.kernel.http.routes import Api, BaseServices, Context, Route, Routes, bind, get_body_limits
from portside.kernel.http.server import Server, listen

MAX_BODY = 1000
MAX_VALUES = 400


async def guard(ctx: Context, _route: Route) -> str:
    if name := ctx.request.headers.get("x-name"):
        return name
    raise Unauthorized


@dataclass
class Served:
    """A server that runs; `stop` lets it drain and waits for its end."""

    server: Server
    client: httpx2.AsyncClient
    port: int
    stopping: asyncio.Event
    running: asyncio.Task[None]

    async def stop(self) -> None:
        self.stopping.set()
        await self.running

    async def raw(self, request: bytes) -> bytes:
        """Send bytes over a connection of their own and return all that is answered until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()


@asynccontextmanager
async def serve(
    routes: Routes | list[Route],
    *,
    listening: socket.socket | None = None,
    form: ErrorFormat = ErrorFormat.PROBLEMS,
    body_within_s: float = WITHIN_S,
    services: BaseServices | None = None,
) -> AsyncIterator[Served]:
    """Serve routes behind the kernel's own parts, with bodies of at most MAX_BODY bytes."""
    draining = asyncio.Event()
    stopping = asyncio.Event()
    api = Api(bind(routes, services or BaseServices(db=None)), guard)
    bounded = LimitBody(api, MAX_BODY, get_body_limits(api.routes), max_values=MAX_VALUES)
    app = RequestMiddleware(StripPrefix(bounded, ("/api/v1", "/api")), form, draining=draining)
    listening = listening or listen("127.0.0.1", 0)
    port = listening.getsockname()[1]

    server = Server(app, draining=draining, grace_s=1, body_within_s=body_within_s)
    await server.open([listening])
    running = asyncio.create_task(server.serve_until(stopping))
    client = httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"x-name": "ada"}, timeout=300, verify=False
    )

    served = Served(server, client, port, stopping, running)
    try:
        async with client:
            yield served
    finally:
        await served.stop()
