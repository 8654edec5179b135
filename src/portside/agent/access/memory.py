"""Who a caller is, remembered for a while by a digest of the credentials; the credentials themselves are not kept."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """The last so many answers, each for so many seconds."""

    def __init__(self, *, ttl_s: float, most: int) -> None:
        self._ttl_s = ttl_s
        self._most = most
        self._kept: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        """Return an answer that is not too old."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        until, answer = kept
        if until <= time.monotonic():
            del self._kept[key]
            return None
        return answer

    def drop(self, key: bytes) -> None:
        """Forget an answer."""
        self._kept.pop(key, None)

    def put(self, key: bytes, answer: T) -> None:
        """Remember an answer; the oldest goes where there are too many."""
        self._kept[key] = (time.monotonic() + self._ttl_s, answer)
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


def digest_of(parts: Iterable[str | None]) -> bytes:
    """Return a short name of credentials, in which each has its place."""
    digest = hashlib.sha256()
    for part in parts:
        raw = b"" if part is None else part.encode("latin-1", "replace")
        digest.update(b"-" if part is None else b"+%d:" % len(raw))
        digest.update(raw)
    return digest.digest()
