"""Threads that continue with the code that began them, although a newer revision of the deployment serves.

`PinnedGraphs` wraps the graphs of this server's revision. It records which revision begins each run. An earlier
revision's executors finish what that revision began on a thread: they make further attempts at its run, execute the
runs that answer its interrupts, and read and change its state meanwhile. They are started on demand, with the code and
the environment of their revision, and end when they are idle. A run on a thread that has nothing left to finish begins
with this server's code.

The listener writes a file (setting PINNED_REVISIONS) with the revisions, and until when threads may continue with each.
The file is read again when it changes. Without this server's own revision in it, nothing is pinned.
"""

import asyncio
import math
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from uuid import UUID

import msgspec

from portside.agent.config import AgentConfig, load_config
from portside.agent.executors.routed_graphs import GraphRequest, RoutedRuns, RoutedStates
from portside.agent.graphs import GraphRuns, GraphService, GraphStates
from portside.agent.problems import PROBLEMS
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.executor.requests import RunRequest, StateCreation
from portside.kernel.db import Database
from portside.kernel.errors import Unavailable, UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
EARLIER_IDLE_S = 300.0
COUNTS_VALID_S = 5.0
LONGEST_PROBLEM = 500
_FILE = "revisions of threads"
StartGraphs = Callable[[AgentConfig, AgentSettings], Awaitable[GraphService]]


class RevisionUnavailable(Unavailable):
    """The thread continues with an earlier revision, whose code cannot be started; the message says why."""

    code = "revision_unavailable"


class PinnedRevision(msgspec.Struct, frozen=True):
    """A revision whose code is on this machine: its configuration file, and the programs that execute its graphs.

    `until` is the Unix time at which threads stop using it, or null. `variables` are those of the revision, which win
    over the server's.
    """

    id: UUID
    config: str
    python: str
    known_graphs: str
    node: str | None = None
    javascript: str | None = None
    variables: dict[str, str] = {}
    until: float | None = None


