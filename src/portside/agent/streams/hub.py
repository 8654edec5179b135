"""Finds the feeds of this process: of a run that is executed, or was until a moment ago, and of a thread.

Events cross no process here: what another server executes is not heard. Whoever brings such events in has one place to
put them, `Feed.publish`, and one to end them, `Hub.close`.
"""

import asyncio
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from portside.agent.streams.events import EventClock
from portside.agent.streams.feed import Feed
from portside.agent.streams.threads import Retention, RunEnd, ThreadFeed
from portside.kernel.codec import dump_api


class Start(NamedTuple):
    """An attempt at a run that begins; what a stateless run leaves is kept for nobody."""

    run_id: UUID
    thread_id: UUID
    graph_id: str
    attempt: int
    is_resumable: bool
    is_stateless: bool


class Hub:
    """The feeds of this process. A feed lives as long as somebody follows, fills or keeps it."""

    def __init__(self, *, keep_s: float) -> None:
        self._feeds: WeakValueDictionary[UUID, Feed] = WeakValueDictionary()
        self._threads: WeakValueDictionary[UUID, ThreadFeed] = WeakValueDictionary()
        self._running: dict[UUID, Feed] = {}
        self._kept: set[Feed] = set()
        self._keep_s = keep_s
        self._clock = EventClock()
        self._retention = Retention(keep_s)

    def open(self, run_id: UUID, thread_id: UUID, *, is_resumable: bool) -> Feed:
        """Return the run's feed, made anew if there is none that goes on."""
        feed = self._feeds.get(run_id)
        if feed is None or feed.ended.is_set():
            thread = self.thread(thread_id)
            feed = self._feeds[run_id] = Feed(run_id, thread, self._clock, is_resumable=is_resumable)
        return feed

    def begin(self, start: Start) -> Feed:
        """Open the feed of a run that is executed here from now on, with the events that come first."""
        feed = self.open(start.run_id, start.thread_id, is_resumable=start.is_resumable)
        feed.is_stateless = start.is_stateless
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

    def close(self, run_id: UUID, end: RunEnd | None) -> None:
        """End a feed; a resumable one is kept for clients that come back. Without an end the run goes on elsewhere."""
        feed = self._running.pop(run_id, None) or self._feeds.get(run_id)
        if feed is None:
            return
        feed.end()
        feed.thread.finish(run_id, end, is_kept=not feed.is_stateless)
        if feed.is_resumable:
            self._kept.add(feed)
            asyncio.get_running_loop().call_later(self._keep_s, self._kept.discard, feed)

    def thread(self, thread_id: UUID) -> ThreadFeed:
        """Return the feed of a thread, which need not exist yet."""
        thread = self._threads.get(thread_id)
        if thread is None:
            thread = self._threads[thread_id] = ThreadFeed(thread_id, self._clock, self._retention)
        return thread

    def update(self, thread_id: UUID, data: bytes) -> None:
        """Tell those who follow a thread that a person changed its state."""
        self.thread(thread_id).update(data)

    def forget(self, thread_id: UUID) -> None:
        """Let those go who follow a thread that was deleted."""
        thread = self._threads.pop(thread_id, None)
        if thread is not None:
            thread.end()
