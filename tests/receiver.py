"""A web server that stores what it gets: the receiver of webhooks."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from portside.kernel.http.server import Server, listen


class Receiver:
    """A web server that stores the requests it gets, and answers with `status`."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""

        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break

        self.got.append(({name.decode(): value.decode() for name, value in scope["headers"]}, body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def messages(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]


@contextlib.asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    stop = asyncio.Event()
    listening = listen("127.0.0.1", 0)
    server = Server(app, draining=asyncio.Event(), grace_s=1)
    await server.open([listening])

    task = asyncio.create_task(server.serve_until(stop))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stop.set()
        await task
