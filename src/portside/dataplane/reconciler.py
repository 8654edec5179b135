"""Brings one deployment to what is desired of it, one step at a time.

A deployment has one reconciler and each of its steps happens in order: database, the active revision back on its feet,
then every revision in progress by number; deployments do not wait for one another. What is desired may change at any
moment: work that nobody wants any more is cancelled, everything else goes on. The revision's own steps are in
`delivery.py`.
"""

import asyncio
import contextlib
from uuid import UUID

from portside.dataplane.backoff import Backoff
from portside.dataplane.delivery import Delivery, Workplace
from portside.dataplane.failures import CreateFailed, Refused
from portside.dataplane.types import ABANDONED, IN_PROGRESS, DeploymentReport, DesiredDeployment, DesiredRevision
from portside.kernel.logs import get_logger

log = get_logger(__name__)


class Reconciler:
    """The work on one deployment. `update` tells what is desired, `run` does it."""

    def __init__(self, workplace: Workplace, desired: DesiredDeployment) -> None:
        self._workplace, self._desired = workplace, desired
        self._delivery = Delivery(workplace, desired.id)
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._working_on: UUID | None = None
        self._finished: set[UUID] = set()
        self._was_restored = False
        self.is_gone = False

    def update(self, desired: DesiredDeployment) -> None:
        """Take note of what is desired now; work that became pointless is cancelled."""
        if desired == self._desired:
            return
        deletes = desired.status == "AWAITING_DELETE" and self._desired.status != "AWAITING_DELETE"
        self._desired = desired
        self._changed.set()
        if self._work is not None and (deletes or self._is_pointless(desired)):
            self._work.cancel()

    async def run(self) -> None:
        """Work until the deployment is gone. Cancel it to stop; `close` then ends what runs."""
        backoff = Backoff(first_s=0.5)
        while not self.is_gone:
            self._changed.clear()
            failed = await self._activate_once()
            if not failed:
                backoff.reset()
            if not self.is_gone:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), backoff.next() if failed else None)

    async def tell_measures(self) -> None:
        """Tell the control plane what the deployment uses. Raises Unreachable and Refused."""
        if not self.is_gone and self._desired.status == "READY":
            await self._delivery.tell_measures()

    async def close(self) -> None:
        """Stop all servers of the deployment; returns when none is left."""
        await self._delivery.berth.close()

    def _is_pointless(self, desired: DesiredDeployment) -> bool:
        if self._working_on is None:
            return False
        revision = desired.revision(self._working_on)
        return revision is None or revision.status in ABANDONED

    async def _activate_once(self) -> bool:
        """Do what there is to do, and return whether it failed. Cancelled work is no failure."""
        self._work = asyncio.create_task(self._activate())
        try:
            await asyncio.wait({self._work})
        finally:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        error = None if self._work.cancelled() else self._work.exception()
        if error is not None:
            log.error("a deployment is not as desired yet", deployment=str(self._desired.id), exc_info=error)
        return error is not None

    async def _activate(self) -> None:
        if self._desired.status == "AWAITING_DELETE":
            await self._delivery.remove()
            self.is_gone = True
            return
        if not await self._is_provisioned():
            return
        await self._restore_once()
        await self._delivery.take_back(self._desired)
        await self._delivery.berth.follow(self._desired)
        while (revision := self._next()) is not None:
            await self._advance(revision)

    def _next(self) -> DesiredRevision | None:
        waiting = [r for r in self._desired.revisions if r.status in IN_PROGRESS and r.id not in self._finished]
        return min(waiting, key=lambda revision: revision.number, default=None)

    async def _is_provisioned(self) -> bool:
        """Make what every revision needs where it is not there. False ends the revisions that wait for it."""
        berth, is_new = self._delivery.berth, self._desired.status == "AWAITING_DATABASE"
        if not is_new and berth.is_provisioned:
            return True
        try:
            await berth.provision()
        except CreateFailed as exc:
            while (revision := self._next()) is not None:
                self._finished.add(revision.id)
                await self._delivery.fail(revision, exc)
            return False
        if is_new:
            await self._workplace.control.report_deployment(self._desired.id, DeploymentReport("READY"))
        return True

    async def _restore_once(self) -> None:
        """After a start of the listener, bring back what served before."""
        if self._was_restored or self._delivery.berth.is_running:
            return
        active = self._desired.revision(self._desired.active_revision_id)
        if active is not None:
            await self._delivery.restore(self._desired, active)
        self._was_restored = True

    async def _advance(self, revision: DesiredRevision) -> None:
        self._working_on = revision.id
        try:
            await self._delivery.deliver(self._desired, revision)
        except Refused as exc:
            log.warning("the control plane gave a revision up", revision=str(revision.id), reason=str(exc))
        finally:
            self._finished.add(revision.id)
            self._working_on = None
