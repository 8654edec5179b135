"""The command lines of podman and docker that start and manage the containers of a revision. Nothing runs here.

podman and docker agree on everything used here. The values of variables are never part of a command line: they are
written to the standard input of `run`.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers.spec import ContainerSpec
from portside.dataplane.failures import DeployFailed
from portside.kernel.local_addresses import is_loopback

SERVER_PORT = 8000
# Older listeners set these labels too, so their names must not change.
DEPLOYMENT_LABEL = "portside.deployment"
REVISION_LABEL = "portside.revision"
PLAN_LABEL = "portside.plan"
# Far above what a server needs, and far below what would exhaust the machine.
_MAX_PROCESSES = 4096
_SCRATCH_MB = 1024
WATCHED_DISK = "/portside/disk"
"""Where a container sees the folder by which servers watch the disk of this machine."""
# The runtime keeps the output of a container only until the listener has read it.
_LOG_OPTIONS = {
    "podman": ["--log-driver", "k8s-file", "--log-opt", "max-size=20mb"],
    "docker": ["--log-driver", "local", "--log-opt", "max-size=20m"],
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Isolation:
    """How containers are isolated on this machine; `limits` are the limits that the runtime supports."""

    kind: str
    network: str
    is_read_only: bool = True
    own_user_ids: bool = False
    limits: frozenset[str] = frozenset({"cpu", "memory", "pids"})


@dataclass(frozen=True)
class ContainerPlan:
    """One container of a revision except for its name."""

    deployment_id: UUID
    revision_id: UUID
    # The id of the image that the revision is pinned to.
    image: str
    spec: ContainerSpec
    env: Mapping[str, str]
    isolation: Isolation
    # A folder of this machine by whose disk the server sees how full the database's is.
    disk_folder: str | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of the plan; a container with another fingerprint is not adopted."""
        disk = () if self.disk_folder is None else (self.disk_folder,)
        parts = (self.image, self.spec, sorted(self.env.items()), self.isolation, *disk)
        return hashlib.sha256(msgspec.json.encode(msgspec.to_builtins(parts, order="deterministic"))).hexdigest()[:32]


def run(plan: ContainerPlan, name: str) -> list[str]:
    """Start a container in the background and print its id; standard input is its `environment_file`."""
    labels = {
        **plan.spec.labels,
        DEPLOYMENT_LABEL: str(plan.deployment_id),
        REVISION_LABEL: str(plan.revision_id),
        PLAN_LABEL: plan.fingerprint,
    }

    return [
        "run",
        "--detach",
        "--name",
        name,
        "--pull",
        "never",
        *(part for key, value in labels.items() for part in ("--label", f"{key}={value}")),
        "--env-file",
        "/dev/stdin",
        "--publish",
        f"127.0.0.1::{SERVER_PORT}",
        "--network",
        plan.isolation.network,
        *_LOG_OPTIONS[plan.isolation.kind],
        *_isolation_options(plan.isolation),
        *_limit_options(plan),
        *_volume_options(plan),
        plan.image,
    ]


def _isolation_options(isolation: Isolation) -> list[str]:
    read_only = ["--read-only"] if isolation.is_read_only else []
    own_ids = ["--userns", "auto"] if isolation.own_user_ids else []
    folders = [part for path in ("/tmp", "/run", "/var/tmp") for part in ("--tmpfs", _tmpfs(path))]  # noqa: S108
    return ["--cap-drop", "all", "--security-opt", "no-new-privileges", *read_only, *own_ids, *folders]


def _tmpfs(path: str) -> str:
    return f"{path}:rw,nosuid,nodev,size={_SCRATCH_MB}m,mode=1777"


def _limit_options(plan: ContainerPlan) -> list[str]:
    spec = plan.spec
    supported = plan.isolation.limits
    limits = []

    if spec.cpu_limit is not None and "cpu" in supported:
        limits += ["--cpus", f"{spec.cpu_limit:g}"]

    if spec.memory_limit_mb is not None and "memory" in supported:
        # An equal --memory-swap disables swap: a server that swaps is slower than one that is restarted.
        limits += ["--memory", f"{spec.memory_limit_mb}m", "--memory-swap", f"{spec.memory_limit_mb}m"]

    return [*limits, "--pids-limit", str(_MAX_PROCESSES)] if "pids" in supported else limits


