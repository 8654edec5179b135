"""Finds podman or docker on this machine and runs its commands, each with a time limit.

The programs get few of the listener's variables, because podman's monitor process lives as long as its container. The
monitor also writes a file into its working folder when memory runs out, so commands run in the temporary folder.
"""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import msgspec

from portside.dataplane.compute.containers.commands import Isolation
from portside.dataplane.failures import DeployFailed
from portside.dataplane.settings import ListenerSettings
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
_COMMAND_S = 120.0
_INFO_S = 20.0
_MAX_OUTPUT = 16_000_000
_SHOWN_ERROR = 2000
_KINDS = ("podman", "docker")
_PASSED_ON = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TMPDIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    }
)
_PASSED_ON_PREFIXES = ("XDG_", "DOCKER_", "CONTAINERS_", "CONTAINER_HOST", "REGISTRY_AUTH_FILE", "STORAGE_")
_ID_RANGES = (Path("/etc/subuid"), Path("/etc/subgid"))
# A network of rootless podman in which this machine's loopback interface has its own address.
_ROOTLESS_NETWORK = "slirp4netns:allow_host_loopback=true"
_ROOTLESS_HOST = "10.0.2.2"


class RuntimeCommandFailed(Exception):
    """A command of the container runtime failed; the message is its error output."""


@dataclass(frozen=True)
class Runtime:
    """A container runtime. `host` is the name of this machine in containers; `gateway` is where it listens for them.

    `has_own_files` is whether containers run elsewhere, such as in a virtual machine, and see no folder of this one.
    """

    program: str
    isolation: Isolation
    host: str
    gateway: str
    has_own_files: bool = False

    async def run(self, arguments: Sequence[str], *, stdin: bytes = b"", within_s: float = _COMMAND_S) -> str:
        """Run a command and return its output. Raises RuntimeCommandFailed."""
        return await _run([self.program, *arguments], stdin, within_s)

    async def start(self, arguments: Sequence[str], output: int) -> asyncio.subprocess.Process:
        """Start a command that writes its output to a descriptor. Raises RuntimeCommandFailed."""
        try:
            return await asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                env=select_variables(os.environ),
                cwd=gettempdir(),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except OSError as exc:
            raise RuntimeCommandFailed(f"{self.program}: {exc.strerror}") from exc


async def find_runtime(settings: ListenerSettings) -> Runtime:
    """Return the runtime that the settings choose, or the first that works. Raises DeployFailed without any."""
    kind_setting = settings.container_runtime
    if kind_setting == "none":
        raise DeployFailed("this listener runs no container images: its setting CONTAINER_RUNTIME is none")

    reasons = []
    for kind in _KINDS if kind_setting == "auto" else (kind_setting,):
        program = shutil.which(kind)
        if program is None:
            reasons.append(f"{kind} is not installed")
            continue

        try:
            return await _describe(kind, program, settings)
        except (RuntimeCommandFailed, msgspec.MsgspecError, LookupError, TypeError) as exc:
            reasons.append(f"{kind} does not work: {exc}")

    raise DeployFailed(
        f"this machine cannot run container images: {'; '.join(reasons)}. Install podman or docker there"
    )


def select_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a container runtime needs, and nothing of the listener's own."""
    return {
        name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }


async def _describe(kind: str, program: str, settings: ListenerSettings) -> Runtime:
    async def query(*arguments: str) -> Any:
        return msgspec.json.decode(await _run([program, *arguments], b"", _INFO_S))

    host = (await query("info", "--format", "{{json .Host}}")) if kind == "podman" else None
    is_rootless = bool(host and host["security"]["rootless"])
    network = settings.container_network or _default_network(kind, is_rootless=is_rootless)

    isolation = Isolation(
        kind,
        network,
        is_read_only=settings.container_read_only,
        own_user_ids=host is not None and not is_rootless and _has_id_ranges(),
        limits=_find_limits(host, is_rootless=is_rootless),
    )

    gateway = "127.0.0.1"
    if settings.container_host_address is not None:
        address = settings.container_host_address
    elif is_rootless:
        address = _ROOTLESS_HOST
    else:
        networks = await query("network", "inspect", network)
        gateway = _read_gateway(networks[0])
        address = gateway

    has_own_files = settings.container_host_address is not None or _is_remote() or sys.platform != "linux"
    runtime = Runtime(program, isolation, host=address, gateway=gateway, has_own_files=has_own_files)

    log.info("found a container runtime", runtime=kind, network=network, rootless=is_rootless)
    return runtime


def _is_remote() -> bool:
    """Whether the runtime's own variables name a server that is not on this machine."""
    hosts = (os.environ.get(name, "unix:") for name in ("DOCKER_HOST", "CONTAINER_HOST"))
    return any(not host.startswith("unix:") for host in hosts)


def _default_network(kind: str, *, is_rootless: bool) -> str:
    if is_rootless:
        return _ROOTLESS_NETWORK
    return "podman" if kind == "podman" else "bridge"


def _read_gateway(network: Mapping[str, Any]) -> str:
    """Return the address of this machine in a network, as podman or docker describe it. Raises LookupError."""
    subnets = network.get("subnets") or (network.get("IPAM") or {}).get("Config") or []
    for subnet in subnets:
        address: str | None = subnet.get("gateway") or subnet.get("Gateway")
        if address and ":" not in address:
            return address

    raise LookupError(f"the network {network.get('name', network.get('Name'))!r} has no gateway; set CONTAINER_NETWORK")


def _find_limits(host: Mapping[str, Any] | None, *, is_rootless: bool) -> frozenset[str]:
    """Return which limits of a container the runtime can apply."""
    limits = frozenset({"cpu", "memory", "pids"})
    if host is None or not is_rootless:
        return limits
    if host.get("cgroupVersion") != "v2":
        return frozenset()

    return limits & frozenset(host.get("cgroupControllers") or [])


def _has_id_ranges() -> bool:
    """Whether podman may give each container its own user ids (`--userns auto`)."""
    with contextlib.suppress(OSError):
        return all(_names_containers(file) for file in _ID_RANGES)

    return False


def _names_containers(file: Path) -> bool:
    return any(line.startswith("containers:") for line in file.read_text().splitlines())


async def _run(argv: Sequence[str], stdin: bytes, within_s: float) -> str:
    # Files instead of pipes: an event loop may use sockets for pipes, which `--env-file /dev/stdin` cannot open, and a
    # container's monitor, which keeps running, may hold the write end of a pipe open.
    with _anonymous_file(stdin) as source, _anonymous_file() as output, _anonymous_file() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=select_variables(os.environ),
                cwd=gettempdir(),
                start_new_session=True,
                stdin=source,
                stdout=output,
                stderr=errors,
            )
        except OSError as exc:
            raise RuntimeCommandFailed(f"{argv[0]}: {exc.strerror}") from exc

        try:
            async with timeout(within_s):
                code = await process.wait()
        except TimeoutError as exc:
            raise RuntimeCommandFailed(f"{Path(argv[0]).name} {argv[1]} took longer than {within_s:g} seconds") from exc
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

        if code != 0:
            raise RuntimeCommandFailed(
                _text(errors)[-_SHOWN_ERROR:] or f"{Path(argv[0]).name} {argv[1]}: exit code {code}"
            )

        return _text(output)


def _anonymous_file(content: bytes = b"") -> IO[bytes]:
    """Create a file without a name, which no other user can open."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("portside"), "w+b")
    else:
        file = TemporaryFile()  # noqa: SIM115 - the caller closes it

    file.write(content)
    file.seek(0)
    return file


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MAX_OUTPUT).decode("utf-8", "replace").strip()
