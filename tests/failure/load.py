"""A mixed load of clients that remember what they were promised, for the tests that break servers meanwhile."""

import asyncio
import contextlib
import json
import random
import time
from typing import Any

import httpx2
import msgspec

from tests.failure.cluster import Cluster, is_up, work
from tests.servers import ServerProcess

STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")
LOST = (httpx2.TransportError, httpx2.StreamError)
STREAM_WITHIN_S = 120.0
REJOINED_WITHIN_S = 60.0
REPLAYED_WITHIN_S = 20.0


class Promised(msgspec.Struct):
    """A run that a server accepted, and what may become of it."""

    run: str
    thread: str
    steps: int
    is_temporary: bool
    is_asking: bool = False
    may_stop: bool = False
    may_vanish: bool = False


class Heard(msgspec.Struct):
    """What one client heard of a run, over all its connections."""

    run: str
    is_resumable: bool
    ids: list[str] = []
    events: list[tuple[str, Any]] = []
    is_over: bool = False


class Load:
    """Clients of some servers, each asking one thing after the other until it is told to stop."""

    def __init__(self, cluster: Cluster, fronts: list[ServerProcess], rng: random.Random, threads: int) -> None:
        self.cluster, self.fronts, self.rng = cluster, fronts, rng
        self.thread_count = threads
        self.threads: dict[str, str] = {}
        self.promised: dict[str, Promised] = {}
        self.heard: list[Heard] = []
        self.surprises: list[str] = []
        self.asked: dict[str, int] = {}
        self.is_stopping = False
        self.https: dict[str, httpx2.AsyncClient] = {}

    async def run(self, clients: int, until: asyncio.Event) -> None:
        """Ask until the event is set, then let what is under way end."""
        limits, timeout = httpx2.Limits(max_connections=None), httpx2.Timeout(STREAM_WITHIN_S, connect=2)
        async with contextlib.AsyncExitStack() as stack:
            for front in self.fronts:
                http = httpx2.AsyncClient(base_url=front.url, timeout=timeout, limits=limits)
                self.https[front.url] = await stack.enter_async_context(http)
            await self._run(clients, until)

    async def _run(self, clients: int, until: asyncio.Event) -> None:
        await self._make_threads()
        tasks = [asyncio.create_task(self._client(number)) for number in range(clients)]
        await until.wait()
        self.is_stopping = True
        await asyncio.gather(*tasks)

    async def _make_threads(self) -> None:
        while len(self.threads) < self.thread_count:
            with contextlib.suppress(*LOST):
                made = (await self._http().post("/threads", json={})).json()["thread_id"]
                self.threads[made] = STRATEGIES[len(self.threads) % len(STRATEGIES)]

    def _http(self) -> httpx2.AsyncClient:
        front = self.rng.choice([server for server in self.fronts if is_up(server)] or self.fronts)
        return self.https[front.url]

    async def _client(self, number: int) -> None:
        asks = [self._background, self._wait, self._stream, self._stream, self._cancel, self._join]
        if number % 2:
            asks = [self._background, self._background, self._background, self._cancel]
        while not self.is_stopping:
            ask = self.rng.choice(asks)
            self.asked[ask.__name__] = self.asked.get(ask.__name__, 0) + 1
            try:
                await ask(self._http())
            except LOST:
                await asyncio.sleep(0.05)
            await asyncio.sleep(self.rng.random() * 0.05)

    def _body(self) -> tuple[str, dict[str, Any], Promised]:
        """Return where to ask for a run, what to ask, and what would be promised."""
        thread = self.rng.choice(list(self.threads)) if self.rng.random() < 0.7 else None
        strategy = self.threads[thread] if thread else "enqueue"
        steps, is_asking = self.rng.randint(1, 4), self.rng.random() < 0.1
        body = work(
            steps=steps,
            pause_s=self.rng.choice((0, 0, 0.02, 0.1)),
            ask_at=steps - 1 if is_asking else -1,
            graph=self.rng.choice(("ledger", "ledger", "blocking")),
            multitask_strategy=strategy,
            stream_mode=["values", "custom"],
            on_disconnect="continue",
        )
        if self.rng.random() < 0.15:
            body["after_seconds"] = round(self.rng.random(), 2)
        promised = Promised("", thread or "", steps, thread is None, is_asking)
        promised.may_stop = strategy == "interrupt"
        promised.may_vanish = strategy == "rollback"
        return (f"/threads/{thread}/runs" if thread else "/runs"), body, promised

    def _note(self, answer: httpx2.Response, promised: Promised) -> Promised | None:
        """Remember a run by the address that the answer gives; refusals that are meant to be are none."""
        if answer.status_code == 409 and self.threads.get(promised.thread) == "reject":
            return None
        if answer.status_code != 200:
            self._wonder(answer)
            return None
        _, _, promised.thread, _, promised.run = answer.headers["content-location"].split("/")
        self.promised[promised.run] = promised
        return promised

    def _wonder(self, answer: httpx2.Response) -> None:
        self.surprises.append(f"{answer.request.method} {answer.request.url.path}: {answer.status_code}")

    async def _background(self, http: httpx2.AsyncClient) -> None:
        path, body, promised = self._body()
        # An answer that does not come is no promise; the run may be there all the same.
        self._note(await http.post(path, json=body, timeout=1), promised)

    async def _wait(self, http: httpx2.AsyncClient) -> None:
        path, body, promised = self._body()
        async with http.stream("POST", f"{path}/wait", json=body) as answer:
            self._note(answer, promised)
            await answer.aread()

    async def _join(self, http: httpx2.AsyncClient) -> None:
        if target := self._some_run():
            answer = await http.get(f"/threads/{target.thread}/runs/{target.run}/join")
            if answer.status_code not in {200, 404}:
                self._wonder(answer)

    async def _cancel(self, http: httpx2.AsyncClient) -> None:
        target = self._some_run()
        if target is None or self.rng.random() < 0.5:
            return
        action, wait = self.rng.choice(("interrupt", "rollback")), self.rng.randint(0, 1)
        # Noted before it is asked: the answer may be lost, the deed not.
        target.may_stop = True
        target.may_vanish = target.may_vanish or action == "rollback"
        path = f"/threads/{target.thread}/runs/{target.run}/cancel"
        answer = await http.post(path, params={"action": action, "wait": wait})
        if answer.status_code not in {200, 202, 404, 409}:
            self._wonder(answer)

    def _some_run(self) -> Promised | None:
        recent = list(self.promised.values())[-20:]
        return self.rng.choice(recent) if recent else None

    async def _stream(self, http: httpx2.AsyncClient) -> None:
        """Follow a run from its beginning; a resumable stream that breaks is followed again, through any server."""
        path, body, promised = self._body()
        body["stream_resumable"] = is_resumable = self.rng.random() < 0.6
        heard: Heard | None = None
        try:
            async with http.stream("POST", f"{path}/stream", json=body) as answer:
                noted = self._note(answer, promised)
                if noted is None:
                    await answer.aread()
                    return
                heard = Heard(noted.run, is_resumable, [], [])
                self.heard.append(heard)
                await listen(answer, heard)
        except LOST:
            if heard is None or not is_resumable:
                raise
            await self._rejoin(promised, heard)

    async def _rejoin(self, promised: Promised, heard: Heard) -> None:
        deadline = time.monotonic() + REJOINED_WITHIN_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.3)
            headers = {"Last-Event-ID": heard.ids[-1] if heard.ids else "-"}
            with contextlib.suppress(*LOST):
                path = f"/threads/{promised.thread}/runs/{promised.run}/stream"
                async with self._http().stream("GET", path, headers=headers) as answer:
                    if answer.status_code not in {200, 404}:
                        self._wonder(answer)
                    await listen(answer, heard)
                    return


async def listen(answer: httpx2.Response, heard: Heard) -> None:
    """Take down what a stream tells, to its end. Raises what it broke with."""
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(":")
        value = value.strip()
        if field == "id":
            heard.ids.append(value)
        elif field == "event":
            name = value
        elif field == "data":
            heard.events.append((name, json.loads(value) if value.startswith(("{", "[")) else value))
    heard.is_over = True
