"""Finds the feed of a run that is executed, or was until a moment ago, in this process."""

import asyncio
from uuid import UUID
from weakref import WeakValueDictionary

from portside.agent.streams.feed import Feed


class Hub:
    """The feeds of this process, by run. A feed lives as long as somebody follows or fills it."""

    def __init__(self, *, keep_s: float) -> None:
        self._feeds: WeakValueDictionary[UUID, Feed] = WeakValueDictionary()
        self._kept: set[Feed] = set()
        self._keep_s = keep_s

    def open(self, run_id: UUID, *, is_resumable: bool) -> Feed:
        """Return the run's feed, made anew if there is none that goes on."""
        feed = self._feeds.get(run_id)
        if feed is None or feed.ended.is_set():
            feed = self._feeds[run_id] = Feed(is_resumable=is_resumable)
        return feed

    def find(self, run_id: UUID) -> Feed | None:
        """Return the run's feed, or None when nobody in this process has to do with it."""
        return self._feeds.get(run_id)

    def close(self, run_id: UUID) -> None:
        """End a feed; a resumable one is kept for clients that come back."""
        feed = self._feeds.get(run_id)
        if feed is None:
            return
        feed.end()
        if feed.is_resumable:
            self._kept.add(feed)
            asyncio.get_running_loop().call_later(self._keep_s, self._kept.discard, feed)
