"""A client's connection for the events of a thread, without a server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from portside.agent.access.service import DeferredThreadCheck
from portside.agent.protocol.connection import ClientConnection


class Reader:
    """A reader that returns these frames; without any it was replaced by the next one."""

    def __init__(self, subscriptions: "TwoReaders", frames: list[bytes]) -> None:
        self.is_replaced = not frames
        self._subscriptions = subscriptions
        self._frames = [frames, []]

    async def take(self) -> list[bytes]:
        if self.is_replaced:
            self._subscriptions.reader = self._subscriptions.second
        return self._frames.pop(0)


class TwoReaders:
    """Subscriptions that changed before the first event: their first reader returns nothing."""

    is_changed = False

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.second = Reader(self, [b"an event"])
        self.reader = Reader(self, [])

    def note_sent(self, _frame: bytes) -> None:
        """Do nothing: no third reader begins after this frame."""


@pytest.mark.parametrize("passes", [True, False, None])
async def test_no_event_is_sent_before_the_thread_has_been_checked(passes: bool | None) -> None:  # noqa: FBT001
    sent: list[bytes] = []

    async def listen() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    async def send(frame: bytes) -> None:
        sent.append(frame)

    async def check() -> bool | None:
        return passes

    subscriptions: Any = TwoReaders()
    commands: Any = None
    connection = ClientConnection(listen(), send, subscriptions, DeferredThreadCheck(check))
    await connection.serve(commands)
    assert sent == ([b"an event"] if passes else [])
