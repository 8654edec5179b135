"""One client's connection: its commands, and the events that it subscribed to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from portside.agent.access.service import NO_CHECK, DeferredThreadCheck
from portside.agent.protocol.commands import Commands
from portside.agent.protocol.sequence import SequenceReader
from portside.agent.protocol.subscriptions import Subscriptions
from portside.agent.protocol.wire import CommandError, encode_error
from portside.kernel.errors import BadRequest
from portside.kernel.tasks import cancel_and_wait

FRAMES_BETWEEN_YIELDS = 16
# Frames that arrive within this time were sent at once.
TOGETHER_WITHIN_S = 0.01

Send = Callable[[bytes], Awaitable[None]]


class ClientConnection:
    """One client's connection: its commands one after the other, and its events between the responses.

    It ends when the client leaves, or when the events end although the client wants more.
    """

    def __init__(
        self,
        frames: AsyncIterator[str],
        send: Send,
        subscriptions: Subscriptions,
        check: DeferredThreadCheck = NO_CHECK,
    ) -> None:
        self._frames = frames
        self._send = send
        self._subscriptions = subscriptions
        self._check = check
        self._incoming: asyncio.Future[str | None] | None = None

    async def serve(self, commands: Commands) -> None:
        """Serve the client until it leaves. Raises the errors of the database, and those of sending."""
        tasks = [
            asyncio.create_task(self._serve_commands(commands)),
            asyncio.create_task(self._send_events()),
        ]
        try:
            ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended_tasks:
                task.result()
        finally:
            running: list[asyncio.Future[Any]] = [*tasks]
            if self._incoming is not None:
                running.append(self._incoming)

            await cancel_and_wait(*running)

    async def _serve_commands(self, commands: Commands) -> None:
        incoming = self._receive()
        while (frame := await incoming) is not None:
            incoming = self._receive()
            try:
                response, _ = await commands.act(frame)
            except BadRequest as exc:
                response = encode_error(None, CommandError("invalid_argument", str(exc)))

            await self._send(response)

            if self._subscriptions.is_changed and not await _comes_soon(incoming):
                self._subscriptions.begin()

    def _receive(self) -> "asyncio.Future[str | None]":
        self._incoming = asyncio.ensure_future(anext(self._frames, None))
        return self._incoming

    async def _send_events(self) -> None:
        is_allowed = False
        while True:
            reader = self._subscriptions.reader
            if reader is None:
                self._subscriptions.has_begun.clear()
                await self._subscriptions.has_begun.wait()
                continue

            frames = await reader.take()
            if not frames and not reader.is_replaced:
                return

            if not frames:
                continue

            # Checked before the first event: the thread may be created after the client began to follow it.
            is_allowed = is_allowed or await self._check.passes()
            if not is_allowed:
                return

            await self._send_frames(reader, frames)

    async def _send_frames(self, reader: SequenceReader, frames: list[bytes]) -> None:
        for number, frame in enumerate(frames, 1):
            if reader.is_replaced:
                # The next reader begins with the first frame that was not sent.
                return

            self._subscriptions.note_sent(frame)
            await self._send(frame)

            if number % FRAMES_BETWEEN_YIELDS == 0:
                # Sending to a fast reader never waits: let other work run.
                await asyncio.sleep(0)


async def _comes_soon(incoming: "asyncio.Future[str | None]") -> bool:
    """Wait a moment for the client's next frame.

    Clients send several subscriptions at once. All of them are in place before the first one's events are sent, or the
    end of a run that is over could be sent before an earlier event that only another one wants.
    """
    # In two parts: the loop may have been busy during the first one, and not have read what had arrived.
    for _ in range(2):
        await asyncio.wait([incoming], timeout=TOGETHER_WITHIN_S / 2)

    return incoming.done()
