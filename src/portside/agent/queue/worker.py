"""The worker of this process: claims runs into free slots, keeps their leases and ends them.

It runs on the API's event loop and does no work of its own; graphs are executed elsewhere, behind `Execute`. What it
claims it reports once, whatever happens: finished, handed back on shutdown, or dropped when the lease was lost.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

from prometheus_client import Counter, Gauge

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import LEASE_S, ClaimedRun, Ending
from portside.kernel.db import Database
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Driver

log = get_logger(__name__)
Execute = Callable[[ClaimedRun], Awaitable[Ending]]
OnEnd = Callable[[ClaimedRun, Ending | None], None]
POLL_S = 1.0
RUNNING = Gauge("lg_api_workers_active", "Runs being executed by this process.")
SLOTS = Gauge("lg_api_workers_max", "Runs this process may execute at once.")
ENDED = Counter("lg_api_runs_total", "Runs ended by this process.", ["status"])


class Worker:
    """Executes up to `slots` runs at once."""

    def __init__(self, db: Database, *, slots: int, execute: Execute, on_end: OnEnd, draining: asyncio.Event) -> None:
        self.worker_id: UUID = uuid4()
        self.slots = slots
        self._db = db
        self._execute = execute
        self._on_end = on_end
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._executing: set[UUID] = set()
        self._wake = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._is_accepting = False
        self._draining = draining
        self._chores = Driver([])
        SLOTS.set(slots)

    def start(self, chores: Driver) -> None:
        """Begin to claim runs, to renew leases and to do the queue's chores."""
        self._is_accepting = True
        self._chores = chores
        chores.start()
        self._loops = [asyncio.create_task(self._claim()), asyncio.create_task(self._renew())]

    def wake(self) -> None:
        """Say that there may be runs to claim."""
        self._wake.set()

    @property
    def free_slots(self) -> int:
        """How many more runs may start now."""
        return self.slots - len(self._running) if self._is_accepting else 0

    def begin(self, run: ClaimedRun) -> None:
        """Execute a run that this worker holds the lease of."""
        self._running[run.run_id] = asyncio.create_task(self._run(run))
        RUNNING.set(len(self._running))

    async def drain(self, grace_s: float) -> None:
        """Take no more runs, let those under way end within the grace, and hand the rest back."""
        self._is_accepting = False
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=grace_s)
        left = dict(self._running)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        if left:
            await lifecycle.hand_back_runs(self._db, self.worker_id, list(left))
            log.info("runs handed back", runs=len(left))
        await self._chores.close()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _claim(self) -> None:
        # A server that drains still executes what its last clients ask for, but takes nothing else from the queue.
        while not self._draining.is_set():
            claimed = await self._claim_batch() if self.free_slots > 0 else []
            if not claimed:
                await self._wait_for_work()

    async def _claim_batch(self) -> list[ClaimedRun]:
        try:
            claimed = await lifecycle.claim_runs(self._db, self.worker_id, self.free_slots)
        except Exception:
            log.exception("claiming failed")
            return []
        for run in claimed:
            self.begin(run)
        return claimed

    async def _wait_for_work(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), POLL_S)
        self._wake.clear()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 5)
            held = list(self._running)
            if not held:
                continue
            try:
                ours = await lifecycle.renew_leases(self._db, self.worker_id, held)
            except Exception:
                log.exception("renewing leases failed")
                continue
            # One that is just being finished may be missing because its end is committed and the answer on its way.
            for run_id in (set(held) - ours) & self._executing:
                self._running[run_id].cancel()

    async def _execute_held(self, run: ClaimedRun) -> Ending:
        self._executing.add(run.run_id)
        try:
            return await self._execute(run)
        finally:
            self._executing.discard(run.run_id)

    async def _run(self, run: ClaimedRun) -> None:
        ending: Ending | None = None
        try:
            ending = await self._execute_held(run)
            if not await lifecycle.finish_run(self._db, self.worker_id, run, ending):
                log.warning("a run ended after its lease was lost", run_id=str(run.run_id))
                ending = None
            else:
                ENDED.labels(ending.status).inc()
        except asyncio.CancelledError:
            ending = None
            raise
        except Exception:
            log.exception("a run could not be ended; its lease will run out", run_id=str(run.run_id))
            ending = None
        finally:
            self._running.pop(run.run_id, None)
            RUNNING.set(len(self._running))
            self._on_end(run, ending)
            self._wake.set()
