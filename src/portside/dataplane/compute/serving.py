"""What a deployment's address leads to: one stable socket and the revision that serves it.

Switching starts the new revision beside the old one and lets it take over the socket only once it has passed the gate;
then the old one drains in the background. Processes that an earlier listener left behind and that the fleet did not
adopt go on until something else serves.
"""

import asyncio
import signal
import time
from uuid import UUID

from portside.dataplane.compute.interface import Fleet
from portside.dataplane.compute.sockets import Stable, open_stable, url_of
from portside.dataplane.state import DeploymentFolder, ReplicaRecord

_KILL_AFTER_S = 15.0
_POLL_S = 0.05
# A server hands its runs back when its own grace is over; it is not killed while it does.
_HAND_BACK_S = 5.0


class Serving:
    """The serving side of one deployment."""

    def __init__(self, folder: DeploymentFolder, host: str, grace_s: float) -> None:
        self._folder, self._host, self._grace_s = folder, host, grace_s
        self._stable: Stable | None = None
        self._current: Fleet | None = None
        self._retiring: dict[asyncio.Task[None], Fleet] = {}
        self._orphans = list(folder.state.replicas)
        self._burial: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a revision serves or is being brought back."""
        return self._current is not None

    @property
    def current(self) -> Fleet | None:
        """What serves or is being brought back."""
        return self._current

    @property
    def stable(self) -> Stable:
        """The stable socket, which opens when it is first asked for."""
        if self._stable is None:
            state = self._folder.state
            self._stable = open_stable(self._host, state.port, self._folder.path)
            state.port = self._stable.port
            self._folder.save()
        return self._stable

    @property
    def url(self) -> str:
        """The deployment's address."""
        return url_of(self._host, self.stable.port)

    def revisions(self) -> set[UUID]:
        """Return the revisions that have a replica, serving or draining."""
        running = {revision.revision_id for revision in self._retiring.values()}
        return running | ({self._current.revision_id} if self._current else set())

    def restore(self, fleet: Fleet) -> None:
        """Bring the active revision back in the background, for as long as it takes."""
        self._current = fleet
        fleet.keep(self._end_orphans)

    async def switch(self, fresh: Fleet) -> None:
        """Let another revision serve. Raises DeployFailed, and then what served before still does.

        When this returns, no new request reaches the old revision.
        """
        await fresh.start()
        old, self._current = self._current, fresh
        fresh.keep()
        self._folder.activate(fresh.revision_id)
        await self._end_orphans()
        if old is not None:
            await self._retire(old)

    async def stop(self) -> None:
        """Stop everything quickly and close the socket; returns when no process is left."""
        current, self._current = self._current, None
        ends = [current.stop(_KILL_AFTER_S)] if current else []
        await asyncio.gather(*ends, self._stop_retiring())
        await self._stop_orphans()
        if self._stable is not None:
            self._stable.close()
            self._stable = None

    async def _retire(self, old: Fleet) -> None:
        """Drain a revision in the background; returns when it accepts no more requests."""
        withdrawn = asyncio.Event()
        task = asyncio.create_task(self._drain(old, withdrawn))
        self._retiring[task] = old
        task.add_done_callback(self._retiring.pop)
        await withdrawn.wait()

    async def _drain(self, old: Fleet, withdrawn: asyncio.Event) -> None:
        try:
            await old.withdraw()
        finally:
            withdrawn.set()
            await old.end(self._grace_s + _HAND_BACK_S)

    async def _stop_retiring(self) -> None:
        for revision in self._retiring.values():
            revision.interrupt()
        tasks = list(self._retiring)
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=_KILL_AFTER_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _end_orphans(self) -> None:
        """Drain in the background what an earlier listener left behind, but for what was adopted."""
        adopted = self._current.replicas() if self._current is not None else set()
        self._orphans = [orphan for orphan in self._orphans if orphan.process not in adopted]
        if self._orphans and self._burial is None:
            self._burial = asyncio.create_task(self._bury_orphans(signal.SIGTERM, self._grace_s + _HAND_BACK_S))

    async def _stop_orphans(self) -> None:
        if self._burial is not None:
            self._burial.cancel()
            await asyncio.gather(self._burial, return_exceptions=True)
        await self._bury_orphans(signal.SIGINT, _KILL_AFTER_S)

    async def _bury_orphans(self, number: signal.Signals, grace_s: float) -> None:
        for orphan in self._orphans:
            orphan.process.signal(number)
        deadline = time.monotonic() + grace_s
        for orphan in self._orphans:
            await _wait_for_end(orphan, deadline)
        for orphan in self._orphans:
            self._bury(orphan)
        self._orphans = []

    def _bury(self, orphan: ReplicaRecord) -> None:
        orphan.process.kill_group()
        self._folder.drop_replica(orphan.process)


async def _wait_for_end(orphan: ReplicaRecord, deadline: float) -> None:
    """Wait for a process that is no child of ours, which can only be done by looking."""
    while time.monotonic() < deadline:
        if not orphan.process.is_alive:
            return
        await asyncio.sleep(_POLL_S)
