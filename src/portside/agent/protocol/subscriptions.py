"""What one client has subscribed to. Over a connection of its own its events follow; over plain HTTP they do not."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from portside.agent.protocol.errors import CommandFailed
from portside.agent.protocol.filters import Filter, read_filter
from portside.agent.protocol.session import Reader, Session
from portside.agent.streams.hub import Hub
from portside.kernel.ids import uuid7

MOST = 100
OnBegin = Callable[[Reader], None]


class Subscriptions:
    """The subscriptions of one client to one thread; without `on_begin` nobody would read what follows."""

    def __init__(self, hub: Hub, thread_id: UUID, on_begin: OnBegin | None = None) -> None:
        self._hub = hub
        self._thread_id = thread_id
        self._on_begin = on_begin
        self._readers: dict[str, Reader] = {}

    async def begin(self, params: dict[str, Any]) -> dict[str, Any]:
        """Subscribe. Raises BadRequest for what cannot be subscribed to, and CommandFailed when there are too many."""
        wanted: Filter = read_filter(params)
        subscription_id = str(uuid7())
        if self._on_begin is None:
            return {"subscription_id": subscription_id, "replayed_events": 0}
        if len(self._readers) >= MOST:
            raise CommandFailed("not_supported", f"A connection may have {MOST} subscriptions.")
        joined = await Session.join(self._hub, self._thread_id)
        reader, replayed = joined.read(wanted, is_sse=False)
        self._readers[subscription_id] = reader
        self._on_begin(reader)
        return {"subscription_id": subscription_id, "replayed_events": replayed}

    def end(self, subscription_id: str) -> bool:
        """End a subscription; False when there is none with this id."""
        reader = self._readers.pop(subscription_id, None)
        if reader is not None:
            reader.leave()
        return reader is not None
