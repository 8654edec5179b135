"""A container runtime in memory, for tests without podman and docker: images, registries and containers by their names.

It understands the command lines of `compute/containers/commands.py`. All of its containers answer at one port.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from portside.dataplane.compute.containers.commands import Isolation
from portside.dataplane.compute.containers.runtime import RuntimeCommandFailed


class RunningContainer:
    """A container: what it was started with, and whether it still runs."""

    def __init__(self, container_id: str, arguments: Sequence[str], variables: str) -> None:
        self.id = container_id
        self.image = arguments[-1]
        self.labels = dict(value.split("=", 1) for option, value in pairwise(arguments) if option == "--label")
        self.variables = dict(line.split("=", 1) for line in variables.splitlines())
        self.signals: list[str] = []
        self.exit_code = 0
        self.ended = asyncio.Event()

    def end(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code
        self.ended.set()


class Program:
    """What copies the output of a container until that ends."""

    def __init__(self, container: RunningContainer, *, breaks_off: bool) -> None:
        self._container = container
        self._breaks_off = breaks_off
        self.returncode: int | None = None

    async def wait(self) -> int:
        if not self._breaks_off:
            await self._container.ended.wait()

        self.returncode = 0
        return 0

    def kill(self) -> None:
        self.returncode = -9
        self._container.ended.set()


class ContainerRuntime:
    """Takes the place of `Runtime`. `registry` has what can be pulled, `images` the ids of what is here, by name."""

    def __init__(self, port: int = 0) -> None:
        self.isolation = Isolation("podman", "podman")
        self.host = "10.0.2.2"
        self.gateway = "127.0.0.1"
        self.has_own_files = False
        self.port = port
        self.registry: dict[str, str] = {}
        self.images: dict[str, str] = {}
        self.containers: dict[str, RunningContainer] = {}
        self.pulled: list[str] = []
        # The containers whose output was copied, and whether from its beginning.
        self.followed: list[tuple[str, bool]] = []
        # Whether the next program that copies output ends before its container.
        self.breaks_off = False
        # Images without a name stay until they are removed by their id.
        self.ids: set[str] = set()

    async def run(self, arguments: Sequence[str], *, stdin: bytes = b"", within_s: float = 0) -> str:
        words = 2 if arguments[0] in {"image", "container"} else 1
        command = "_".join(arguments[:words])
        return str(getattr(self, f"_{command}")(arguments[words:], stdin.decode()))

    async def start(self, arguments: Sequence[str], output: int) -> Program:
        _, *options, name = arguments
        self.followed.append((name, "--tail" not in options))
        breaks_off = self.breaks_off
        self.breaks_off = False
        return Program(self._find_container(name), breaks_off=breaks_off)

    def add_image(self, name: str, image_id: str) -> None:
        """Add an image of this machine that has or gets this name."""
        self.images[name] = image_id
        self.ids.add(image_id)

    def _find_image(self, name: str) -> str:
        image_id = self.images.get(name, name)
        if image_id not in self.ids:
            raise RuntimeCommandFailed(f"{name}: no such image")

        return image_id

    def _find_container(self, name: str) -> RunningContainer:
        if name not in self.containers:
            raise RuntimeCommandFailed(f"{name}: no such container")

        return self.containers[name]

    def _image_inspect(self, rest: Sequence[str], _stdin: str) -> str:
        _, form, name = rest
        image_id = self._find_image(name)
        names = [key for key, value in self.images.items() if value == image_id]
        return image_id if form == "{{.Id}}" else " ".join(names)

    def _image_rm(self, rest: Sequence[str], _stdin: str) -> str:
        (name,) = rest
        image_id = self._find_image(name)
        others = [key for key, value in self.images.items() if value == image_id and key != name]
        if not others and any(container.image == image_id for container in self.containers.values()):
            raise RuntimeCommandFailed(f"{name}: a container uses it")

        self.images.pop(name, None)
        if not others:
            self.ids.discard(image_id)

        return image_id

    def _pull(self, rest: Sequence[str], _stdin: str) -> str:
        name = rest[-1]
        if name not in self.registry:
            raise RuntimeCommandFailed(f"{name}: the registry does not have it")

        self.pulled.append(name)
        self.add_image(name, self.registry[name])
        return self.registry[name]

    def _run(self, rest: Sequence[str], stdin: str) -> str:
        name = rest[list(rest).index("--name") + 1]
        self.containers[name] = RunningContainer(name, rest, stdin)
        return name

    def _container_inspect(self, rest: Sequence[str], _stdin: str) -> str:
        return json.dumps([self._describe(self._find_container(name)) for name in rest])

    def _kill(self, rest: Sequence[str], _stdin: str) -> str:
        _, signal, name = rest
        container = self._find_container(name)
        container.signals.append(signal)
        if signal == "KILL":
            container.end(137)

        return name

    def _rm(self, rest: Sequence[str], _stdin: str) -> str:
        container = self._find_container(rest[-1])
        del self.containers[container.id]
        container.ended.set()
        return container.id

    def _ps(self, rest: Sequence[str], _stdin: str) -> str:
        wanted = [value for option, value in pairwise(rest) if option == "--filter"]
        fitting = [name for name, one in self.containers.items() if all(_fits(one, part) for part in wanted)]
        return " ".join(fitting)

    def _describe(self, container: RunningContainer) -> Mapping[str, Any]:
        return {
            "Id": container.id,
            "Config": {"Labels": container.labels},
            "State": {"Running": not container.ended.is_set(), "ExitCode": container.exit_code},
            "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]}},
        }


def _fits(container: RunningContainer, condition: str) -> bool:
    kind, _, value = condition.partition("=")
    if kind == "ancestor":
        return container.image == value

    name, _, text = value.partition("=")
    return container.labels.get(name) == text
