"""The events that one client of a thread subscribes to, over a connection of its own."""

import asyncio
from typing import Any
from uuid import UUID

from portside.agent.protocol.channel_filters import ChannelFilter, read_filter
from portside.agent.protocol.sequence import EventSequence, JoinedSequence, SequenceReader, read_seq
from portside.agent.protocol.wire import CommandError
from portside.agent.streams.hub import Hub
from portside.kernel.ids import uuid7

SUBSCRIPTIONS_LIMIT = 100


class Subscriptions:
    """The subscriptions of one client to one thread, over a connection of its own.

    One reader serves them all. It gives each event once and in order, whichever of them want it: clients find an
    event's subscriptions by their filters. If each had a reader of its own, the end of a run could overtake an earlier
    event for another subscription, and clients take no event of a run after its end.
    """

    def __init__(self, hub: Hub, thread_id: UUID) -> None:
        self.is_changed = False
        """Whether there are other subscriptions than those that the reader serves."""
        self.reader: SequenceReader | None = None
        """The reader of all subscriptions that have begun; None if there are none."""
        self.has_begun = asyncio.Event()
        """Set by `begin`."""

        self._hub = hub
        self._thread_id = thread_id
        self._joined: JoinedSequence | None = None

        # Those that the reader serves, and those that wait for the next `begin`.
        self._begun: dict[str, ChannelFilter] = {}
        self._new: dict[str, ChannelFilter] = {}
        self._last_frame = b""

    async def subscribe(self, params: dict[str, Any]) -> dict[str, Any]:
        """Add a subscription, whose events come after the next `begin`.

        Raises BadRequest for invalid parameters, and CommandError for too many subscriptions.
        """
        channel_filter = read_filter(params)
        if len(self._begun) + len(self._new) >= SUBSCRIPTIONS_LIMIT:
            raise CommandError("not_supported", f"A connection may have {SUBSCRIPTIONS_LIMIT} subscriptions.")

        self._joined = await EventSequence.join(self._hub, self._thread_id)
        positioned_filter, event_count = self._joined.sequence.place(channel_filter)

        subscription_id = str(uuid7())
        self._new[subscription_id] = positioned_filter
        self.is_changed = True

        return {"subscription_id": subscription_id, "replayed_events": event_count}

    def unsubscribe(self, subscription_id: str) -> bool:
        """End a subscription; False if there is none with this id."""
        subscription = self._new.pop(subscription_id, None) or self._begun.pop(subscription_id, None)
        self.is_changed = self.is_changed or subscription is not None
        return subscription is not None

    def begin(self) -> None:
        """Have one reader serve all subscriptions from now on; those that were served continue where they are."""
        last_seq = read_seq(self._last_frame)
        continued = {name: channel_filter.after(last_seq) for name, channel_filter in self._begun.items()}
        self._begun = continued | self._new
        self._new = {}
        self._last_frame = b""
        self.is_changed = False

        if self.reader is not None:
            self.reader.replace()

        assert self._joined is not None  # noqa: S101 - nothing changes before the first subscription
        self.reader = self._joined.read_frames([*self._begun.values()]) if self._begun else None
        self.has_begun.set()

    def note_sent(self, frame: bytes) -> None:
        """Note the last frame of the reader that was sent."""
        self._last_frame = frame
