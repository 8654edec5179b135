"""One replica: a server process that is started on a private socket, and takes over the public one when told to.

The process inherits three descriptors: a private socket it serves at once, the deployment's public socket which it
does not serve yet, and the end of a pipe on which one byte tells it to. Its output goes to a file.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from portside.dataplane.compute.output import last_lines, open_output
from portside.dataplane.compute.sockets import is_refused, open_private, probe
from portside.dataplane.failures import DeployFailed
from portside.dataplane.processes import ProcessMark, ending, kill_group

_POLL_S = 0.05
_WITHDRAW_S = 5.0


@dataclass(frozen=True)
class ReplicaPlan:
    """How the servers of one revision are started."""

    revision_id: UUID
    serve_command: list[str]
    config: Path
    env: Mapping[str, str]
    output: Path
    start_timeout_s: float


class Replica:
    """A running server process. `start` makes one."""

    def __init__(self, plan: ReplicaPlan, process: asyncio.subprocess.Process, mark: ProcessMark) -> None:
        self._plan, self._process, self.mark = plan, process, mark
        self._port = 0
        self._handover = -1
        self._output_began = 0

    @classmethod
    async def start(cls, plan: ReplicaPlan, public: socket.socket) -> "Replica":
        """Start the process; it does not serve the public socket before `hand_over`. Raises DeployFailed."""
        private = open_private()
        handover_read, handover_write = os.pipe()
        output, began = open_output(plan.output)
        try:
            fds = {"--fd": private.fileno(), "--handover-fd": handover_read, "--public-fd": public.fileno()}
            process = await _spawn(plan, fds, output)
        except BaseException:
            os.close(handover_write)
            raise
        finally:
            os.close(output)
            os.close(handover_read)
            port = private.getsockname()[1]
            # The replica must be its only owner: when it dies, connections are to be refused.
            private.close()
        replica = cls(plan, process, ProcessMark.of(process.pid) or ProcessMark(process.pid, "ended"))
        replica._port, replica._handover, replica._output_began = port, handover_write, began
        return replica

    async def wait_until_ok(self) -> None:
        """Wait until the server answers GET /ok. Raises DeployFailed when it dies first, or takes too long."""
        await self._wait_for("/ok", "answered GET /ok")

    async def hand_over(self) -> None:
        """Let the server serve the public socket, and wait until it does. Raises DeployFailed."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._handover, b"1")
        self._close_handover()
        await self._wait_for("/ok?serving=1", "served its public address")

    async def wait(self) -> int:
        """Wait for the process to end and return its exit code, negative for a signal."""
        return await self._process.wait()

    async def withdraw(self) -> None:
        """Ask the server to drain, and wait until it accepts no more, for five seconds at most."""
        self.mark.signal(signal.SIGTERM)
        deadline = time.monotonic() + _WITHDRAW_S
        while self._process.returncode is None and time.monotonic() < deadline:
            if await is_refused(self._port):
                return
            await asyncio.sleep(_POLL_S)

    async def end(self, grace_s: float) -> None:
        """Wait for the process to end; kill it and all it started when the grace has passed or this is cancelled."""
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        finally:
            self._close_handover()
            kill_group(self._process.pid)
            await self._process.wait()

    async def _wait_for(self, path: str, what: str) -> None:
        deadline = time.monotonic() + self._plan.start_timeout_s
        while True:
            answer = asyncio.create_task(probe(self._port, path))
            death = asyncio.create_task(self._process.wait())
            await _first_of({answer, death}, deadline - time.monotonic())
            if answer.done() and not answer.cancelled() and answer.result() == 200:
                return
            if self._process.returncode is not None:
                raise DeployFailed(self._reason(f"the server {ending(self._process.returncode)} before it {what}"))
            if time.monotonic() >= deadline:
                seconds = f"{self._plan.start_timeout_s:g} seconds"
                raise DeployFailed(self._reason(f"the server has not {what} after {seconds}"))
            await asyncio.sleep(_POLL_S)

    def _reason(self, what: str) -> str:
        said = last_lines(self._plan.output, self._output_began)
        return f"{what}; it said:\n{said}" if said else f"{what}, and said nothing"

    def _close_handover(self) -> None:
        if self._handover >= 0:
            os.close(self._handover)
            self._handover = -1


async def _spawn(plan: ReplicaPlan, fds: Mapping[str, int], output: int) -> asyncio.subprocess.Process:
    options = [part for name, number in fds.items() for part in (name, str(number))]
    try:
        return await asyncio.create_subprocess_exec(
            *plan.serve_command, "--config", str(plan.config), *options,
            cwd=plan.config.parent, env=plan.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            pass_fds=tuple(fds.values()), start_new_session=True,
        )  # fmt: skip
    except OSError as exc:
        raise DeployFailed(f"the server cannot be started: {exc}") from exc


async def _first_of(tasks: set[asyncio.Task[int]] | set[asyncio.Task[int | None]], timeout_s: float) -> None:
    """Wait for one of the tasks, then end them all."""
    try:
        await asyncio.wait(tasks, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
