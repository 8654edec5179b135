"""Identifiers: time-ordered UUIDs (version 7), strictly increasing within a process."""

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """Make a UUIDv7. Two calls in one process never tie and never go backwards, whatever the clock does."""
    global _last  # noqa: PLW0603 - one counter per process is the point
    with _lock:
        stamp = time.time_ns() // 1_000_000 << 12
        _last = max(stamp, _last + 1)
        stamp = _last
    millis, counter = stamp >> 12, stamp & 0xFFF
    tail = int.from_bytes(os.urandom(8)) & 0x3FFF_FFFF_FFFF_FFFF
    return UUID(int=(millis & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | tail)
