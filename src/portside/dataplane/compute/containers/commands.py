"""The command lines of podman and docker, which agree on all that is used here. Nothing is run by this module.

Values of variables are never part of a command line: they are written to the standard input of `run`.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers.spec import ContainerSpec
from portside.dataplane.failures import DeployFailed

SERVER_PORT = 8000
_LABEL = "portside."
DEPLOYMENT, REVISION, PLAN = f"{_LABEL}deployment", f"{_LABEL}revision", f"{_LABEL}plan"
# Far above what a server needs, and far below what would exhaust the machine.
_MAX_PROCESSES = 4096
_SCRATCH_MB = 1024
# What a container writes is kept by its runtime only until it is read.
_LOG_OPTIONS = {
    "podman": ["--log-driver", "k8s-file", "--log-opt", "max-size=20mb"],
    "docker": ["--log-driver", "local", "--log-opt", "max-size=20m"],
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Confinement:
    """How containers are kept in on this machine; `limits` names what the runtime can bound: cpu, memory, pids."""

    kind: str
    network: str
    is_read_only: bool = True
    own_user_ids: bool = False
    limits: frozenset[str] = frozenset({"cpu", "memory", "pids"})


@dataclass(frozen=True)
class ContainerPlan:
    """One container of a revision, but for its name. `image` is the id it is pinned to."""

    deployment_id: UUID
    revision_id: UUID
    image: str
    spec: ContainerSpec
    env: Mapping[str, str]
    confinement: Confinement

    @property
    def mark(self) -> str:
        """What tells this plan from another one: a container that carries it need not be replaced."""
        parts = (self.image, self.spec, sorted(self.env.items()), self.confinement)
        return hashlib.sha256(msgspec.json.encode(msgspec.to_builtins(parts, order="deterministic"))).hexdigest()[:32]


def run(plan: ContainerPlan, name: str) -> list[str]:
    """Start a container in the background; its id is printed. Variables come in by `environment_file`."""
    labels = {
        **plan.spec.labels,
        DEPLOYMENT: str(plan.deployment_id),
        REVISION: str(plan.revision_id),
        PLAN: plan.mark,
    }
    return [
        "run", "--detach", "--name", name, "--pull", "never",
        *(part for key, value in labels.items() for part in ("--label", f"{key}={value}")),
        "--env-file", "/dev/stdin",
        "--publish", f"127.0.0.1::{SERVER_PORT}", "--network", plan.confinement.network,
        *_LOG_OPTIONS[plan.confinement.kind],
        *_confined(plan.confinement), *_limited(plan), *_scratched(plan),
        plan.image,
    ]  # fmt: skip


def _confined(confinement: Confinement) -> list[str]:
    read_only = ["--read-only"] if confinement.is_read_only else []
    own_ids = ["--userns", "auto"] if confinement.own_user_ids else []
    folders = [part for path in ("/tmp", "/run", "/var/tmp") for part in ("--tmpfs", _tmpfs(path))]  # noqa: S108
    return ["--cap-drop", "all", "--security-opt", "no-new-privileges", *read_only, *own_ids, *folders]


def _tmpfs(path: str) -> str:
    return f"{path}:rw,nosuid,nodev,size={_SCRATCH_MB}m,mode=1777"


def _limited(plan: ContainerPlan) -> list[str]:
    spec, can = plan.spec, plan.confinement.limits
    limits = []
    if spec.cpu_limit is not None and "cpu" in can:
        limits += ["--cpus", f"{spec.cpu_limit:g}"]
    if spec.memory_limit_mb is not None and "memory" in can:
        # Swap as large as memory means none: a server that swaps is slower than one that is started again.
        limits += ["--memory", f"{spec.memory_limit_mb}m", "--memory-swap", f"{spec.memory_limit_mb}m"]
    return [*limits, "--pids-limit", str(_MAX_PROCESSES)] if "pids" in can else limits


def _scratched(plan: ContainerPlan) -> list[str]:
    options = []
    for scratch in plan.spec.scratch:
        ending = ",readonly" if scratch.is_read_only else ""
        options += ["--mount", f"type=volume,destination={scratch.path}{ending}"]
    return options


def environment_file(env: Mapping[str, str]) -> bytes:
    """Write variables as `--env-file` reads them. Raises DeployFailed for what no line of it can hold."""
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise DeployFailed(f"the variable {name!r} cannot be given to a container: its name is none")
        if "\n" in value or "\r" in value:
            raise DeployFailed(
                f"the secret {name!r} spans several lines, which a container's variables cannot; "
                "encode it (base64) and decode it in the program"
            )
    return "".join(f"{name}={value}\n" for name, value in env.items()).encode()


def list_containers(deployment_id: UUID) -> list[str]:
    """Print the ids of all containers of a deployment, those that have ended too."""
    return ["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={DEPLOYMENT}={deployment_id}"]


def list_all() -> list[str]:
    """Print the ids of all containers of this machine."""
    return ["ps", "--all", "--quiet", "--no-trunc"]


def inspect(containers: Sequence[str]) -> list[str]:
    """Print what there is to know of containers, as JSON."""
    return ["container", "inspect", *containers]


def follow(container: str, *, from_start: bool) -> list[str]:
    """Print the output of a container until it ends."""
    return ["logs", "--follow", *([] if from_start else ["--tail", "0"]), container]


def signal(container: str, name: str) -> list[str]:
    """Send a signal to a container's server."""
    return ["kill", "--signal", name, container]


def remove(containers: Sequence[str]) -> list[str]:
    """Remove containers with their volumes; podman lets those that run have their stop time first."""
    return ["rm", "--force", "--volumes", *containers]


def image_id(image: str) -> list[str]:
    """Print the id of an image that is on this machine."""
    return ["image", "inspect", "--format", "{{.Id}}", image]


def remove_image(image: str) -> list[str]:
    """Remove an image that no container uses."""
    return ["image", "rm", image]


def pull(kind: str, image: str) -> list[str]:
    """Fetch an image. Registries on this machine need no TLS; docker knows that by itself."""
    if not image or image.startswith("-") or any(character.isspace() for character in image):
        raise DeployFailed(f"{image!r} is no name of an image")
    plain = ["--tls-verify=false"] if kind == "podman" and is_local(image) else []
    return ["pull", "--quiet", *plain, image]


def has_registry(image: str) -> bool:
    """Whether the name says which registry the image is from; others are first looked for on this machine."""
    registry = _registry(image)
    return registry != "localhost" and ("." in registry or ":" in registry)


def is_local(image: str) -> bool:
    """Whether the image's registry is on this machine."""
    registry = _registry(image)
    host = registry.rpartition(":")[0] if _NUMBER.fullmatch(registry.rpartition(":")[2]) else registry
    return host in {"localhost", "127.0.0.1", "[::1]"}


def _registry(image: str) -> str:
    return image.split("/", 1)[0] if "/" in image else ""