class RevisionsFile:
    """The revisions of the file by their ids, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, ...] | None = None
        self._revisions: dict[UUID, PinnedRevision] = {}

        # Why the file could not be read last time; empty if it could.
        self._problem = ""

    def check(self) -> None:
        """Raise UserMistake if the file cannot be read: threads would silently continue with other code."""
        try:
            self._load()
        except (OSError, msgspec.MsgspecError) as exc:
            raise UserMistake(f"setting PINNED_REVISIONS: {self._path} cannot be read: {exc}") from exc

    def read(self) -> dict[UUID, PinnedRevision]:
        """Return all revisions. A missing file has none.

        If the file cannot be read, the revisions that were read last stay, and the deployment's status says so.
        """
        try:
            self._load()
            self._problem = ""
            PROBLEMS.forget(_FILE)
        except (OSError, msgspec.MsgspecError) as exc:
            # Logged once: the file is read for every run and every read of a state.
            if str(exc) != self._problem:
                self._problem = str(exc)
                log.warning("the file of pinned revisions cannot be read", path=str(self._path), error=self._problem)

            problem = f"Threads continue with the revisions that were known: {self._path} cannot be read: {exc}"
            PROBLEMS.note(_FILE, problem[:LONGEST_PROBLEM])

        return self._revisions

    def _load(self) -> None:
        try:
            stat = self._path.stat()
            version = stat.st_ino, stat.st_mtime_ns, stat.st_size
            if version != self._version:
                revisions = msgspec.json.decode(self._path.read_bytes(), type=list[PinnedRevision])
                self._version = version
                self._revisions = {revision.id: revision for revision in revisions}
        except FileNotFoundError:
            self._version = None
            self._revisions = {}

    def available(self) -> dict[UUID, PinnedRevision]:
        """Return the revisions that threads may continue with now."""
        now = time.time()
        return {
            revision.id: revision for revision in self.read().values() if revision.until is None or revision.until > now
        }


class PinnedGraphs:
    """A `GraphService` with the graphs of this server's revision, and of earlier ones for the threads that they began.

    `start` starts the executors of a revision.
    """

    def __init__(
        self, graphs: GraphService, config: AgentConfig, settings: AgentSettings, db: Database, start: StartGraphs
    ) -> None:
        assert settings.pinned_revisions is not None  # noqa: S101 - narrows the type
        self.facts = graphs.facts
        self.libraries = graphs.libraries
        self.writer = graphs.writer
        self.pools = graphs.pools
        self.runs: GraphRuns = RoutedRuns(graphs, begin=self._begin, find=self._find)
        self.states: GraphStates = RoutedStates(graphs, find=self._find)
        self.descriptions = graphs.descriptions

        self._graphs = graphs
        self._config = config
        self._settings = settings
        self._db = db
        self._start = start

        self._own_id = UUID(settings.revision_id)
        self._file = RevisionsFile(Path(settings.pinned_revisions))
        self._earlier: dict[UUID, GraphService] = {}
        self._starting: defaultdict[UUID, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._counts: tuple[float, dict[UUID, int]] | None = None

    async def _begin(self, request: RunRequest) -> GraphService:
        """Return the graphs that execute a run, those of its thread's revision, and record which that is.

        Raises RevisionUnavailable.
        """
        available = self._file.available()
        if self._own_id not in available:
            return self._graphs

        revision_id = await self._pin(request, available)
        return await self._get_graphs(revision_id, available)

    async def _pin(self, request: RunRequest, available: Mapping[UUID, PinnedRevision]) -> UUID:
        """Return the revision that a run begins with, and add it to the run's metadata."""
        config = request.config
        row = await self._db.fetchrow(
            sql.pin_thread,
            thread_id=UUID(config["configurable"]["thread_id"]),
            run_id=UUID(config["configurable"]["run_id"]),
            revision_id=self._own_id,
            available=list(available),
        )
        if row is None:
            # The thread was deleted meanwhile.
            return self._own_id

        revision_id: UUID = row["revision_id"]
        config["metadata"] = {**config["metadata"], "revision_id": str(revision_id)}

        previous_id: UUID | None = row["left_revision_id"]
        if previous_id is not None:
            is_expired = previous_id in self._file.read()
            config["metadata"]["left_revision_id"] = str(previous_id)
            log.warning(
                "a thread continues with the code of another revision",
                thread_id=config["configurable"]["thread_id"],
                run_id=config["configurable"]["run_id"],
                revision_id=str(revision_id),
                left_revision_id=str(previous_id),
                reason="the time limit of pin_threads has passed" if is_expired else "its revision was removed",
            )

        return revision_id

    async def _find(self, request: GraphRequest) -> GraphService:
        """Return the graphs of the revision that a request's thread continues with, or this server's own.

        Raises RevisionUnavailable.
        """
        if isinstance(request, StateCreation):
            # New threads begin with this revision.
            return self._graphs

        available = self._file.available()
        if self._own_id not in available or len(available) == 1:
            return self._graphs

        thread_id = UUID(str(request.config["configurable"]["thread_id"]))
        revision_id = await self._db.fetchval(sql.revision_of_thread, thread_id=thread_id)
        return await self._get_graphs(revision_id, available)

    async def _get_graphs(self, revision_id: UUID | None, available: Mapping[UUID, PinnedRevision]) -> GraphService:
        """Return a revision's graphs; this server's own if the revision is not available, or has the same build."""
        revision = None if revision_id == self._own_id or revision_id is None else available.get(revision_id)
        if revision is None or self._is_own_build(revision):
            return self._graphs

        async with self._starting[revision.id]:
            if revision.id not in self._earlier:
                self._earlier[revision.id] = await self._start_earlier(revision)

        return self._earlier[revision.id]

    def _is_own_build(self, revision: PinnedRevision) -> bool:
        return Path(revision.config).resolve() == self._config.file.resolve()

    async def _start_earlier(self, revision: PinnedRevision) -> GraphService:
        log.info("executors of an earlier revision are started", revision_id=str(revision.id))
        try:
            config = load_config(Path(revision.config), os.environ)
            config = msgspec.structs.replace(
                config, overrides={**self._find_hidden_variables(config), **revision.variables}
            )
            settings = msgspec.structs.replace(
                self._settings,
                executors=1,
                executor_spares=0,
                executor_idle_secs=self._settings.executor_idle_secs or EARLIER_IDLE_S,
                executor_python=revision.python,
                executor_known_graphs=revision.known_graphs,
                executor_node=revision.node,
                executor_javascript=revision.javascript,
            )

            graphs = await self._start(config, settings)
        except UserMistake as exc:
            reason = f"revision {revision.id}, whose code cannot be started: {exc}"
            PROBLEMS.note(f"revision {revision.id}", f"Threads continue with {reason}"[:LONGEST_PROBLEM])
            raise RevisionUnavailable(f"the thread continues with {reason}") from exc

        PROBLEMS.forget(f"revision {revision.id}")
        return graphs

    def _find_hidden_variables(self, earlier: AgentConfig) -> dict[str, str]:
        """Return the variables of an earlier configuration file that this server's configuration file would hide."""
        own_env = self._config.env
        hiding = {name for name, value in own_env.items() if os.environ.get(name) == value}
        return {name: value for name, value in earlier.env.items() if name in hiding}

    async def count_threads(self, idle_s: float | None = None) -> dict[UUID, int]:
        """Return how many threads use each revision: those that have runs, or wait for the answer to an interrupt.

        `idle_s` is how long the server has had no work. A count from before that is taken again: the last count before
        a server sleeps must be right.
        """
        age_s = math.inf if self._counts is None else time.monotonic() - self._counts[0]
        if self._counts is None or age_s >= COUNTS_VALID_S or 0 < (idle_s or 0) < age_s:
            counted_at = time.monotonic()
            available = self._file.available()
            rows = await self._db.fetch(sql.count_threads_of_revisions)

            counts = {
                row["revision_id"]: row["busy"] + (row["interrupted"] if row["revision_id"] in available else 0)
                for row in rows
            }

            self._counts = (counted_at, {revision_id: count for revision_id, count in counts.items() if count})

        return self._counts[1]

    async def close_removed(self) -> None:
        """End the executors of revisions that were removed from the file, once they have no work."""
        for revision_id in self._earlier.keys() - self._file.read().keys():
            if not any(executor.calls for pool in self._earlier[revision_id].pools for executor in pool.executors):
                await self._earlier.pop(revision_id).close()

    async def close(self) -> None:
        """End the executors of all revisions."""
        await asyncio.gather(self._graphs.close(), *(graphs.close() for graphs in self._earlier.values()))


class FinishedPins(Task):
    """Deletes the pins of threads that have nothing left to finish, and ends executors of removed revisions."""

    every_s = 15.0
    batch = 500

    def __init__(self, db: Database, graphs: PinnedGraphs) -> None:
        super().__init__()
        self._db = db
        self._graphs = graphs

    async def activate(self) -> Status:
        """Delete one batch."""
        await self._graphs.close_removed()
        deleted = await self._db.execute(sql.delete_finished_pins, limit=self.batch)
        await self._db.execute(sql.delete_orphaned_pins)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)
