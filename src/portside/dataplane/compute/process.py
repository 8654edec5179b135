"""One replica: a server process that is started on a private socket, and takes over the public one when told to.

The process inherits a private socket it serves at once, the deployment's public socket which it does not serve yet,
the end of a pipe on which one byte tells it to, and the socket at which a later listener may ask for the public one. A
process that only executes runs has the private socket alone. Its output goes to a file.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from portside.dataplane.compute.limits import confine
from portside.dataplane.compute.output import last_lines, open_output
from portside.dataplane.compute.scale import Tier
from portside.dataplane.compute.sockets import Stable, is_refused, open_private, probe
from portside.dataplane.failures import DeployFailed
from portside.dataplane.processes import ProcessMark, ending, kill_group
from portside.dataplane.state import ReplicaRecord

_POLL_S = 0.05
_ADOPTED_POLL_S = 0.2
_WITHDRAW_S = 5.0


@dataclass(frozen=True)
class ReplicaPlan:
    """How the servers of one revision are started, and what each may use: CPUs in whole cores, memory in bytes."""

    revision_id: UUID
    serve_command: list[str]
    config: Path
    env: Mapping[str, str]
    output: Path
    start_timeout_s: float
    queue_start_timeout_s: float = 600
    cpus: frozenset[int] = frozenset()
    memory: int | None = None

    @property
    def fingerprint(self) -> str:
        """What tells servers of this plan from those of another one of the same revision."""
        parts = [*self.serve_command, str(self.config), *(f"{key}={self.env[key]}" for key in sorted(self.env))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Replica:
    """A server process. `start` makes one, `adopt` finds one that an earlier listener started."""

    def __init__(self, plan: ReplicaPlan, record: ReplicaRecord, process: asyncio.subprocess.Process | None) -> None:
        self._plan, self.record, self._process = plan, record, process
        self.mark, self.tier, self.port = record.process, record.tier, record.port
        self.began = time.monotonic()
        self._handover = -1
        self._output_began = 0

    @classmethod
    async def start(cls, plan: ReplicaPlan, stable: Stable, tier: Tier) -> "Replica":
        """Start the process; it does not serve the public socket before `hand_over`. Raises DeployFailed."""
        private = open_private()
        handover_read, handover_write = os.pipe()
        output, began = open_output(plan.output)
        try:
            fds = {"--fd": private.fileno()}
            if tier != "queue":
                fds |= {"--handover-fd": handover_read, "--public-fd": stable.public.fileno()}
                fds |= {"--heir-fd": stable.heir.fileno()} if stable.heir is not None else {}
            process = await _spawn(plan, ["--tier", tier], fds, output)
        except BaseException:
            os.close(handover_write)
            raise
        finally:
            os.close(output)
            os.close(handover_read)
            port = private.getsockname()[1]
            # The replica must be its only owner: when it dies, connections are to be refused.
            private.close()
        mark = ProcessMark.of(process.pid) or ProcessMark(process.pid, "ended")
        record = ReplicaRecord(mark, plan.revision_id, tier, port, plan.fingerprint)
        replica = cls(plan, record, process)
        replica._handover, replica._output_began = handover_write, began
        return replica

    @classmethod
    async def adopt(cls, plan: ReplicaPlan, record: ReplicaRecord) -> "Replica | None":
        """Return a replica of this plan that an earlier listener started, if it serves."""
        if record.fingerprint != plan.fingerprint or not record.process.is_alive:
            return None
        return cls(plan, record, None) if await probe(record.port, "/ok?serving=1") == 200 else None

    async def wait_until_ok(self) -> None:
        """Wait until the server answers GET /ok. Raises DeployFailed when it dies first, or takes too long."""
        await self._wait_for("/ok", "answered GET /ok")

    async def hand_over(self) -> None:
        """Let the server serve the public socket, and wait until it does. Raises DeployFailed."""
        if self.tier == "queue":
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._handover, b"1")
        self._close_handover()
        await self._wait_for("/ok?serving=1", "served its public address")

    async def wait(self) -> str:
        """Wait for the process to end and say how it did."""
        if self._process is not None:
            return ending(await self._process.wait())
        # Only a parent is told of an end.
        while self.mark.is_alive:  # noqa: ASYNC110
            await asyncio.sleep(_ADOPTED_POLL_S)
        return "ended"

    async def withdraw(self) -> None:
        """Ask the server to drain, and wait until it accepts no more, for five seconds at most."""
        self.mark.signal(signal.SIGTERM)
        deadline = time.monotonic() + _WITHDRAW_S
        while not self._has_ended and time.monotonic() < deadline:
            if await is_refused(self.port):
                return
            await asyncio.sleep(_POLL_S)

    async def end(self, grace_s: float) -> None:
        """Wait for the process to end; kill it and all it started when the grace has passed or this is cancelled."""
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_s)
        finally:
            self._close_handover()
            if self._process is not None:
                # Its group may outlive it, and its id is not used again before it has been waited for.
                kill_group(self._process.pid)
            self.mark.kill_group()
            await self.wait()

    @property
    def _has_ended(self) -> bool:
        return not self.mark.is_alive if self._process is None else self._process.returncode is not None

    async def _wait_for(self, path: str, what: str) -> None:
        plan = self._plan
        limit_s = plan.queue_start_timeout_s if self.tier == "queue" else plan.start_timeout_s
        deadline = time.monotonic() + limit_s
        while True:
            answer = asyncio.create_task(probe(self.port, path))
            death = asyncio.create_task(self.wait())
            await _first_of([answer, death], deadline - time.monotonic())
            if answer.done() and not answer.cancelled() and answer.result() == 200:
                return
            if self._has_ended:
                raise DeployFailed(self._reason(f"the server {await self.wait()} before it {what}"))
            if time.monotonic() >= deadline:
                seconds = f"{limit_s:g} seconds"
                raise DeployFailed(self._reason(f"the server has not {what} after {seconds}"))
            await asyncio.sleep(_POLL_S)

    def _reason(self, what: str) -> str:
        said = last_lines(self._plan.output, self._output_began)
        return f"{what}; it said:\n{said}" if said else f"{what}, and said nothing"

    def _close_handover(self) -> None:
        if self._handover >= 0:
            os.close(self._handover)
            self._handover = -1


async def _spawn(
    plan: ReplicaPlan, options: list[str], fds: Mapping[str, int], output: int
) -> asyncio.subprocess.Process:
    options = options + [part for name, number in fds.items() for part in (name, str(number))]
    try:
        process = await asyncio.create_subprocess_exec(
            *plan.serve_command, "--config", str(plan.config), *options,
            cwd=plan.config.parent, env=plan.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            pass_fds=tuple(fds.values()), start_new_session=True,
        )  # fmt: skip
    except OSError as exc:
        raise DeployFailed(f"the server cannot be started: {exc}") from exc
    if plan.cpus:
        confine(process.pid, plan.cpus)
    return process


async def _first_of(tasks: Collection[asyncio.Task[Any]], timeout_s: float) -> None:
    """Wait for one of the tasks, then end them all."""
    try:
        await asyncio.wait(tasks, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
