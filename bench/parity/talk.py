"""How a scene speaks to a server: every request is a named step whose normalised answer is kept.

Scenes are functions in `scripts/`, one module for each resource. They get a `Talk` and send requests; what the server
answered decides only what later requests need (ids), never whether the scene is right: that is the comparison's part.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
from bench.parity.normalise import Names, normalise

Scene = Callable[["Talk"], Awaitable[None]]
HEADERS = ("content-type", "location", "content-location", "x-pagination-total", "x-pagination-next", "allow")
STREAM_HEADERS = (*HEADERS, "cache-control", "x-accel-buffering")
TIMEOUT_S = 120.0
UNEXPECTED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


def alone(scene: Scene) -> Scene:
    """Mark a scene that counts or cancels what other scenes have made: it gets the server for itself."""
    scene.alone = True
    return scene


class SceneStopped(Exception):
    """An answer lacks what the next step of its scene needs."""


class Answer:
    """What a server said, decoded."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers

        self.raw = response.content
        try:
            self.body = json.loads(self.raw) if self.raw else None
        except ValueError:
            self.body = {"<text>": self.raw.decode("utf-8", "replace")}

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.body[key]
        except (KeyError, IndexError, TypeError):
            raise SceneStopped(f"no {key!r} in {self.status} {self.raw[:200]!r}") from None

    def __len__(self) -> int:
        return len(self.body)


class Event:
    """One server-sent event."""

    def __init__(self, name: str, data: Any, id_: str | None) -> None:
        self.name = name
        self.data = data
        self.id = id_


