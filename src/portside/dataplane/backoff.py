"""Waiting longer after each failure in a row."""


class Backoff:
    """Delays that double from `first_s` up to `limit_s`, and begin again after `reset_after_s` of health."""

    def __init__(self, first_s: float = 0.2, limit_s: float = 30.0, reset_after_s: float = 60.0) -> None:
        self._first_s, self._limit_s, self._reset_after_s = first_s, limit_s, reset_after_s
        self._next_s = first_s

    def next(self, healthy_for_s: float = 0.0) -> float:
        """Return how many seconds to wait now, after having been healthy for some time before the failure."""
        if healthy_for_s >= self._reset_after_s:
            self._next_s = self._first_s
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._limit_s)
        return delay

    def reset(self) -> None:
        """Begin again with the shortest delay."""
        self._next_s = self._first_s
