"""One container, from its start to its removal.

Its runtime keeps it whether or not the listener lives; what it writes is copied into the revision's log file by a
program that ends when the container does, which is also how its end is noticed.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers import commands
from portside.dataplane.compute.containers.commands import PLAN, REVISION, SERVER_PORT, ContainerPlan
from portside.dataplane.compute.containers.runtime import CommandFailed, Runtime
from portside.dataplane.compute.output import last_lines, open_output
from portside.dataplane.compute.sockets import probe
from portside.dataplane.failures import DeployFailed

_POLL_S = 0.1
_LOOK_AGAIN_S = 1.0
_KILLED = 137


class Container:
    """A container that was started. `start` makes one, `adopt` takes over one that an earlier listener started."""

    def __init__(self, runtime: Runtime, container_id: str, output: Path, *, is_new: bool) -> None:
        self.id, self.port = container_id, 0
        self._runtime, self._output = runtime, output
        self._began = output.stat().st_size if output.exists() else 0
        self._ended = asyncio.create_task(self._copy_until_end(from_start=is_new))

    @classmethod
    async def start(cls, runtime: Runtime, plan: ContainerPlan, output: Path) -> "Container":
        """Start a container; it serves a private port. Raises DeployFailed."""
        name = f"portside-{plan.revision_id}-{secrets.token_hex(3)}"
        given = commands.environment_file(plan.env)
        try:
            container_id = await _uncut(runtime.run(commands.run(plan, name), given=given))
            port = _port_of(await _look_at(runtime, container_id))
        except BaseException as exc:
            # A start that fails half way leaves a container behind.
            await asyncio.shield(_remove(runtime, name))
            if isinstance(exc, CommandFailed):
                raise DeployFailed(f"the container cannot be started: {exc}") from exc
            raise
        container = cls(runtime, container_id, output, is_new=True)
        container.port = port
        return container

    @classmethod
    def adopt(cls, runtime: Runtime, found: Mapping[str, Any], output: Path) -> "Container":
        """Take over a container that runs."""
        container = cls(runtime, found["Id"], output, is_new=False)
        container.port = _port_of(found)
        return container

    async def wait_until_ok(self, within_s: float) -> None:
        """Wait until its server answers GET /ok. Raises DeployFailed when it ends first, or takes too long."""
        deadline = time.monotonic() + within_s
        while await probe(self.port, "/ok") != 200:
            if self._ended.done():
                raise DeployFailed(self._reason(f"the container {self._ended.result()} before it answered GET /ok"))
            if time.monotonic() > deadline:
                raise DeployFailed(self._reason(f"the container has not answered GET /ok after {within_s:g} seconds"))
            await asyncio.wait({self._ended}, timeout=_POLL_S)

    async def wait(self) -> str:
        """Wait for the container to end, and say how it did."""
        return await asyncio.shield(self._ended)

    async def signal(self, name: str) -> None:
        """Send a signal to its server; a container that has ended needs none."""
        with contextlib.suppress(CommandFailed):
            await self._runtime.run(commands.signal(self.id, name))

    async def end(self, grace_s: float) -> None:
        """Wait at most the grace for the container to end, then remove it."""
        try:
            await asyncio.wait({self._ended}, timeout=max(0.0, grace_s))
        finally:
            await asyncio.shield(self._remove())

    async def _remove(self) -> None:
        await _remove(self._runtime, self.id)
        self._ended.cancel()
        await asyncio.gather(self._ended, return_exceptions=True)

    async def _copy_until_end(self, *, from_start: bool) -> str:
        while True:
            await self._copy(from_start=from_start)
            with contextlib.suppress(CommandFailed):
                state = (await _look_at(self._runtime, self.id))["State"]
                if not state["Running"]:
                    return _ending(state)
            if await self._is_gone():
                return "was removed"
            from_start = False
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _copy(self, *, from_start: bool) -> None:
        descriptor, _length = open_output(self._output)
        try:
            copying = await self._runtime.start(commands.follow(self.id, from_start=from_start), descriptor)
        except CommandFailed:
            return
        finally:
            os.close(descriptor)
        try:
            await copying.wait()
        finally:
            if copying.returncode is None:
                copying.kill()
                await copying.wait()

    async def _is_gone(self) -> bool:
        with contextlib.suppress(CommandFailed):
            return self.id not in (await self._runtime.run(commands.list_all())).split()
        return False

    def _reason(self, what: str) -> str:
        said = last_lines(self._output, self._began)
        return f"{what}; it said:\n{said}" if said else f"{what}, and said nothing"


async def _uncut(command: Coroutine[Any, Any, str]) -> str:
    """Run a command to its end even when it is cancelled: a runtime that is killed in a start keeps its locks."""
    running = asyncio.create_task(command)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


async def find_containers(runtime: Runtime, deployment_id: UUID) -> list[dict[str, Any]]:
    """Return what there is to know of all containers of a deployment. Raises CommandFailed."""
    found = (await runtime.run(commands.list_containers(deployment_id))).split()
    if not found:
        return []
    described: list[dict[str, Any]] = msgspec.json.decode(await runtime.run(commands.inspect(found)))
    return described


async def remove_container(runtime: Runtime, found: Mapping[str, Any]) -> None:
    """Remove a container whatever it does."""
    await _remove(runtime, found["Id"])


def belongs_to(found: Mapping[str, Any], revision_id: UUID) -> bool:
    """Whether a container was started for a revision."""
    return bool(found["Config"]["Labels"].get(REVISION) == str(revision_id))


def carries(found: Mapping[str, Any], plan: ContainerPlan) -> bool:
    """Whether a container runs exactly what the plan says."""
    labels = found["Config"]["Labels"]
    return bool(
        found["State"]["Running"] and (labels.get(REVISION), labels.get(PLAN)) == (str(plan.revision_id), plan.mark)
    )


async def _look_at(runtime: Runtime, container: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = msgspec.json.decode(await runtime.run(commands.inspect([container])))
    return found[0]


async def _remove(runtime: Runtime, container: str) -> None:
    for command in (commands.signal(container, "KILL"), commands.remove([container])):
        with contextlib.suppress(CommandFailed):
            await runtime.run(command)


def _port_of(found: Mapping[str, Any]) -> int:
    """Return the port of this machine that leads to the server; 0 for a container that ended at once."""
    bindings = found["NetworkSettings"]["Ports"].get(f"{SERVER_PORT}/tcp") or []
    return int(bindings[0]["HostPort"]) if bindings else 0


def _ending(state: Mapping[str, Any]) -> str:
    code = state.get("ExitCode")
    if state.get("OOMKilled"):
        return "used more memory than its limit (memory_limit_mb) and was killed"
    # Not every runtime can tell; nothing of ours kills a container that it waits for.
    hint = ", as one is that uses more memory than its limit (memory_limit_mb)" if code == _KILLED else ""
    return f"exited with code {code}{hint}"