class Talk:
    """One scene's conversation with one server."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.names = Names()
        self.steps: dict[str, dict[str, Any]] = {}
        self.threads = 0

    async def get(self, step: str, path: str, **options: Any) -> Answer:
        return await self.send(step, "GET", path, **options)

    async def post(self, step: str, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.send(step, "POST", path, body, **options)

    async def patch(self, step: str, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.send(step, "PATCH", path, body, **options)

    async def put(self, step: str, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.send(step, "PUT", path, body, **options)

    async def delete(self, step: str, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.send(step, "DELETE", path, body, **options)

    async def send(self, step: str, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Send a request and keep its answer. Options: `content` raw bytes, `headers`, `look` more headers to compare,
        `keep` what of the body is compared (a function).
        """
        answer = await self._request(method, path, body, options)
        self._keep(step, answer, options)
        return answer

    async def quietly(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request that no comparison needs."""
        return await self._request(method, path, body, {})

    async def _request(self, method: str, path: str, body: Any, options: dict[str, Any]) -> Answer:
        content = options.get("content", None if body is None else json.dumps(body).encode())
        headers = {**({"content-type": "application/json"} if content else {}), **options.get("headers", {})}
        for is_last in (False, True):
            try:
                return Answer(await self.client.request(method, path, content=content, headers=headers))
            except httpx2.HTTPError as error:
                # A server may close a kept-alive connection after an answer of 500.
                if is_last or not isinstance(error, (httpx2.ReadError, httpx2.RemoteProtocolError)):
                    raise SceneStopped(f"{method} {path}: {error!r}") from None

        raise AssertionError

    def _keep(self, step: str, answer: Answer, options: dict[str, Any]) -> None:
        self.names.begin(step)
        body = _keep(options, answer.body)
        if isinstance(body, dict) and (answer.status >= 400 or body.get("type") == "error"):
            body = {**body, **{key: "<text>" for key in ("detail", "message") if isinstance(body.get(key), str)}}

        kept = {"status": answer.status, "body": normalise(body, self.names)}
        self._add(step, {**kept, "headers": self._headers(answer.headers, (*HEADERS, *options.get("look", ())))})

    def _headers(self, headers: httpx2.Headers, names: tuple[str, ...]) -> dict[str, str]:
        return {name: self.names.replace(headers[name], "header") for name in names if name in headers}

    def _add(self, step: str, kept: dict[str, Any]) -> None:
        if step in self.steps:
            raise RuntimeError(f"two steps are called {step}")
        self.steps[step] = kept

    async def stream(self, step: str, path: str, body: Any = None, **options: Any) -> list[Event]:
        """Read server-sent events until the stream closes, or `enough(events)` says so, and keep them.

        `opened` is called when the server has begun to answer.
        """
        async with self.streaming(step, path, body, **options) as events:
            return events

    @contextlib.asynccontextmanager
    async def streaming(self, step: str, path: str, body: Any = None, **options: Any) -> AsyncIterator[list[Event]]:
        """Like `stream`, but with the connection still open inside the block when `enough` said so."""
        method = options.get("method", "GET" if body is None else "POST")
        content = None if body is None else json.dumps(body).encode()
        headers = {**({"content-type": "application/json"} if content else {}), **options.get("headers", {})}

        enough = options.get("enough", lambda _events: False)
        events = []
        lines = []
        try:
            async with self.client.stream(method, path, content=content, headers=headers) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    await response.aread()
                    self._keep(step, Answer(response), options)
                    yield events
                    return

                options.get("opened", lambda: None)()
                async with asyncio.timeout(TIMEOUT_S):
                    async for line in _lines(response):
                        lines.append(line)

                        if line in ("", "\r") and (event := _parse(lines)):
                            events.append(event)
                            if enough(events):
                                break

                        lines = [] if line in ("", "\r") else lines

                self._keep_events(step, response, events, options)
                yield events
        except (httpx2.HTTPError, TimeoutError) as error:
            self._keep_events(step, response, events, options)
            raise SceneStopped(f"{method} {path}: {error!r} after {len(events)} events") from None

    def _keep_events(self, step: str, response: httpx2.Response, events: list[Event], options: dict[str, Any]) -> None:
        if step in self.steps:
            return

        self.names.begin(step)
        kept = [
            {"event": self.names.replace(e.name, "event"), "data": normalise(e.data, self.names), "has_id": bool(e.id)}
            for e in _keep(options, events)
        ]

        headers = self._headers(response.headers, (*STREAM_HEADERS, *options.get("look", ())))
        self._add(step, {"status": response.status_code, "headers": headers, "events": kept})

    async def until(self, path: str, done: Callable[[Any], bool]) -> Any:
        """Ask a path until its answer is as wanted; nothing is kept."""
        deadline = time.monotonic() + TIMEOUT_S
        while not done(body := (await self.quietly("GET", path)).body):
            if time.monotonic() > deadline:
                raise SceneStopped(f"{path} stayed {str(body)[:300]}")
            await asyncio.sleep(0.05)

        return body

    async def thread(self, **body: Any) -> str:
        """Make a thread that is not compared; its id."""
        made = (await self.quietly("POST", "/threads", body))["thread_id"]
        self.threads += 1
        self.names.begin(f"made {self.threads}")
        self.names.of(made, "thread_id")
        return made

    async def wait_for_end(self, thread_id: str, run_id: str) -> dict[str, Any]:
        """Wait until a run is over."""
        path = f"/threads/{thread_id}/runs/{run_id}"
        return await self.until(path, lambda run: run.get("status") not in {"pending", "running"})


def _keep(options: dict[str, Any], whole: Any) -> Any:
    """The part that the scene wants compared; the whole where the answer has not the shape that the scene expects."""
    try:
        return options["keep"](whole) if "keep" in options else whole
    except UNEXPECTED:
        return whole


@contextlib.contextmanager
def gate() -> Iterator[Path]:
    """The file for which a run of `slow` waits after its first tick, if `hold` is its config."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "gate")


def hold(gate: Path) -> dict[str, Any]:
    """The config of a run that waits for a file."""
    return {"configurable": {"gate": str(gate)}}


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Lines of a stream, with the carriage return if they have one."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode()


def _parse(lines: list[str]) -> Event | None:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.rstrip("\r").partition(":")
        if colon and name:
            fields[name] = fields.get(name, "") + value.removeprefix(" ")

    if "event" not in fields and "data" not in fields:
        return None

    data = fields.get("data", "")
    with contextlib.suppress(ValueError):
        data = json.loads(data)

    return Event(fields.get("event", "message"), data, fields.get("id"))
