"""One replica: a server process that starts on a private socket and serves the public one on command.

The process inherits four descriptors: a private socket that it serves at once; the deployment's public socket, which it
does not serve yet; the read end of a pipe, on which one byte tells it to start serving; and the socket at which a later
listener may ask for the public one. A replica that only executes runs gets the private socket alone. Its output goes to
a file.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.builds.environment import python_path
from portside.dataplane.builds.node import node_path, node_settings
from portside.dataplane.compute.interface import Build
from portside.dataplane.compute.resource_usage import limit_to_cores
from portside.dataplane.compute.scaling import ServerTier
from portside.dataplane.compute.server_metrics import read_version
from portside.dataplane.compute.server_output import open_output, output_since, server_failure
from portside.dataplane.compute.sockets import StableSocket, is_refused, open_private, probe
from portside.dataplane.failures import DeployFailed, ServerFailed
from portside.dataplane.processes import ProcessIdentity, find_leaders, kill_group, kill_processes
from portside.dataplane.state import DeploymentFolder, ReplicaRecord
from portside.kernel.supervision import describe_exit
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import timeout, wait_at_most

_POLL_S = 0.05
_SLOW_POLL_S = 0.5
_STOP_ACCEPTING_S = 5.0
_VARIABLE = "PORTSIDE_REPLICA_OF"
_TIER = "--tier"
_NO_REVISION = UUID(int=0)


@dataclass(frozen=True)
class ReplicaPlan:
    """How the servers of one revision are started, and their limits."""

    revision_id: UUID
    serve_command: list[str]
    # The graph configuration file.
    config: Path
    env: Mapping[str, str]
    # The file for the output of all its servers.
    output: Path
    start_timeout_s: float
    queue_start_timeout_s: float = 600
    # The cores that its servers may use; empty means all.
    cpus: frozenset[int] = frozenset()
    # In bytes; None means no limit.
    memory: int | None = None
    server_version: str | None = None
    # The folder of the revision's build.
    folder: Path | None = None
    # The version of a server's files that are not in that folder; empty if all of them are.
    server_code: str = ""

    @property
    def fingerprint(self) -> str:
        """A hash of the command and the environment; a replica with another fingerprint is not adopted."""
        parts = [*self.serve_command, str(self.config), *(f"{key}={self.env[key]}" for key in sorted(self.env))]
        if self.server_code:
            # The platform was upgraded: a server that runs has the earlier files.
            parts.append(self.server_code)

        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Replica:
    """A server process. `start` creates one, `adopt` takes over one that an earlier listener started."""

    def __init__(self, plan: ReplicaPlan, record: ReplicaRecord, child: asyncio.subprocess.Process | None) -> None:
        self._plan = plan
        self.record = record
        self._child = child
        self.process = record.process
        self.tier = record.tier
        self.port = record.port
        self.is_older = False

        self.version = plan.server_version
        self.started_at = time.monotonic()
        self._handover_pipe = -1
        self._output_offset = 0

    @classmethod
    async def start(cls, plan: ReplicaPlan, stable: StableSocket, tier: ServerTier, folder: Path) -> "Replica":
        """Start the process; it does not serve the public socket before `hand_over`. Raises DeployFailed.

        A variable names the folder of its deployment, so that `find_replicas` finds the process.
        """
        with contextlib.ExitStack() as temporary, contextlib.ExitStack() as on_failure:
            private = temporary.enter_context(open_private())
            handover_read, handover_write = os.pipe()
            temporary.callback(os.close, handover_read)
            on_failure.callback(os.close, handover_write)

            output, offset = open_output(plan.output)
            temporary.callback(os.close, output)
            port = private.getsockname()[1]
            fds = {"--fd": private.fileno()}

            if tier is not ServerTier.QUEUE:
                fds |= {"--handover-fd": handover_read, "--public-fd": stable.public.fileno()}
                if stable.inheritance is not None:
                    fds["--heir-fd"] = stable.inheritance.fileno()

            child = await _spawn(plan, [_TIER, tier], fds, output, folder)
            on_failure.pop_all()

        # The listener's copy of the private socket is closed by now: once the replica dies, connections are refused.
        identity = ProcessIdentity.find(child.pid) or ProcessIdentity(child.pid, "ended")
        record = ReplicaRecord(
            process=identity,
            revision_id=plan.revision_id,
            tier=tier,
            port=port,
            fingerprint=plan.fingerprint,
            server_code=plan.server_code,
            public_inode=0 if tier is ServerTier.QUEUE else stable.inode,
        )
        replica = cls(plan, record, child)
        replica._handover_pipe = handover_write
        replica._output_offset = offset

        return replica

    @classmethod
    async def adopt(cls, plan: ReplicaPlan, record: ReplicaRecord) -> "Replica | None":
        """Return a replica that an earlier listener started, or None when it does not serve or differs from the plan.

        One that differs only because the platform was upgraded since is older: `roll_forward` replaces it.
        """
        is_older = bool(plan.server_code) and record.server_code != plan.server_code
        if not record.process.is_alive or not (is_older or record.fingerprint == plan.fingerprint):
            return None
        if await probe(record.port, "/ok?serving=1") != 200:
            return None

        replica = cls(plan, record, None)
        if is_older:
            replica.is_older = True
            replica.version = await read_version(record.port)

        return replica

    async def wait_until_ok(self) -> None:
        """Wait until the server answers GET /ok. Raises DeployFailed when it dies first, or takes too long."""
        await self._wait_for("/ok", "answered GET /ok")

    async def hand_over(self) -> None:
        """Tell the server to serve the public socket, and wait until it does. Raises DeployFailed."""
        if self.tier is ServerTier.QUEUE:
            return

        with contextlib.suppress(BrokenPipeError):
            os.write(self._handover_pipe, b"1")

        self._close_handover_pipe()
        await self._wait_for("/ok?serving=1", "served its public address")

    async def wait(self) -> str:
        """Wait for the process to end and describe how it ended."""
        if self._child is not None:
            return describe_exit(await self._child.wait())

        # The listener is not the parent of an adopted replica, so the system does not report its end.
        await self.process.wait()
        return "ended"

    async def stop_accepting(self) -> None:
        """Ask the server to drain, and wait up to five seconds until it refuses connections."""
        self.process.signal(signal.SIGTERM)
        # A server that hangs may not even accept the connection that looks whether it refuses them.
        with contextlib.suppress(TimeoutError):
            async with timeout(_STOP_ACCEPTING_S):
                while not self._has_ended and not await is_refused(self.port):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(_POLL_S)

    async def reap(self, grace_s: float) -> None:
        """Wait for the process to end; after the grace period, or when cancelled, kill it and its children."""
        try:
            await wait_at_most(grace_s, self.wait())
        finally:
            self._close_handover_pipe()
            if self._child is not None:
                # The group may outlive its leader, and while it does the system does not reuse its id.
                kill_group(self._child.pid)

            self.process.kill_group()
            await self.wait()

    @property
    def _has_ended(self) -> bool:
        return not self.process.is_alive if self._child is None else self._child.returncode is not None

    async def _wait_for(self, path: str, what: str) -> None:
        plan = self._plan
        limit_s = plan.queue_start_timeout_s if self.tier is ServerTier.QUEUE else plan.start_timeout_s
        started_at = time.monotonic()
        deadline = started_at + limit_s
        while True:
            probing = asyncio.create_task(probe(self.port, path))
            death = asyncio.create_task(self.wait())
            await _wait_for_first([probing, death], deadline - time.monotonic())

            if probing.done() and not probing.cancelled() and probing.result() == 200:
                return
            if self._has_ended:
                raise self._failure(f"the server {await self.wait()} before it {what}")

            if time.monotonic() >= deadline:
                setting = "QUEUE_START_TIMEOUT_S" if self.tier is ServerTier.QUEUE else "DEPLOYMENT_START_TIMEOUT_S"
                raise self._failure(f"the server has not {what} after {limit_s:g} seconds (setting {setting})")

            # Poll less often over time: after a restart or an outage, all deployments start at once.
            await asyncio.sleep(min(_SLOW_POLL_S, _POLL_S + (time.monotonic() - started_at) / 20))

    def _failure(self, how: str) -> ServerFailed:
        return server_failure(how, output_since(self._plan.output, self._output_offset), self._plan.folder)

    def _close_handover_pipe(self) -> None:
        if self._handover_pipe >= 0:
            os.close(self._handover_pipe)
            self._handover_pipe = -1


def binary_folders(build: Build) -> list[str]:
    """Return the folders of a build's programs, which are first on the PATH of its processes."""
    node = node_path(build.folder)
    return [str(python_path(build.folder).parent), *([str(node.parent)] if node.exists() else [])]


