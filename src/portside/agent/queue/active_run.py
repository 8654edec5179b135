"""One attempt at a run in this process: how far it is, its lease, and what stops it."""

import asyncio
import enum
import time
from collections.abc import Callable

from portside.agent.queue.statements import LEASE_S
from portside.agent.queue.types import Cancellation, ClaimedRun


class AttemptLost(Exception):
    """The executor of a run was lost; the message says how. The run may continue from its last checkpoint.

    `is_counted` is False if the run may not be the cause: then it returns to the queue as after an outage.
    `is_suspect` is True if the run may be the cause; its row records this.
    """

    def __init__(self, reason: str, *, is_counted: bool, is_suspect: bool = False) -> None:
        super().__init__(reason)
        self.is_counted = is_counted
        self.is_suspect = is_suspect


class RunState(enum.Enum):
    """How far a run is in this process."""

    # Claimed. It waits until an earlier attempt at it in this process has stopped.
    STARTING = enum.auto()
    EXECUTING = enum.auto()
    # A client cancelled it. Its nodes are being stopped, then its end is written.
    CANCELLING = enum.auto()
    # Its lease is lost or ran out. Its nodes are being stopped, and nothing is written.
    LOST = enum.auto()
    # Its graph has stopped, and its end is being written.
    ENDING = enum.auto()


class ActiveRun:
    """One attempt at a run that this worker makes, with its lease."""

    task: asyncio.Task[None]

    def __init__(self, claimed: ClaimedRun) -> None:
        self.claimed = claimed
        self.state = RunState.STARTING
        self.cancellation = claimed.cancellation
        self.started_at = time.monotonic()

        # By this process's clock, which continues while the process is paused.
        self.leased_until = self.started_at + LEASE_S
        self.on_renewed: Callable[[], None] = lambda: None
        """Called when the lease was renewed."""
        self._renewal = asyncio.Event()

    @property
    def is_owned(self) -> bool:
        """Whether this worker surely holds the lease: no other worker can have the run."""
        return self.leased_until > time.monotonic()

    async def wait_until_owned(self) -> None:
        """Wait until this worker surely holds the lease. The worker cancels the waiting task when the lease is lost."""
        while not self.is_owned:
            self._renewal.clear()
            await self._renewal.wait()

    def renew(self, leased_until: float) -> None:
        """Note that the lease was renewed."""
        self.leased_until = leased_until
        self._renewal.set()
        self.on_renewed()

    def cancel(self, cancellation: Cancellation) -> None:
        """Stop the run because a client cancelled it; only the first cancellation counts."""
        if self.cancellation is None:
            self.cancellation = cancellation
            if self.state is RunState.EXECUTING:
                self.state = RunState.CANCELLING
                self.task.cancel()

    def lose(self) -> None:
        """Stop the run because another worker owns it or may soon. One whose end is being written is left alone."""
        if self.state in (RunState.EXECUTING, RunState.CANCELLING):
            self.state = RunState.LOST
            self.task.cancel()
