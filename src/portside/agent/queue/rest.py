"""When a server rests.

Every second a server looks for runs, lost leases, webhooks and news of other processes. While it is idle it rests: one
look every few seconds replaces all of these, because hundreds of idle servers may share a machine.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from portside.agent.queue.statements import LEASE_S
from portside.agent.queue.worker import Worker
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.http.middleware import Activity
from portside.kernel.reconcile import Status, Task

# A server rests after REST_AFTER_S without a request and a run, if nothing is due within REST_AT_LEAST_S.
REST_AFTER_S = 5.0
REST_AT_LEAST_S = 10.0
# The lease of a run that began elsewhere after one look ends after the next: resting delays the sweep of no lost run.
LOOK_EVERY_S = LEASE_S
RESTING_TASKS_EVERY_S = 60.0


class Poller(Protocol):
    """A part of the server that looks for something at intervals."""

    def rest(self, *, is_resting: bool) -> None:
        """Look less often while the server rests, or as often as before."""
        ...


class IdleBackoff(Task):
    """Lets this process poll less often while neither it nor any other process has work.

    `tasks` are those that may run once a minute meanwhile: their work can wait, or `next_due_at` of the database
    announces it. The worker and `pollers` learn when a rest begins, and when it ends: at a request, when something is
    due soon, and when the database does not answer. Notifications of other processes still arrive.
    """

    every_s = 1.0

    def __init__(
        self,
        db: Database,
        worker: Worker,
        activity: Activity,
        *,
        tasks: Sequence[Task],
        pollers: Sequence[Poller] = (),
    ) -> None:
        super().__init__()
        self.is_resting = False
        self._db = db
        self._worker = worker
        self._activity = activity
        self._tasks = {task: task.report.every_s for task in tasks}
        self._pollers: tuple[Poller, ...] = (worker, *pollers)

    async def activate(self) -> Status:
        """Begin or end a rest, if it is time to."""
        try:
            due_in_s = 0.0 if self._is_used() else await self._db.fetchval(sql.seconds_until_next_due)
        except BaseException:
            self._end()
            raise

        is_due_soon = due_in_s is not None and due_in_s < REST_AT_LEAST_S
        # A request may have come while the database answered.
        if is_due_soon or self._is_used():
            self._end()
        else:
            self._begin()

        return Status({"resting": int(self.is_resting)})

    def _is_used(self) -> bool:
        if self._activity.open or self._worker.busy_slots:
            return True

        used_at = max(self._activity.ended_at, self._worker.ended_at)
        return time.monotonic() - used_at < REST_AFTER_S

    def _begin(self) -> None:
        if self.is_resting:
            return

        self.is_resting = True
        self.report.every_s = LOOK_EVERY_S
        self._activity.on_use = self._end

        for task, every_s in self._tasks.items():
            task.report.every_s = max(every_s, RESTING_TASKS_EVERY_S)

        for poller in self._pollers:
            poller.rest(is_resting=True)

    def _end(self) -> None:
        if not self.is_resting:
            return

        self.is_resting = False
        self.report.every_s = self.every_s
        self._activity.on_use = None

        for task, every_s in self._tasks.items():
            task.report.every_s = every_s
            task.signal.set()

        for poller in self._pollers:
            poller.rest(is_resting=False)
