"""Searches of threads that many clients make at once."""

from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from portside.agent.rows import SearchPage
from portside.agent.threads.records import search_threads
from portside.agent.types.access import Filter
from portside.agent.types.threads import Thread, ThreadSearch
from portside.kernel.batching import Batcher
from portside.kernel.codec import dump_api
from portside.kernel.db import Database
from portside.kernel.large_reads import ReadReservation, current_read, set_current_read
from portside.kernel.user_json import dump_user

_SearchBatcher = Batcher[ReadReservation | None, "tuple[EncodedPage, int]"]


class EncodedPage(NamedTuple):
    """The JSON of a page of threads, how many threads it shows, and how many match in all."""

    body: bytes
    thread_count: int
    total: int


class ThreadSearches:
    """The searches of all callers on one event loop. Identical concurrent searches share one result.

    So a list that many clients poll costs one search, however many clients there are. No result is older than its
    request (`kernel/batching.py`), and a slow search delays no different one.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._batchers: WeakValueDictionary[bytes, _SearchBatcher] = WeakValueDictionary()

    async def search(self, query: ThreadSearch, visible: Filter | None = None) -> EncodedPage:
        """Find threads as `search_threads` does. Other callers may share the page."""
        if self._db.codec is not None:
            # Handlers decrypt in the encryption context of the caller.
            return _encode(await search_threads(self._db, query, visible))

        key = msgspec.json.encode(query) + dump_user(visible)
        batcher = self._batchers.get(key)
        if batcher is None:
            batcher = self._batchers[key] = Batcher(partial(self._search, query, visible), retry_singly=False)

        reservation = current_read()
        page, size = await batcher.submit(reservation)
        if reservation is not None:
            # Each response may be read slowly, so each needs the memory for it.
            await reservation.reserve(size)
            reservation.used = size

        return page

    async def _search(
        self, query: ThreadSearch, visible: Filter | None, reservations: list[ReadReservation | None]
    ) -> list[tuple[EncodedPage, int]]:
        """Search once, on the memory budget of the first caller."""
        reservation = reservations[0]
        set_current_read(reservation)
        page = _encode(await search_threads(self._db, query, visible))
        size = 0 if reservation is None else reservation.used
        return [(page, size)] * len(reservations)


def _encode(page: SearchPage[Thread]) -> EncodedPage:
    return EncodedPage(dump_api(page.items), len(page.items), page.total)
