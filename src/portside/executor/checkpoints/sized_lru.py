"""A cache of the values that were used last: `cachetools` is not among the libraries of an executor."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedLruCache(Generic[K, V]):
    """The most recently used values, up to a total size. It has no lock of its own: callers hold one."""

    def __init__(self, max_size: int, measure: Callable[[V], int] = lambda _: 1) -> None:
        self._max_size = max_size
        self._measure = measure
        self._size = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which is then the one that was used last."""
        entry = self._values.get(key)
        if entry is None:
            return None

        self._values.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value; those that were not used for longest go if there is no space."""
        self.pop(key)
        size = self._measure(value)
        self._values[key] = value, size

        self._size += size
        while self._size > self._max_size:
            self.pop(next(iter(self._values)))

    def pop(self, key: K) -> None:
        """Drop the value of a key, if there is one."""
        entry = self._values.pop(key, None)
        if entry is not None:
            self._size -= entry[1]

    def pop_all(self, is_dropped: Callable[[K], bool]) -> None:
        """Drop the values of some keys."""
        for key in [key for key in self._values if is_dropped(key)]:
            self.pop(key)
