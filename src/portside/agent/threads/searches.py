"""Searching threads for clients: those who ask for the very same in one moment are given one answer.

Lists that many look at, and front ends that ask again and again, cost one search however many there are. No answer is
older than its question (`kernel/trips.py`), and a slow search holds up nobody who looks for something else.
"""

from functools import partial
from weakref import WeakValueDictionary

import msgspec

from portside.agent.threads.records import search_threads
from portside.agent.types.access import Filter
from portside.agent.types.pages import Page
from portside.agent.types.threads import Thread, ThreadSearch
from portside.kernel.codec import dump_user
from portside.kernel.db import Database
from portside.kernel.trips import SharedTrips

Same = SharedTrips[None, Page[Thread]]


class Searches:
    """The searches of all who ask on one event loop."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._same: WeakValueDictionary[bytes, Same] = WeakValueDictionary()

    async def search(self, query: ThreadSearch, seen: Filter | None = None) -> Page[Thread]:
        """Find threads as `search_threads` does. The page may be somebody else's too: do not change it.

        Raises Invalid for a path without sense.
        """
        if self._db.codec is not None:
            # What is encrypted is opened in the context of who asks.
            return await search_threads(self._db, query, seen)
        key = msgspec.json.encode(query) + dump_user(seen)
        same = self._same.get(key)
        if same is None:
            same = self._same[key] = SharedTrips(partial(self._search, query, seen), alike=True)
        return await same.ask(None)

    async def _search(self, query: ThreadSearch, seen: Filter | None, asked: list[None]) -> list[Page[Thread]]:
        return [await search_threads(self._db, query, seen)] * len(asked)
