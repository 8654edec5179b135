"""One replica as a container, from its start to its removal.

The container runtime keeps it running whether or not the listener lives. A program of the runtime copies its output to
the revision's log file. That program ends with the container, which is how the listener notices the end.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers import commands
from portside.dataplane.compute.containers.commands import PLAN_LABEL, REVISION_LABEL, SERVER_PORT, ContainerPlan
from portside.dataplane.compute.containers.runtime import Runtime, RuntimeCommandFailed
from portside.dataplane.compute.server_output import open_output, output_since, server_failure
from portside.dataplane.compute.sockets import probe
from portside.dataplane.failures import DeployFailed, ServerFailed
from portside.kernel.supervision import Supervision
from portside.kernel.tasks import cancel_and_wait

_POLL_S = 0.1
_REOPEN_S = 1.0
_KILLED = 137


class ContainerReplica:
    """A running container. `start` creates one, `adopt` takes over one that an earlier listener started."""

    def __init__(self, runtime: Runtime, container_id: str, output: Path, *, is_new: bool) -> None:
        self.id = container_id
        self.port = 0
        self._runtime = runtime
        self._output = output
        self._output_offset = output.stat().st_size if output.exists() else 0
        copy = partial(self._copy_until_end, from_start=is_new)
        self._ended = asyncio.create_task(Supervision("output of a container").run(copy))

    @classmethod
    async def start(cls, runtime: Runtime, plan: ContainerPlan, output: Path) -> "ContainerReplica":
        """Start a container; it serves a private port. Raises DeployFailed."""
        name = f"portside-{plan.revision_id}-{secrets.token_hex(3)}"
        env_file = commands.environment_file(plan.env)
        try:
            container_id = await _run_to_end(runtime.run(commands.run(plan, name), stdin=env_file))
            port = _read_port(await _inspect(runtime, container_id))
        except BaseException as exc:
            # A start that fails half way leaves a container behind.
            await asyncio.shield(_remove(runtime, name))
            if isinstance(exc, RuntimeCommandFailed):
                raise DeployFailed(f"the container cannot be started: {exc}") from exc

            raise

        container = cls(runtime, container_id, output, is_new=True)
        container.port = port
        return container

    @classmethod
    def adopt(cls, runtime: Runtime, description: Mapping[str, Any], output: Path) -> "ContainerReplica":
        """Take over a running container."""
        container = cls(runtime, description["Id"], output, is_new=False)
        container.port = _read_port(description)
        return container

    async def wait_until_ok(self, within_s: float) -> None:
        """Wait until the server answers GET /ok. Raises DeployFailed when it ends first, or takes too long."""
        deadline = time.monotonic() + within_s
        while await probe(self.port, "/ok") != 200:
            if self._ended.done():
                raise self._failure(f"the container {self._ended.result()} before it answered GET /ok")

            if time.monotonic() > deadline:
                raise self._failure(
                    f"the container has not answered GET /ok after {within_s:g} seconds "
                    "(setting DEPLOYMENT_START_TIMEOUT_S)"
                )

            await asyncio.wait({self._ended}, timeout=_POLL_S)

    async def wait(self) -> str:
        """Wait for the container to end, and describe how it ended."""
        return await asyncio.shield(self._ended)

    async def signal(self, name: str) -> None:
        """Send a signal to the server, if it still runs."""
        with contextlib.suppress(RuntimeCommandFailed):
            await self._runtime.run(commands.signal(self.id, name))

    async def reap(self, grace_s: float) -> None:
        """Wait up to the grace period for the container to end, then remove it."""
        try:
            await asyncio.wait({self._ended}, timeout=max(0.0, grace_s))
        finally:
            await asyncio.shield(self._remove())

    async def _remove(self) -> None:
        await _remove(self._runtime, self.id)
        await cancel_and_wait(self._ended)

    async def _copy_until_end(self, *, from_start: bool) -> str:
        """Copy the output until the container ends; return how it ended."""
        while True:
            await self._copy(from_start=from_start)
            with contextlib.suppress(RuntimeCommandFailed):
                state = (await _inspect(self._runtime, self.id))["State"]
                if not state["Running"]:
                    return _describe_end(state)

            if await self._is_removed():
                return "was removed"

            # The copying program ended before the container did.
            from_start = False
            await asyncio.sleep(_REOPEN_S)

    async def _copy(self, *, from_start: bool) -> None:
        descriptor, _length = open_output(self._output)
        try:
            program = await self._runtime.start(commands.follow(self.id, from_start=from_start), descriptor)
        except RuntimeCommandFailed:
            return
        finally:
            os.close(descriptor)

        try:
            await program.wait()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()

    async def _is_removed(self) -> bool:
        with contextlib.suppress(RuntimeCommandFailed):
            return self.id not in (await self._runtime.run(commands.list_all())).split()
        return False

    def _failure(self, how: str) -> ServerFailed:
        return server_failure(how, output_since(self._output, self._output_offset))


async def _run_to_end(command: Coroutine[Any, Any, str]) -> str:
    """Run a command to its end even when cancelled: a runtime that is killed during a start keeps its locks."""
    task = asyncio.create_task(command)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def find_containers(runtime: Runtime, deployment_id: UUID) -> list[dict[str, Any]]:
    """Return the runtime's descriptions of all containers of a deployment. Raises RuntimeCommandFailed."""
    ids = (await runtime.run(commands.list_containers(deployment_id))).split()
    if not ids:
        return []

    descriptions: list[dict[str, Any]] = msgspec.json.decode(await runtime.run(commands.inspect(ids)))
    return descriptions


async def remove_container(runtime: Runtime, description: Mapping[str, Any]) -> None:
    """Kill and remove a container."""
    await _remove(runtime, description["Id"])


def belongs_to(description: Mapping[str, Any], revision_id: UUID) -> bool:
    """Whether a container was started for a revision."""
    return bool(description["Config"]["Labels"].get(REVISION_LABEL) == str(revision_id))


def matches(description: Mapping[str, Any], plan: ContainerPlan) -> bool:
    """Whether a container runs and was started with this very plan."""
    is_running = bool(description["State"]["Running"])
    has_plan = description["Config"]["Labels"].get(PLAN_LABEL) == plan.fingerprint
    return is_running and has_plan and belongs_to(description, plan.revision_id)


async def _inspect(runtime: Runtime, container: str) -> dict[str, Any]:
    descriptions: list[dict[str, Any]] = msgspec.json.decode(await runtime.run(commands.inspect([container])))
    return descriptions[0]


async def _remove(runtime: Runtime, container: str) -> None:
    # podman's `rm --force` alone would wait for the container's stop timeout.
    for command in (commands.signal(container, "KILL"), commands.remove([container])):
        with contextlib.suppress(RuntimeCommandFailed):
            await runtime.run(command)


def _read_port(description: Mapping[str, Any]) -> int:
    """Return the port of this machine that leads to the server; 0 for a container that ended at once."""
    bindings = description["NetworkSettings"]["Ports"].get(f"{SERVER_PORT}/tcp") or []
    return int(bindings[0]["HostPort"]) if bindings else 0


def _describe_end(state: Mapping[str, Any]) -> str:
    code = state.get("ExitCode")
    if state.get("OOMKilled"):
        return "used more memory than its limit (memory_limit_mb) and was killed"

    # Not every runtime reports OOMKilled. The listener itself kills no container that it still waits for.
    hint = ", which usually means that it used more memory than its limit (memory_limit_mb)" if code == _KILLED else ""
    return f"exited with code {code}{hint}"
