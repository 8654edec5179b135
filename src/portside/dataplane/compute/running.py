"""One revision that runs: a replica kept alive on the deployment's socket, its output led to the revision's log.

A replica that dies is replaced with back-off; until its successor has passed the gate, connections wait in the
public socket's backlog. Which revision of a deployment runs is not decided here.
"""

import asyncio
import signal
import socket
import time

from portside.dataplane.backoff import Backoff
from portside.dataplane.compute.interface import OnUp
from portside.dataplane.compute.output import Follower, parse_line
from portside.dataplane.compute.process import Replica, ReplicaPlan
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ending
from portside.dataplane.state import DeploymentFolder, ReplicaRecord


class RunningRevision:
    """Runs one revision from its first start to its end."""

    def __init__(self, plan: ReplicaPlan, public: socket.socket, folder: DeploymentFolder, log: RevisionLog) -> None:
        self.revision_id = plan.revision_id
        self._plan, self._public, self._folder, self._log = plan, public, folder, log
        self._output = Follower(plan.output, self._take_line)
        self._replica: Replica | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start, gate and hand over the first replica. Raises DeployFailed after leaving nothing behind."""
        try:
            self._replica = await self._come_up()
        except DeployFailed as exc:
            self._log.add(str(exc), "ERROR")
            await self._close()
            raise
        except BaseException:
            await self._close()
            raise

    def keep(self, on_up: OnUp | None = None) -> None:
        """Keep a replica alive from here on; `on_up` is called each time one serves."""
        self._keeper = asyncio.create_task(self._keep(on_up))

    async def withdraw(self) -> None:
        """Accept no more requests; those under way go on."""
        await self._stop_keeping()
        if self._replica is not None:
            await self._replica.withdraw()

    async def end(self, grace_s: float) -> None:
        """After `withdraw`: wait for the replica to finish, at most the grace, then leave nothing behind."""
        try:
            await self._end_replica(grace_s)
        finally:
            await self._close()

    def interrupt(self) -> None:
        """Ask the replica to hand its runs back and go, even if it drains already."""
        if self._replica is not None:
            self._replica.mark.signal(signal.SIGINT)

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: runs are handed back, and a replica that takes too long is killed."""
        await self._stop_keeping()
        self.interrupt()
        await self.end(kill_after_s)

    async def _keep(self, on_up: OnUp | None) -> None:
        backoff = Backoff()
        while True:
            healthy_s = 0.0
            try:
                self._replica = self._replica or await self._come_up()
                if on_up is not None:
                    await on_up()
                began = time.monotonic()
                code = await self._replica.wait()
                healthy_s, reason = time.monotonic() - began, f"the server {ending(code)}"
                await self._end_replica(0)
            except DeployFailed as exc:
                reason = str(exc)
            delay = backoff.next(healthy_s)
            self._log.add(f"{reason}\nstarting another in {delay:g} s", "ERROR")
            await asyncio.sleep(delay)

    async def _come_up(self) -> Replica:
        replica = await Replica.start(self._plan, self._public)
        try:
            self._folder.add_replica(ReplicaRecord(replica.mark, self.revision_id))
            await replica.wait_until_ok()
            await replica.hand_over()
        except BaseException:
            await self._bury(replica, 0)
            raise
        return replica

    async def _end_replica(self, grace_s: float) -> None:
        if self._replica is not None:
            await self._bury(self._replica, grace_s)
            self._replica = None

    async def _bury(self, replica: Replica, grace_s: float) -> None:
        try:
            await replica.end(grace_s)
        finally:
            self._folder.drop_replica(replica.mark)

    async def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def _close(self) -> None:
        await self._output.close()
        await self._log.close()

    def _take_line(self, line: str) -> None:
        entry = parse_line(line, int(time.time() * 1000))
        self._log.add(entry.message, entry.level, entry.timestamp)
