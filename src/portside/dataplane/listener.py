"""The listener: asks the control plane what is desired and gives each deployment a reconciler of its own.

It dials out and is never dialled. While the control plane is away everything that runs goes on. One listener works in
a home folder at a time; a second one waits for the first to end and is then refused.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

from portside.dataplane.api import ControlPlane
from portside.dataplane.backoff import Backoff
from portside.dataplane.builds.revision import discard_unfinished
from portside.dataplane.compute.interface import Compute
from portside.dataplane.delivery import Workplace
from portside.dataplane.failures import Refused, Unreachable
from portside.dataplane.reconciler import Reconciler
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.types import Desired
from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_WAIT_S = 25
_LOCK_WAIT_S = 30.0
_PARENT_CHECK_S = 1.0
_MAX_BUILDS = 2
_TELL_EVERY_S = 5.0


async def run_listener(settings: ListenerSettings, stop: asyncio.Event, compute: Compute) -> None:
    """Run a listener for a compute until `stop` is set; returns when no process of it is left.

    Raises UserMistake when another listener works in the same home.
    """
    parent = os.getppid()
    make_private_dir(settings.folder)
    async with _only_one(settings.folder / "listener.lock", stop):
        await asyncio.to_thread(discard_unfinished, settings.folder / "deployments")
        control = ControlPlane(settings.control_plane_url, settings.control_plane_api_key)
        workplace = Workplace(settings, control, compute, asyncio.Semaphore(_MAX_BUILDS))
        listener = Listener(workplace)
        work = asyncio.create_task(listener.run())
        ends = [work, asyncio.create_task(listener.tell_measures()), asyncio.create_task(stop.wait())]
        if settings.exit_with_parent:
            ends.append(asyncio.create_task(_parent_gone(parent)))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await listener.close()
            await compute.close()
            await control.close()
        for task in ends:
            if not task.cancelled():
                task.result()


class Listener:
    """Polls what is desired and keeps the reconcilers."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self._reconcilers: dict[UUID, Reconciler] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._listener_id: UUID | None = None
        self._generation = 0

    async def run(self) -> None:
        """Poll for ever."""
        backoff = Backoff(first_s=0.5, limit_s=10)
        while True:
            try:
                self._apply(await self._poll())
                backoff.reset()
            except (Unreachable, Refused) as exc:
                # Refused too: a control plane that was set up anew knows this listener again once it has connected.
                self._listener_id = None
                delay = backoff.next()
                log.warning("the control plane does not answer", error=str(exc), again_in_s=delay)
                await asyncio.sleep(delay)

    async def tell_measures(self) -> None:
        """Tell what all deployments use, every few seconds, for ever."""
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            for reconciler in list(self._reconcilers.values()):
                # What is not heard now is told anew in a moment.
                with contextlib.suppress(Unreachable, Refused):
                    await reconciler.tell_measures()

    async def close(self) -> None:
        """Stop all work and all servers; returns when no process is left."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(reconciler.close() for reconciler in self._reconcilers.values()))

    async def _poll(self) -> Desired:
        control = self._workplace.control
        if self._listener_id is None:
            kind, compute_id = self._workplace.compute.compute_type, self._workplace.settings.compute_id
            self._listener_id = await control.connect(kind, compute_id, version("portside"))
            self._generation = 0
            log.info("connected to the control plane", listener=str(self._listener_id))
        desired = await control.desired(self._listener_id, self._generation, _WAIT_S)
        self._generation = desired.generation
        return desired

    def _apply(self, desired: Desired) -> None:
        for deployment in desired.deployments:
            known = self._reconcilers.get(deployment.id)
            if known is not None and not known.is_gone:
                known.update(deployment)
                continue
            reconciler = self._reconcilers[deployment.id] = Reconciler(self._workplace, deployment)
            self._tasks[deployment.id] = asyncio.create_task(reconciler.run())
        for gone in self._reconcilers.keys() - {deployment.id for deployment in desired.deployments}:
            self._let_go(gone)

    def _let_go(self, deployment_id: UUID) -> None:
        """Stop the servers of a deployment that the control plane no longer lists; its data is left where it is."""
        reconciler, task = self._reconcilers[deployment_id], self._tasks[deployment_id]
        if reconciler.is_gone:
            del self._reconcilers[deployment_id], self._tasks[deployment_id]
        elif not task.cancelling():
            log.warning("a deployment vanished without having been deleted", deployment=str(deployment_id))
            task.cancel()
            self._tasks[deployment_id] = asyncio.create_task(_end(reconciler, task))


async def _end(reconciler: Reconciler, task: asyncio.Task[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)
    await reconciler.close()
    reconciler.is_gone = True


@asynccontextmanager
async def _only_one(lock: Path, stop: asyncio.Event) -> AsyncIterator[None]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if stop.is_set() or time.monotonic() > deadline:
                raise UserMistake(f"another listener works in {lock.parent}; stop it first")
            await asyncio.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


async def _parent_gone(parent: int) -> None:
    while True:
        await asyncio.sleep(_PARENT_CHECK_S)
        if os.getppid() != parent:
            return
