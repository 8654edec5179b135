"""The connection for notifications between processes, when it dies without a sign."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from portside.agent.streams import bus
from portside.agent.streams.bus import PostgresBus
from portside.agent.streams.chunks import Chunk
from portside.agent.streams.notifications import NOBODY, Notification
from tests.conftest import eventually
from tests.failure.test_engine_partition import through
from tests.failure.wires import Wire


class CutBus:
    """A bus whose connections may die, and the notifications that it received."""

    def __init__(self, url: str, wire: Wire) -> None:
        self.bus = PostgresBus(url)
        self.wire = wire
        self.received = list[Notification]()

    def receive(self, notification: Notification, _chunks: list[Chunk]) -> None:
        self.received.append(notification)

    async def connections(self, count: int) -> None:
        """Wait until it has connected this often."""

        async def has_connected() -> bool:
            return [each.sender for each in self.received].count(NOBODY) >= count

        await eventually(has_connected)


@pytest.fixture
async def cut(agent_databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CutBus]:
    monkeypatch.setattr(bus, "AGAIN_AFTER_S", 0.1)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        target, url = through(await agent_databases(), Path(folder))
        if target.startswith("/.s"):
            pytest.skip("the database is not behind a socket file")

        wire = Wire(partial(asyncio.open_unix_connection, target))
        async with wire.listening(Path(folder) / ".s.PGSQL.5432"):
            made = CutBus(url, wire)
            await made.bus.open(made.receive)
            await made.connections(1)
            yield made
            await made.bus.close()
            wire.break_off()


async def test_bus_connects_again_after_a_notification_that_could_not_be_sent(cut: CutBus, monkeypatch):
    cut.wire.lose()
    monkeypatch.setattr(bus, "WITHIN_S", 0.5)
    with pytest.raises(TimeoutError):
        await cut.bus.send(Notification(sender=uuid4(), claims=True), [])

    monkeypatch.undo()
    await cut.connections(2)
    news = Notification(sender=uuid4(), claims=True)
    await cut.bus.send(news, [])

    async def has_arrived() -> bool:
        return news in cut.received

    await eventually(has_arrived)


async def test_bus_that_only_listens_notices_that_its_connection_died(cut: CutBus, monkeypatch):
    monkeypatch.setattr(bus, "WITHIN_S", 0.5)
    monkeypatch.setattr(bus, "CHECK_EVERY_S", 0.1)

    # The check that waits now began with the former period.
    cut.wire.break_off()
    await cut.connections(2)
    cut.wire.lose()
    await cut.connections(3)
