"""The listener's settings, read from the environment."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from portside.kernel.disk import DiskReserve, ReserveBytes, ReservePercent, make_watched_folder
from portside.kernel.settings import setting


class Layout(StrEnum):
    """Where the agent server of a build runs."""

    # From the platform's own environment. The build has the project and the executor.
    SPLIT = "split"
    # From the build, beside the project.
    COMBINED = "combined"


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one listener runs."""

    control_plane_url: Annotated[str, setting("Address of the control plane.")]
    control_plane_api_key: Annotated[str, setting("API key with the permission `listeners:work`.")]
    portside_home: Annotated[str, setting("Folder for builds, logs and the state of deployments.")]
    control_plane_api_key_file: Annotated[
        str | None,
        setting("File with a newer API key, read when the control plane refuses the current one."),
    ] = None
    provision_database_url: Annotated[
        str | None,
        setting(
            "URL of a Postgres 15 or newer for the deployments' databases, with a role that may create them. Required "
            "for deployments on this machine."
        ),
    ] = None
    deployment_host: Annotated[str, setting("Address that deployments listen on.")] = "127.0.0.1"
    deployment_start_timeout_s: Annotated[
        float, msgspec.Meta(gt=0), setting("How long a new revision may take to answer GET /ok, in seconds.")
    ] = 300
    queue_start_timeout_s: Annotated[
        float,
        msgspec.Meta(gt=0),
        setting("The same limit for replicas that only execute runs, in seconds."),
    ] = 600
    scale_down_after_s: Annotated[
        float,
        msgspec.Meta(ge=0),
        setting("How long a lower number of replicas must have been enough before scaling down to it, in seconds."),
    ] = 1800
    deployment_layout: Annotated[
        Layout,
        setting(
            "Where the agent servers of builds run: split runs them from the platform's environment, and graphs in "
            "executors of the project's; combined installs the agent server beside the project."
        ),
    ] = Layout.SPLIT
    build_timeout_s: Annotated[float, msgspec.Meta(gt=0), setting("Time limit of one build, in seconds.")] = 900
    build_cache_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Largest package caches for builds, in bytes; larger ones are pruned, or emptied if that is not enough. "
            "A cache for Python that UV_CACHE_DIR names is neither counted nor removed."
        ),
    ] = 5_000_000_000
    max_source_bytes: Annotated[
        int,
        msgspec.Meta(ge=1_000_000),
        setting("Largest source that is built, in bytes with its files checked out or unpacked."),
    ] = 1_000_000_000
    disk_reserve_bytes: ReserveBytes = DiskReserve().bytes
    disk_reserve_percent: ReservePercent = DiskReserve().percent
    stop_grace_s: Annotated[
        float, msgspec.Meta(ge=0), setting("How long a replaced server may finish its requests and runs, in seconds.")
    ] = 180
    container_runtime: Annotated[
        Literal["auto", "podman", "docker", "none"],
        setting("Runtime for container images: auto uses podman or docker, whichever works; none refuses images."),
    ] = "auto"
    container_network: Annotated[
        str | None, setting("Network of containers. By default the runtime's own: podman, or docker's bridge.")
    ] = None
    container_host_address: Annotated[
        str | None,
        setting(
            "Name of this machine in containers, if it leads to the loopback interface (Docker Desktop: "
            "host.docker.internal). By default the gateway of their network."
        ),
    ] = None
    container_read_only: Annotated[
        bool, setting("Containers may write to /tmp, /run, /var/tmp and emptyDir volumes only.")
    ] = True
    compute_id: Annotated[str, setting("Name of this compute, unique in its workspace.")] = "local"
    exit_with_parent: Annotated[bool, setting("Stop when the process that started the listener ends.")] = False

    @property
    def disk_reserve(self) -> DiskReserve:
        """How much of the home's disk stays free."""
        return DiskReserve(self.disk_reserve_bytes, self.disk_reserve_percent)

    @property
    def watched_folder(self) -> Path:
        """The folder by which servers watch the home's disk; it is created on first use."""
        return make_watched_folder(Path(self.portside_home).absolute())

    @property
    def disk_environment(self) -> dict[str, str]:
        """The variables with which agent servers on this machine watch the same disk."""
        return {
            "DISK_FOLDER": str(self.watched_folder),
            "DISK_RESERVE_BYTES": str(self.disk_reserve_bytes),
            "DISK_RESERVE_PERCENT": str(self.disk_reserve_percent),
        }

    @property
    def folder(self) -> Path:
        """The folder of all files of the data plane."""
        return Path(self.portside_home).absolute() / "dataplane"
