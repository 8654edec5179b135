"""How many answers one caller holds open at once: events that are streamed, results that are waited for, WebSockets.

Each of them costs memory and a connection here for as long as its client likes. They are counted in this process alone,
because that is what they would exhaust. Calls of the process to itself are not counted.
"""

from collections import Counter
from functools import partial
from typing import Any

from portside.agent.types.access import Caller
from portside.kernel.errors import TooManyRequests
from portside.kernel.http.routes import Context, Guard, Route

RETRY_AFTER_S = 5


class TooManyStreams(TooManyRequests):
    """The caller has as many streams and awaited results open as MAX_STREAMS_PER_CALLER allows; close one first."""

    code = "too_many_streams"


class OpenAnswers:
    """The answers that callers hold open, by who they are; with `most` 0 nobody is counted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def guarded(self, guard: Guard) -> Guard:
        """Return a guard that lets in whom the other one does, as long as they have not too much open already."""
        if self._most == 0:
            return guard

        async def guarded(ctx: Context, route: Route) -> Any:
            caller: Caller = await guard(ctx, route)
            name = caller.counted_as if route.stays_open else None
            if name is not None:
                self._enter(name)
                ctx.at_end(partial(self._leave, name))
            return caller

        return guarded

    def _enter(self, name: str) -> None:
        if self._open[name] >= self._most:
            raise TooManyStreams(
                f"The caller has {self._most} streams and awaited results open, which is the limit "
                "(setting MAX_STREAMS_PER_CALLER). Close one first.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self._open[name] += 1

    def _leave(self, name: str) -> None:
        self._open[name] -= 1
        if self._open[name] == 0:
            # Who has gone is forgotten, however many come.
            del self._open[name]
