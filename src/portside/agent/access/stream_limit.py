"""The limit of open responses for each caller."""

from collections import Counter
from functools import partial
from typing import Any

from portside.agent.streams.replay_budget import counted_caller
from portside.agent.types.access import Caller
from portside.kernel.errors import TooManyRequests
from portside.kernel.http.routes import Context, Guard, Route, S

RETRY_AFTER_S = 5


class TooManyStreams(TooManyRequests):
    """The caller has as many streams and awaited results open as MAX_STREAMS_PER_CALLER allows; close one first."""

    code = "too_many_streams"


class StreamLimit:
    """The limit of open responses for each caller: event streams, awaited results and WebSockets; 0 turns it off.

    Each of these takes memory and a connection for as long as its client likes. They are counted in each process,
    because that is what they would exhaust. The process's own calls are not counted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def guarded(self, guard: Guard[S]) -> Guard[S]:
        """Return a guard that also refuses callers with too many open responses."""

        async def guarded(ctx: Context[S], route: Route[Any]) -> Any:
            caller: Caller = await guard(ctx, route)
            key = caller.limit_key if route.stays_open else None
            counted_caller.set(key)

            if key is not None and self._limit:
                self._enter(key)
                ctx.on_finish(partial(self._leave, key))

            return caller

        return guarded

    def _enter(self, key: str) -> None:
        if self._open[key] >= self._limit:
            raise TooManyStreams(
                f"The caller has {self._limit} streams and awaited results open, which is the limit "
                "(setting MAX_STREAMS_PER_CALLER). Close one first.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

        self._open[key] += 1

    def _leave(self, key: str) -> None:
        self._open[key] -= 1
        if self._open[key] == 0:
            # Otherwise the counter would grow with every caller that ever connected.
            del self._open[key]
