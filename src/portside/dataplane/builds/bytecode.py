"""Compiled modules of packages, which the builds of a listener share.

Python compiles a module when it is first imported and keeps the result beside it. uv links packages from its cache
without that, so each new environment would compile the same few hundred modules again: more than a second of CPU, which
is half of the start of an agent, and 11 MB.

After a deploy the listener compiles the modules that the agent has imported, in the background, for the builds to come.
It takes only their names from the environment, never what the agent's own process has written.
"""

import asyncio
import os
from pathlib import Path

from portside.dataplane.builds import module_store
from portside.dataplane.builds.commands import BuildCommand, minimal_environment, run
from portside.dataplane.builds.environment import python_path
from portside.dataplane.builds.wheel import packages_folder
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.kernel.logs import get_logger
from portside.kernel.tasks import TaskSet
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
_WITHIN_S = 300.0


class CompiledModules:
    """The store of compiled modules in a folder. It may be removed at any time: it is filled again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks = TaskSet()
        self._turn = asyncio.Lock()

    async def link(self, build: Path) -> None:
        """Link what the store has into the environment of a build. Without it the build is as good, but slower."""
        await self._run("link", build)

    def keep(self, build: Path) -> None:
        """Begin to compile what the agent of a build has imported, one build after the other."""
        self._tasks.spawn(self._fill(build))

    async def wait(self) -> None:
        """Wait until everything has been compiled."""
        await self._tasks.wait()

    async def close(self) -> None:
        """Stop compiling."""
        await self._tasks.cancel()

    async def _fill(self, build: Path) -> None:
        async with self._turn:
            await self._run("fill", build)

    async def _run(self, command: str, build: Path) -> None:
        if not python_path(build).exists():
            return

        packages = packages_folder(build / "venv")
        arguments = [module_store.__file__, command, str(packages), str(self._folder)]
        compile_command = BuildCommand(
            argv=[str(python_path(build)), "-I", "-S", *arguments],
            cwd=build,
            env=minimal_environment(os.environ),
            build=build,
        )

        try:
            async with timeout(_WITHIN_S):
                outcome = await run(compile_command, MaskedOutput(lambda _line: None))
        except (BuildFailed, OSError) as exc:
            # The build was removed meanwhile.
            log.warning("compiled modules are not shared", build=str(build), reason=str(exc))
            return

        if outcome.code > 0:
            log.warning("compiled modules are not shared", build=str(build), reason=" ".join(outcome.tail[-1:]))
