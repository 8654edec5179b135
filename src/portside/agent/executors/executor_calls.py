"""Calls to the executors of a pool, each in the context of its caller, and repeated when an executor ends meanwhile."""

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from portside.agent.executors.member import CallContext, Executor, ExecutorFailed
from portside.agent.executors.pool import ExecutorPool
from portside.agent.queue.active_run import ActiveRun
from portside.executor import messages
from portside.executor.errors import RunTimeout, to_error
from portside.executor.link import CallFailed, LinkClosed
from portside.executor.messages import GraphCall
from portside.kernel.errors import Unavailable

ATTEMPTS_AT_A_CALL = 3
USER = "langgraph_auth_user"


class StoppedEarly(Exception):
    """An executor stopped a run, because no message told it in time that the lease was renewed."""


class ExecutorCalls:
    """Calls the executors of a pool."""

    def __init__(self, pool: ExecutorPool) -> None:
        self.pool = pool
        self._numbers = count(1)

    async def call(self, method: str, request: Any) -> Any:
        """Call an executor, and another one if it ends meanwhile. Raises Unavailable if several end in turn."""
        for _ in range(ATTEMPTS_AT_A_CALL):
            async with self.pool.for_call() as executor:
                try:
                    return await executor.unless_silent(self.call_one(executor, method, GraphCall(request=request)))
                except ExecutorFailed as exc:
                    reason = str(exc)
                except LinkClosed:
                    reason = await executor.wait_ended()

        raise Unavailable(f"the graph's executor {reason}")

    async def call_one(
        self, executor: Executor, method: str, call: GraphCall, on_item: Any = None, *, run: ActiveRun | None = None
    ) -> Any:
        """Call an executor. Raises LinkClosed, and the graph's error as clients see it."""
        with self._calling(executor, call, run) as call.call:
            try:
                return await executor.link.call(method, call, on_item=on_item)
            except CallFailed as exc:
                raise executor.callers[call.call].find_failure(exc) or _to_run_error(exc) from exc

    @contextmanager
    def _calling(self, executor: Executor, call: GraphCall, run: ActiveRun | None) -> Iterator[int]:
        """Register a call, so that what the executor asks for runs in its context, and send it the lease of a run."""
        number = next(self._numbers)
        config = getattr(call.request, "config", None) or {}
        user = (config.get("configurable") or {}).get(USER)
        executor.callers[number] = CallContext(contextvars.copy_context(), user)

        if call.timeout_s:
            executor.deadlines[number] = asyncio.get_running_loop().time() + call.timeout_s

        if run is not None:
            executor.leased_runs[number] = run
            run.on_renewed = executor.send_leases
            call.leased_until = executor.clock_s(run.leased_until)

        try:
            yield number
        finally:
            del executor.callers[number]
            executor.deadlines.pop(number, None)
            executor.leased_runs.pop(number, None)


def _to_run_error(failure: CallFailed) -> Exception:
    """Return the error of this process for an executor's error."""
    if failure.code == messages.LEASE_LOST:
        return StoppedEarly(f"its executor stopped it: {failure.message}")
    return RunTimeout() if failure.code == "run_timeout" else to_error(failure)
