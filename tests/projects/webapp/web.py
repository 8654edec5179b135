"""A web application beside the graphs: routes, middleware, a lifespan, a WebSocket, and files of a front end."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import StreamingResponse
from langgraph_sdk import get_client
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

try:
    from langgraph_sdk import cache
except ImportError:  # The oldest SDK that the server takes has none.
    cache = None


def note(text: str) -> None:
    if log := os.environ.get("LIFE_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{text}\n")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    if os.environ.get("LIFE_FAILS"):
        raise ValueError("no connection to the warehouse")

    note("started")
    app.state.warehouse = "open"
    yield {"key_filter": "full"}
    note("stopped")


app = FastAPI(lifespan=lifespan, debug=True)


class Run(BaseModel):
    """Another shape than ours of this name."""

    laps: int


class Header:
    """Marks every answer, and turns away who says so."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        if (b"x-turned", b"away") in scope["headers"]:
            await PlainTextResponse("turned away", 418)(scope, receive, send)
            return

        async def mark(message: Any) -> None:
            if message["type"] == "http.response.start":
                user = getattr(scope.get("user"), "identity", "") if "user" in scope else "nobody"
                message["headers"] += [(b"x-web", b"seen"), (b"x-user-in-middleware", user.encode())]

            await send(message)

        await self.app(scope, receive, mark)


app.add_middleware(Header)


@app.post("/laps")
async def run_laps(run: Run) -> Run:
    return Run(laps=run.laps + 1)


@app.get("/warehouse")
async def warehouse(request: Request) -> dict[str, str]:
    return {"warehouse": request.app.state.warehouse, "key_filter": request.state.key_filter}


@app.get("/me")
async def me(request: Request) -> dict[str, Any]:
    return {"identity": request.user.identity if "user" in request.scope else None}


@app.get("/info")
async def own_info() -> dict[str, str]:
    return {"mine": "instead of yours"}


@app.get("/boom")
async def boom() -> None:
    raise RuntimeError("the password is hunter2")


@app.get("/teapot")
async def teapot() -> None:
    raise HTTPException(418, "short and stout", headers={"X-Tea": "yes"})


@app.get("/asked")
async def asked() -> dict[str, Any]:
    return await get_client().runs.wait(None, "child", input={"text": "from a route"})


@app.get("/streamed")
async def streamed() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        async for part in get_client().runs.stream(None, "child", input={"text": "s"}, stream_mode="values"):
            yield f"{part.event}\n"

    return StreamingResponse(parts(), media_type="text/plain")


@app.get("/cached/{key}")
async def cached(key: str) -> dict[str, Any]:
    async def load() -> dict[str, str]:
        return {"loaded": key}

    known = await cache.cache_get(f"plain {key}")
    await cache.cache_set(f"plain {key}", [key])
    result = await cache.swr(key, load, fresh_for=timedelta(hours=1))

    return {"known": known, "value": result.value, "status": result.status}


@app.websocket("/talk")
async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(f"you said {await socket.receive_text()}")
    await socket.close()


@app.get("/{path:path}")
async def page(path: str) -> PlainTextResponse:
    """Serve the front end whatever its path."""
    return PlainTextResponse(f"page {path}")
