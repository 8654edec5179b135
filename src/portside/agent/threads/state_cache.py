"""A cache of the states of threads, as JSON."""

from typing import Any, NamedTuple

from cachetools import LRUCache

# The memory that a cached state takes beside its texts.
ENTRY_BYTES = 1000
# One state may take an eighth of the cache.
LARGEST_SHARE = 8


class StateKey(NamedTuple):
    """The key of a cached state: its thread, its fields, and the caller's identity, as a graph may depend on the user.

    The thread's id is a number: `UUID` compares and hashes in Python, three times for each look into the cache.
    """

    thread_id: int
    select: tuple[str, ...] | None
    identity: str


class CachedState(NamedTuple):
    """The JSON of a state, the version it was computed from, and the user it was computed for."""

    version: str
    user: Any
    body: bytes

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return ENTRY_BYTES + len(self.version) + len(self.body)


class StateCache:
    """The most recently used states, up to a number of bytes in all."""

    def __init__(self, max_bytes: int) -> None:
        self._states: LRUCache[StateKey, CachedState] = LRUCache(max_bytes, getsizeof=lambda state: state.size)

    @property
    def size(self) -> int:
        """How many bytes the states take."""
        return int(self._states.currsize)

    def get(self, key: StateKey, user: Any) -> CachedState | None:
        """Return the state for a key, unless it was computed for another user."""
        # Not `get`, which looks for the key one more time.
        try:
            state = self._states[key]
        except KeyError:
            return None

        return state if state.user == user else None

    def put(self, key: StateKey, state: CachedState) -> None:
        """Cache a state in place of the earlier one of this key; one that is too large is not cached."""
        self.drop(key)
        if state.size * LARGEST_SHARE <= self._states.maxsize:
            self._states[key] = state

    def drop(self, key: StateKey) -> None:
        """Remove the state for a key, if there is one."""
        self._states.pop(key, None)
