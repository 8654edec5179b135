"""A mixed load of clients that record accepted runs and received events, for tests that break servers meanwhile."""

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
STREAM_WITHIN_S = 300.0
REJOINED_WITHIN_S = 300.0
REPLAYED_WITHIN_S = 300.0


class AcceptedRun(msgspec.Struct):
    """A run that a server accepted, and the outcomes that are allowed."""

    run: str
    thread: str
    steps: int
    is_temporary: bool
    is_asking: bool = False
    may_stop: bool = False
    may_vanish: bool = False


class ReceivedEvents(msgspec.Struct):
    """The events of a run that one client received, over all its connections."""

    run: str
    is_resumable: bool
    ids: list[str] = []
    events: list[tuple[str, Any]] = []
    is_over: bool = False


class Load:
    """Clients of some servers. Each sends one request after the other until an event is set."""

    def __init__(self, cluster: Cluster, fronts: list[ServerProcess], rng: random.Random, threads: int) -> None:
        self.cluster = cluster
        self.fronts = fronts
        self.rng = rng
        self.thread_count = threads
        self.threads: dict[str, str] = {}
        self.accepted: dict[str, AcceptedRun] = {}
        self.received: list[ReceivedEvents] = []

        self.unexpected: list[str] = []
        self.request_counts: dict[str, int] = {}
        self.is_stopping = False
        self.https: dict[str, httpx2.AsyncClient] = {}
        self._unfinished: set[asyncio.Task[None]] = set()

    async def run(self, clients: int, until: asyncio.Event) -> None:
        """Send requests until the event is set, then wait for those that are under way."""
        limits = httpx2.Limits(max_connections=None)
        timeout = httpx2.Timeout(STREAM_WITHIN_S, connect=2)
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
        await asyncio.gather(*self._unfinished)

    async def _make_threads(self) -> None:
        while len(self.threads) < self.thread_count:
            with contextlib.suppress(*LOST):
                made = (await self._http().post("/threads", json={})).json()["thread_id"]
                self.threads[made] = STRATEGIES[len(self.threads) % len(STRATEGIES)]

    def _http(self) -> httpx2.AsyncClient:
        front = self.rng.choice([server for server in self.fronts if is_up(server)] or self.fronts)
        return self.https[front.url]

    async def _client(self, number: int) -> None:
        requests = [self._background, self._wait, self._stream, self._stream, self._cancel, self._join]
        if number % 2:
            requests = [self._background, self._background, self._background, self._cancel]

        while not self.is_stopping:
            request = self.rng.choice(requests)
            self.request_counts[request.__name__] = self.request_counts.get(request.__name__, 0) + 1
            try:
                await request(self._http())
            except LOST:
                await asyncio.sleep(0.05)

            await asyncio.sleep(self.rng.random() * 0.05)

    def _request(self) -> tuple[str, dict[str, Any], AcceptedRun]:
        """Return the path and the body of a request for a run, and the run as it is once a server accepts it."""
        thread = self.rng.choice(list(self.threads)) if self.rng.random() < 0.7 else None
        strategy = self.threads[thread] if thread else "enqueue"
        steps = self.rng.randint(1, 4)
        is_asking = self.rng.random() < 0.1

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

        run = AcceptedRun("", thread or "", steps, thread is None, is_asking)
        run.may_stop = strategy == "interrupt"
        run.may_vanish = strategy == "rollback"

        return (f"/threads/{thread}/runs" if thread else "/runs"), body, run

    def _note(self, response: httpx2.Response, run: AcceptedRun) -> AcceptedRun | None:
        """Record an accepted run by the address in the response. A refusal by the strategy `reject` is expected."""
        if response.status_code == 409 and self.threads.get(run.thread) == "reject":
            return None

        if response.status_code != 200:
            self._note_unexpected(response)
            return None

        _, _, run.thread, _, run.run = response.headers["content-location"].split("/")
        self.accepted[run.run] = run
        return run

    def _note_unexpected(self, response: httpx2.Response) -> None:
        self.unexpected.append(f"{response.request.method} {response.request.url.path}: {response.status_code}")

    async def _background(self, http: httpx2.AsyncClient) -> None:
        path, body, run = self._request()
        posting = asyncio.create_task(self._post(http, path, body, run))
        self._unfinished.add(posting)
        posting.add_done_callback(self._unfinished.discard)

        # The client sends other requests meanwhile, but does not give this one up: a paused server answers it later.
        await asyncio.wait({posting}, timeout=1)

    async def _post(self, http: httpx2.AsyncClient, path: str, body: dict[str, Any], run: AcceptedRun) -> None:
        # Without a response the run is not accepted; it may exist all the same.
        with contextlib.suppress(*LOST):
            self._note(await http.post(path, json=body), run)

    async def _wait(self, http: httpx2.AsyncClient) -> None:
        path, body, run = self._request()
        async with http.stream("POST", f"{path}/wait", json=body) as response:
            self._note(response, run)
            await response.aread()

    async def _join(self, http: httpx2.AsyncClient) -> None:
        if target := self._some_run():
            response = await http.get(f"/threads/{target.thread}/runs/{target.run}/join")
            if response.status_code not in {200, 404}:
                self._note_unexpected(response)

    async def _cancel(self, http: httpx2.AsyncClient) -> None:
        target = self._some_run()
        if target is None or self.rng.random() < 0.5:
            return

        action = self.rng.choice(("interrupt", "rollback"))
        wait = self.rng.randint(0, 1)

        # Recorded before the request: the run may be cancelled although the response is lost.
        target.may_stop = True
        target.may_vanish = target.may_vanish or action == "rollback"
        path = f"/threads/{target.thread}/runs/{target.run}/cancel"

        response = await http.post(path, params={"action": action, "wait": wait})
        if response.status_code not in {200, 202, 404, 409}:
            self._note_unexpected(response)

    def _some_run(self) -> AcceptedRun | None:
        recent = list(self.accepted.values())[-20:]
        return self.rng.choice(recent) if recent else None

    async def _stream(self, http: httpx2.AsyncClient) -> None:
        """Follow a run from its beginning; a resumable stream that breaks is followed again, through any server."""
        path, body, run = self._request()
        body["stream_resumable"] = is_resumable = self.rng.random() < 0.6
        received: ReceivedEvents | None = None
        try:
            async with http.stream("POST", f"{path}/stream", json=body) as response:
                if self._note(response, run) is None:
                    await response.aread()
                    return

                received = ReceivedEvents(run.run, is_resumable, [], [])
                self.received.append(received)
                await receive(response, received)
        except LOST:
            if received is None or not is_resumable:
                raise
            await self._rejoin(run, received)

    async def _rejoin(self, run: AcceptedRun, received: ReceivedEvents) -> None:
        deadline = time.monotonic() + REJOINED_WITHIN_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.3)
            headers = {"Last-Event-ID": received.ids[-1] if received.ids else "-"}
            with contextlib.suppress(*LOST):
                path = f"/threads/{run.thread}/runs/{run.run}/stream"
                async with self._http().stream("GET", path, headers=headers) as response:
                    if response.status_code not in {200, 404}:
                        self._note_unexpected(response)

                    await receive(response, received)
                    return


async def receive(response: httpx2.Response, received: ReceivedEvents) -> None:
    """Record the events of a stream up to its end. Raises the error that broke it."""
    name = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(":")
        value = value.strip()
        if field == "id":
            received.ids.append(value)
        elif field == "event":
            name = value
        elif field == "data":
            received.events.append((name, json.loads(value) if value.startswith(("{", "[")) else value))

    received.is_over = True