def _volume_options(plan: ContainerPlan) -> list[str]:
    options: list[str] = []
    if plan.disk_folder is not None:
        options += ["--mount", f"type=bind,source={plan.disk_folder},destination={WATCHED_DISK},readonly"]

    for scratch in plan.spec.scratch:
        read_only = ",readonly" if scratch.is_read_only else ""
        options += ["--mount", f"type=volume,destination={scratch.path}{read_only}"]

    return options


def environment_file(env: Mapping[str, str]) -> bytes:
    """Write variables in the format of `--env-file`. Raises DeployFailed for those that the format cannot hold."""
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise DeployFailed(f"{name!r} is not a valid name for a container's variable; rename it")

        if "\n" in value or "\r" in value:
            raise DeployFailed(
                f"the secret {name!r} has several lines, which a container's variable cannot have; "
                "encode it (base64) and decode it in the program"
            )

    return "".join(f"{name}={value}\n" for name, value in env.items()).encode()


def list_containers(deployment_id: UUID) -> list[str]:
    """Print the ids of all containers of a deployment, also of those that have ended."""
    return ["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={DEPLOYMENT_LABEL}={deployment_id}"]


def list_all() -> list[str]:
    """Print the ids of all containers of this machine."""
    return ["ps", "--all", "--quiet", "--no-trunc"]


def inspect(containers: Sequence[str]) -> list[str]:
    """Print descriptions of containers as JSON."""
    return ["container", "inspect", *containers]


def follow(container: str, *, from_start: bool) -> list[str]:
    """Print the output of a container until it ends."""
    return ["logs", "--follow", *([] if from_start else ["--tail", "0"]), container]


def signal(container: str, name: str) -> list[str]:
    """Send a signal to a container's server."""
    return ["kill", "--signal", name, container]


def remove(containers: Sequence[str]) -> list[str]:
    """Remove containers with their volumes; podman waits for the stop timeout of those that run."""
    return ["rm", "--force", "--volumes", *containers]


def image_id(image: str) -> list[str]:
    """Print the id of an image on this machine."""
    return ["image", "inspect", "--format", "{{.Id}}", image]


def image_names(image: str) -> list[str]:
    """Print the names of an image on this machine, or nothing if it has none."""
    return ["image", "inspect", "--format", "{{range .RepoTags}}{{.}} {{end}}", image]


def list_containers_using(image: str) -> list[str]:
    """Print the ids of all containers that use an image, also of those that have ended."""
    return ["ps", "--all", "--quiet", "--filter", f"ancestor={image}"]


def remove_image(image: str) -> list[str]:
    """Remove an image; while a container uses it, the runtime refuses that, or takes only the name away."""
    return ["image", "rm", image]


def pull(kind: str, image: str) -> list[str]:
    """Pull an image. A registry on this machine needs no TLS, which docker knows by itself and podman does not."""
    if not image or image.startswith("-") or any(character.isspace() for character in image):
        raise DeployFailed(f"{image!r} is not a valid image name; set source_revision_config.image_uri")

    plain = ["--tls-verify=false"] if kind == "podman" and is_local(image) else []
    return ["pull", "--quiet", *plain, image]


def has_registry(image: str) -> bool:
    """Whether the name includes a registry; an image without one is first looked up on this machine."""
    registry = _registry(image)
    return registry != "localhost" and ("." in registry or ":" in registry)


def is_local(image: str) -> bool:
    """Whether the image's registry runs on this machine."""
    registry = _registry(image)
    host, _colon, port = registry.rpartition(":")
    if not _NUMBER.fullmatch(port):
        host = registry

    return is_loopback(host)


def _registry(image: str) -> str:
    return image.split("/", 1)[0] if "/" in image else ""
