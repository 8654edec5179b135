"""Reading streams byte by byte, for tests that look at what goes over the wire."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest

WITHIN_S = 300.0


class Sent(NamedTuple):
    """One event as it was sent."""

    name: str
    data: Any
    event_id: str | None
    raw: bytes


class Stream:
    """A stream of server-sent events that a test reads as far as it wants."""

    def __init__(self, response: httpx2.Response) -> None:
        self.headers = response.headers
        self.status = response.status_code
        self.comments: list[bytes] = []
        self._chunks = response.aiter_raw()
        self._rest = b""

    async def __aiter__(self) -> AsyncIterator[Sent]:
        while True:
            event = await self.next()
            if event is None:
                return

            yield event

    async def next(self) -> Sent | None:
        """Return the next event; None when the stream has ended. Heartbeats alone do not count as an answer."""
        try:
            async with asyncio.timeout(WITHIN_S):
                return await self._next()
        except TimeoutError:
            pytest.fail(f"no event within {WITHIN_S:.0f} s, but {len(self.comments)} comments and {self._rest!r}")

    async def _next(self) -> Sent | None:
        while True:
            while b"\r\n\r\n" not in self._rest:
                try:
                    self._rest += await anext(self._chunks)
                except StopAsyncIteration:
                    assert self._rest == b"", "the stream ended inside an event"
                    return None

            raw, _, self._rest = self._rest.partition(b"\r\n\r\n")
            if raw.startswith(b":"):
                self.comments.append(raw)
                continue

            return parse_event(raw + b"\r\n\r\n")

    async def until(self, is_last: Callable[[Sent], bool]) -> list[Sent]:
        """Return the events up to the first that the test waits for."""
        found: list[Sent] = []
        while not found or not is_last(found[-1]):
            event = await self.next()
            assert event is not None, f"ended after {[item.name for item in found]}"
            found.append(event)

        return found

    async def all(self) -> list[Sent]:
        """Return every event up to the end of the stream."""
        return [event async for event in self]


def parse_event(raw: bytes) -> Sent:
    """Take one event apart; its fields are in the order event, data, id."""
    lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [line.split(b": ", 1) for line in lines]
    assert [name for name, _ in fields] in ([b"event", b"data"], [b"event", b"data", b"id"]), raw
    values = [value.decode() for _, value in fields]
    return Sent(values[0], json.loads(values[1]), values[2] if len(values) == 3 else None, raw)


@asynccontextmanager
async def open_stream(http: httpx2.AsyncClient, method: str, path: str, **options: Any) -> AsyncIterator[Stream]:
    """Open a stream."""
    async with http.stream(method, path, **options) as response:
        yield Stream(response)


def new_id() -> str:
    return str(uuid4())