def build_revision_pin(
    revision_id: UUID, build: Build, folder: DeploymentFolder, until: float | None
) -> dict[str, Any]:
    """Return what servers of other revisions need to execute this one's graphs: an entry of PINNED_REVISIONS."""
    node = node_settings(build.folder)
    path = minimal_environment(os.environ)["PATH"]
    return {
        "id": revision_id,
        "config": str(build.config),
        "python": str(python_path(build.folder)),
        "known_graphs": str(folder.known_graphs(revision_id, build.describing_code)),
        "node": node.get("EXECUTOR_NODE"),
        "javascript": node.get("EXECUTOR_JAVASCRIPT"),
        "variables": {
            "PATH": os.pathsep.join([*binary_folders(build), path]),
            "LANGSMITH_HOST_REVISION_ID": str(revision_id),
            "LANGSMITH_LANGGRAPH_GIT_REF_SHA": build.commit,
        },
        "until": until,
    }


def kill_replicas(dataplane: Path) -> None:
    """Kill all replicas with their children, also those that no state file names."""
    kill_processes(_VARIABLE, dataplane)


def find_replicas(dataplane: Path) -> dict[UUID, list[ReplicaRecord]]:
    """Return the running replicas by deployment, also those that no state file names; their children are left out."""
    records: dict[UUID, list[ReplicaRecord]] = defaultdict(list)
    for folder, process in find_leaders(_VARIABLE, dataplane, _TIER):
        with contextlib.suppress(ValueError):
            records[UUID(folder.name)].append(ReplicaRecord(process, _NO_REVISION))

    return records


async def _spawn(
    plan: ReplicaPlan, options: list[str], fds: Mapping[str, int], output: int, folder: Path
) -> asyncio.subprocess.Process:
    options = options + [part for name, number in fds.items() for part in (name, str(number))]
    try:
        process = await asyncio.create_subprocess_exec(
            *plan.serve_command,
            "--config",
            str(plan.config),
            *options,
            cwd=plan.config.parent,
            env={**plan.env, _VARIABLE: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=tuple(fds.values()),
            start_new_session=True,
        )
    except OSError as exc:
        raise DeployFailed(f"the server cannot be started: {exc}") from exc

    if plan.cpus:
        limit_to_cores(process.pid, plan.cpus)

    return process


async def _wait_for_first(tasks: Collection[asyncio.Task[Any]], timeout_s: float) -> None:
    """Wait for the first of the tasks to finish or for the timeout, then cancel all of them."""
    try:
        await asyncio.wait(tasks, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)


async def run_together(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run coroutines concurrently. After the first failure, cancel the others, wait for them, and raise it."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)
