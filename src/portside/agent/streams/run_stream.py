"""The stream of one run in this process: its events, and whether it has started and ended, for clients that wait.

The events are kept in the run's segment of the thread's event log (`event_log`).
"""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID
from weakref import WeakSet

from portside.agent.streams.event_log import EventLog, LogSubscription, RunView
from portside.agent.streams.events import LOST_EVENTS, REPLAY_ALL, EventClock, StreamEvent, parse_event_id
from portside.agent.streams.history import Cursor

_ALWAYS_SENT = frozenset({"error"})


class RunStream:
    """The events and the progress of one run.

    A resumable run keeps its events, so that a client can reconnect with the id of the last one it saw. Above the limit
    the oldest are evicted: a client that reconnects from before them gets the rest.
    """

    def __init__(self, run_id: UUID, log: EventLog, clock: EventClock, *, is_resumable: bool) -> None:
        self.run_id = run_id
        self.log = log
        self._clock = clock

        self.segment = log.segment(run_id)
        if is_resumable:
            self.segment.make_resumable()

        self.is_temporary = False
        self.is_started = False
        self.is_local = False

        # The stream ended here, but the run continues without this process.
        self.is_cut = False
        # Most likely the run will start here, so a client that waits need not ask the database yet.
        self.is_admitted_here = False

        # A client of this process waits for a stateless run that starts here. Others find it only by a search for runs.
        self.is_private = False
        # Whether all earlier events from other processes are here, so that new ones can be taken as they come.
        self.is_complete = bool(self.segment.last_id)

        # Keeps the subscription to other processes alive.
        self.remote: object = None
        self.ended = asyncio.Event()

        # The worker's result, for clients that wait for it; None if another process ended or continues the run.
        self.result: Any = None
        # The graph's name, if the start of the run was announced.
        self.graph_id: str | None = None

        # Called when the run starts, or ends without having started.
        self.on_start: Callable[[], None] | None = None
        self._changed = asyncio.Event()

    def mark_admitted(self, *, starts_here: bool, is_private: bool = False) -> None:
        """Note that this process admitted the run, and whether its own worker starts it at once.

        Other processes get no notification of a private run: its client waits here, and its thread ends with it.
        """
        self.is_local = starts_here
        self.is_admitted_here = True
        self.is_private = starts_here and is_private

    def begin(self, *, is_temporary: bool, is_resumable: bool) -> None:
        """Note that this process executes the run from now on."""
        self.is_temporary = is_temporary
        self.is_local = True
        if is_resumable:
            self.segment.make_resumable()

    def continue_elsewhere(self, remote: object) -> None:
        """Note that another process continues with the run; its events come from a subscription."""
        # Until now the events were this process's own, so none from elsewhere are missing.
        self.is_local = False
        self.is_complete = True
        self.remote = remote

    def publish(self, events: list[tuple[str, bytes]]) -> None:
        """Send events, as names and JSON, to every follower of the run and of its thread."""
        self.mark_started()
        self.log.append(self.run_id, [StreamEvent(name, self._clock.next(), data) for name, data in events])

    def mark_started(self) -> None:
        """Note that the run has started; wake the clients that wait for it."""
        if not self.is_started:
            self.is_started = True
            self.wake()

    def fail_followers(self) -> None:
        """End the followers with an error: events were lost on their way. The run continues."""
        for follower in self.followers():
            follower.fail(LOST_EVENTS)

        self.segment.followers = None

    def end(self, result: object = None) -> None:
        """End the stream: no event follows. `result` is that of a run which ended in this process."""
        if result is not None:
            self.result = result

        self.ended.set()
        self.wake()

        for follower in self.followers():
            follower.end()

        self.segment.followers = None

    def cut(self) -> None:
        """End the stream although the run continues: followers raise StreamCut, and their clients join again."""
        self.is_cut = True
        for follower in self.followers():
            follower.cut()

        self.end()

    @property
    def has_listeners(self) -> bool:
        """Whether anybody follows the run or its thread, or may want earlier events. Safe to call in any thread."""
        can_be_joined_later = self.segment.is_resumable or not self.is_temporary
        if can_be_joined_later or self.segment.followers:
            return True

        return self.log.has_listeners(self.run_id, among_others=True)

    def wake(self) -> None:
        """Wake every task that waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
        if self.on_start is not None and (self.is_started or self.ended.is_set()):
            self.on_start()
            self.on_start = None

    @property
    def change(self) -> asyncio.Event:
        """The event of the next change: the run starts or ends, or `wake` is called for another reason.

        Take it before you look at the run, and wait for it afterwards: then no change is missed in between.
        """
        return self._changed

    def followers(self) -> list[LogSubscription]:
        """Return the followers of the run."""
        return list(self.segment.followers or ())

    def follow(self, *, after: str | None = None, modes: frozenset[str] | None = None) -> LogSubscription:
        """Follow the run from now on, or from after a kept event; an `after` that is not an id gives no events."""
        is_resumable = self.segment.is_resumable
        view = RunView(self.segment, modes=None if modes is None else modes | _ALWAYS_SENT, with_ids=is_resumable)
        subscription = LogSubscription(self.log, view)

        is_id = after is not None and (after in REPLAY_ALL or parse_event_id(after) is not None)
        if after is not None and is_id and is_resumable:
            position = None if after in REPLAY_ALL else parse_event_id(after)
            if self.segment.has_after(position):
                subscription.cursor = Cursor(self.segment, after=position)

        if self.is_cut:
            subscription.cut()
        elif self.ended.is_set() or (after is not None and not is_id and is_resumable):
            subscription.end()
        else:
            if self.segment.followers is None:
                self.segment.followers = WeakSet()

            self.segment.followers.add(subscription)

        return subscription
