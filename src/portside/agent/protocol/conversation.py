"""A client on a connection of its own: its commands one after the other, and its events between the answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from portside.agent.access.watching import UNWATCHED, Watch
from portside.agent.protocol.commands import Commands
from portside.agent.protocol.envelopes import refuse
from portside.agent.protocol.errors import CommandFailed
from portside.agent.protocol.session import Reader
from portside.kernel.errors import BadRequest

Send = Callable[[bytes], Awaitable[None]]


class Conversation:
    """One connection. It ends when the client leaves, or when a subscription ends that the client did not end."""

    def __init__(self, frames: AsyncIterator[str], send: Send, watch: Watch = UNWATCHED) -> None:
        self._frames = frames
        self._watch = watch
        self._send = send
        self._new: list[Reader] = []
        self._tasks: set[asyncio.Task[bool]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, reader: Reader) -> None:
        """Take a subscription, whose events begin after the answer to the command that made it."""
        self._new.append(reader)

    async def hold(self, commands: Commands) -> None:
        """Speak with the client until it leaves. Raises what acting on a command and sending raise."""
        self._start(self._listen(commands))
        try:
            await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, commands: Commands) -> bool:
        async for frame in self._frames:
            await self._send(await _answer(commands, frame))
            for reader in self._new:
                self._start(self._tell(reader))
            self._new.clear()
        return True

    async def _tell(self, reader: Reader) -> bool:
        is_seen = False
        while waiting := await reader.take():
            is_seen = is_seen or await self._watch.is_seen()
            if not is_seen:
                return True
            for frame in waiting:
                await self._send(frame)
        return not reader.is_left

    def _start(self, work: Coroutine[Any, Any, bool]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._over.done():
            return
        if (failure := task.exception()) is not None:
            self._over.set_exception(failure)
        elif task.result():
            self._over.set_result(None)


async def _answer(commands: Commands, frame: str) -> bytes:
    try:
        answer, _ = await commands.act(frame)
    except BadRequest as exc:
        return refuse(None, CommandFailed("invalid_argument", str(exc)))
    return answer
