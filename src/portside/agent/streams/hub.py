"""Finds the feed of a run that is executed, or was until a moment ago, in this process."""

import asyncio
from uuid import UUID

from portside.agent.streams.feed import Feed


class Hub:
    """The feeds of this process, by run."""

    def __init__(self, *, keep_s: float) -> None:
        self._feeds: dict[UUID, Feed] = {}
        self._keep_s = keep_s

    def open(self, run_id: UUID, *, is_resumable: bool) -> Feed:
        """Return the run's feed, made if there is none that goes on."""
        feed = self._feeds.get(run_id)
        if feed is None or feed.ended.is_set():
            feed = self._feeds[run_id] = Feed(is_resumable=is_resumable)
        return feed

    def find(self, run_id: UUID) -> Feed | None:
        """Return the run's feed, or None when the run is not of this process."""
        return self._feeds.get(run_id)

    def close(self, run_id: UUID) -> None:
        """End a feed. It is kept a while for clients that come back, then forgotten."""
        feed = self._feeds.get(run_id)
        if feed is None:
            return
        feed.end()
        asyncio.get_running_loop().call_later(self._keep_s if feed.is_resumable else 0, self._forget, run_id, feed)

    def _forget(self, run_id: UUID, feed: Feed) -> None:
        if self._feeds.get(run_id) is feed:
            del self._feeds[run_id]
