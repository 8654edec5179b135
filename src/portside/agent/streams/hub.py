"""Finds the feeds of this process: of a run that is executed, or was until a moment ago, and of a thread.

What runs in this process tell reaches its feeds without a hop. What other processes tell comes in through the relay,
which is also told what they may want of ours; without one the process is alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice
from uuid import UUID
from weakref import WeakValueDictionary

from portside.agent.streams.chunks import Telling
from portside.agent.streams.events import EventClock, Place, ThreadMode
from portside.agent.streams.feed import Feed, Subscription
from portside.agent.streams.reach import Alone, Relay, Start
from portside.agent.streams.retention import Retention
from portside.agent.streams.threads import NEWS_S, RunEnd, ThreadFeed, ThreadSubscription
from portside.kernel.codec import dump_api

BRIEF_LIMIT_BYTES = 64 * 1024 * 1024
LAST_WORDS_AT_MOST = 16
# A process that has just met a busy database may be that far from its time: rather that than losing what a thread told.
UNSURE_MS = 1000


class Hub:
    """The feeds of this process. A feed lives as long as somebody follows, fills or keeps it."""

    def __init__(self, *, keep_s: float) -> None:
        self.clock = EventClock()
        self.relay: Relay = Alone()
        self._feeds: WeakValueDictionary[UUID, Feed] = WeakValueDictionary()
        self._threads: WeakValueDictionary[UUID, ThreadFeed] = WeakValueDictionary()
        self._running: dict[UUID, Feed] = {}
        self._kept: set[Feed] = set()
        self._keep_s = keep_s
        self._last_ids: dict[UUID, list[str]] = {}
        # Threads whose last run ended so lately that the wish to follow it may still be on its way.
        self._ended: deque[tuple[float, ThreadFeed]] = deque()
        self._retention = Retention(keep_s)
        self._brief = Retention(NEWS_S, BRIEF_LIMIT_BYTES)

    @asynccontextmanager
    async def joined(self, make_relay: Callable[["Hub"], Relay]) -> AsyncIterator[None]:
        """Be joined with the other processes of the database. Raises what the database failed with."""
        self.relay = make_relay(self)
        await self.relay.start()
        try:
            yield
        finally:
            await self.relay.close()

    def open(self, run_id: UUID, thread_id: UUID, *, is_resumable: bool) -> Feed:
        """Return the run's feed, made anew if there is none that goes on."""
        feed = self._feeds.get(run_id)
        if feed is None or feed.ended.is_set():
            thread = self.thread(thread_id)
            feed = self._feeds[run_id] = Feed(run_id, thread, self.clock, is_resumable=is_resumable)
        return feed

    async def prepare(self, start: Start) -> Feed:
        """Open the feed of a run that is about to begin here, with what others told before; mostly that is nothing."""
        is_expected = start.run_id in self._feeds
        feed = self.open(start.run_id, start.thread_id, is_resumable=start.is_resumable)
        if start.was_begun or start.attempt > 1 or self.relay.mirrors(start.thread_id):
            await self.relay.catch_up(start, feed)
        elif start.is_foreign or (not is_expected and self.relay.has_others):
            # Another process admitted it, and may have clients that follow it.
            self.relay.look()
        return feed

    def begin(self, start: Start) -> Feed:
        """Open the feed of a run that is executed here from now on, with the events that come first."""
        feed = self.open(start.run_id, start.thread_id, is_resumable=start.is_resumable)
        feed.is_stateless, feed.is_resumable, feed.is_local = start.is_stateless, start.is_resumable, True
        is_logged = start.is_resumable or self.relay.is_followed(start.thread_id)
        feed.thread.open(start.run_id, attempt=start.attempt, is_logged=is_logged)
        self._running[start.run_id] = feed
        feed.publish(
            [
                ("metadata", dump_api({"run_id": str(start.run_id), "attempt": start.attempt})),
                ("@lifecycle", dump_api({"event": "running", "graph_name": start.graph_id})),
            ]
        )
        return feed

    def find(self, run_id: UUID) -> Feed | None:
        """Return the run's feed, or None when nobody in this process has to do with it."""
        return self._feeds.get(run_id)

    def known(self, feed: Feed) -> Awaitable[None] | None:
        """Wait until what a run told so far is written down; None where nobody else wants it. Asked in any thread."""
        return self.relay.written() if feed.thread.is_logged(feed.run_id) else None

    async def conclude(self, run_id: UUID) -> None:
        """Let what a run told be known to others before its end is: its thread's next run may begin there at once."""
        feed = self._running.get(run_id)
        if feed is not None and feed.thread.is_logged(run_id):
            self._last_ids[run_id] = [self.clock.next() for _ in range(LAST_WORDS_AT_MOST)]
            await self.relay.written()

    def close(self, run_id: UUID, end: RunEnd | None) -> None:
        """End a feed; a resumable one is kept for clients that come back. Without an end the run goes on elsewhere."""
        feed = self._running.pop(run_id, None) or self._feeds.get(run_id)
        if feed is None:
            return
        if end is not None or not feed.followers() or not self.relay.adopt(feed):
            feed.end()
        keeper = self._retention if not feed.is_stateless else self._brief if self.relay.has_others else None
        feed.thread.finish(run_id, end, keeper=keeper, ids=self._last_ids.pop(run_id, ()))
        if not feed.is_stateless or self.relay.has_others:
            self._note_ended(feed.thread)
        self.relay.say_ended(run_id)
        if feed.is_resumable and end is not None:
            self._kept.add(feed)
            asyncio.get_running_loop().call_later(self._keep_s, self._kept.discard, feed)

    def end_unbegun(self, feed: Feed, reason: str) -> None:
        """End the feed of a run that no worker ever began; one that was announced is told to have failed."""
        feed.end()
        if feed.graph_id is not None:
            feed.thread.open(feed.run_id, is_logged=self.relay.has_others)
            feed.thread.finish(feed.run_id, RunEnd("failed", feed.graph_id, reason), keeper=self._retention)

    async def announce(self, feed: Feed, graph_id: str) -> None:
        """Watch a run until it begins, because those who follow its thread were told of it; no matter who ends it."""
        if feed.is_local or feed.is_started or feed.ended.is_set():
            return
        feed.graph_id = graph_id
        feed.mirror = await self.relay.mirror(feed.thread, feed)
        self._kept.add(feed)
        feed.on_start(lambda: self._kept.discard(feed))

    async def follow(self, feed: Feed, *, after: str | None, modes: frozenset[str] | None) -> Subscription:
        """Follow a run wherever it is executed, from now on or from after an event that is kept."""
        mirror = None if feed.is_local else await self.relay.mirror(feed.thread, feed)
        subscription = feed.follow(after=after, modes=modes)
        subscription.mirror = mirror
        if after is None or not feed.is_resumable:
            subscription.floor = self.clock.now()
        return subscription

    async def follow_thread(
        self, thread_id: UUID, modes: frozenset[ThreadMode], after: Place | None
    ) -> ThreadSubscription:
        """Follow a thread, wherever its runs are executed."""
        thread, mirror = await self.join(thread_id)
        subscription = thread.follow(modes, after=after)
        subscription.mirror = mirror
        return subscription

    async def join(self, thread_id: UUID) -> tuple[ThreadFeed, object]:
        """Return the feed of a thread with what others told of it, and what keeps that coming.

        A thread that was deleted may have left something here: whoever made another one of its id gets none of it.
        """
        thread = self.thread(thread_id)
        mirror = await self.relay.mirror(thread)
        if thread.has_past and (made_at := await self.relay.made_at(thread_id)) is not None:
            thread.forget_before((made_at - UNSURE_MS, 0))
        return thread, mirror

    def thread(self, thread_id: UUID) -> ThreadFeed:
        """Return the feed of a thread, which need not exist yet."""
        thread = self._threads.get(thread_id)
        if thread is None:
            thread = self._threads[thread_id] = ThreadFeed(thread_id, self.clock, self._retention, self)
        return thread

    def update(self, thread_id: UUID, data: bytes) -> None:
        """Tell those who follow a thread that a person changed its state."""
        self.thread(thread_id).update(data)

    def forget(self, thread_id: UUID) -> None:
        """Let those go who follow a thread that was deleted, here and elsewhere."""
        self.drop(thread_id)
        self.relay.say_gone(thread_id)

    def drop(self, thread_id: UUID) -> None:
        """Let those go who follow a thread here."""
        thread = self._threads.pop(thread_id, None)
        if thread is not None:
            thread.end()

    def mirrored(self) -> list[Feed]:
        """Return the feeds that somebody follows, or waits for, of runs that are not executed here."""
        return [feed for feed in list(self._feeds.values()) if not feed.is_local and not feed.ended.is_set()]

    def positions(self) -> dict[UUID, tuple[str, int]]:
        """Return how far the numbered sequences of threads are."""
        return {key: thread.tap.position for key, thread in list(self._threads.items()) if thread.tap is not None}

    def untold(self, most: int) -> list[ThreadFeed]:
        """Return threads of which others may want to know more than they do."""
        self._forget_ended()
        running = (feed.thread for feed in self._running.values())
        ended = (thread for _, thread in islice(reversed(self._ended), most))
        return [thread for thread in (*running, *ended) if thread.has_untold()]

    def _note_ended(self, thread: ThreadFeed) -> None:
        self._forget_ended()
        self._ended.append((time.monotonic() + NEWS_S, thread))

    def _forget_ended(self) -> None:
        while self._ended and self._ended[0][0] < time.monotonic():
            self._ended.popleft()

    @property
    def has_others(self) -> bool:
        """Whether other processes serve the same database."""
        return self.relay.has_others

    def tell(self, telling: Telling) -> None:
        """Write events of a thread down for others."""
        self.relay.tell(telling)
