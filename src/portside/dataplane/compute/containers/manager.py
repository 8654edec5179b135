"""The containers of one deployment, and what all deployments of a listener share for them.

The container runtime is looked up when the first image is to run, and again until one is found: a listener that only
builds from source needs none.
"""

import asyncio
import socket
from uuid import UUID

from portside.dataplane.compute.containers.commands import SERVER_PORT, WATCHED_DISK, ContainerPlan
from portside.dataplane.compute.containers.container import find_containers, remove_container
from portside.dataplane.compute.containers.images import ImageStore
from portside.dataplane.compute.containers.replica_set import ContainerRelease, ContainerReplicaSet, PreparedContainers
from portside.dataplane.compute.containers.runtime import Runtime, find_runtime
from portside.dataplane.compute.containers.spec import read_executors, read_spec
from portside.dataplane.compute.forwarding import PortForwards
from portside.dataplane.compute.interface import OpenLog, Release
from portside.dataplane.compute.start_queue import NO_QUEUE, Slot
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder


class ContainerHost:
    """What the image deployments of one listener share: the container runtime and the forwarded ports."""

    def __init__(self, settings: ListenerSettings) -> None:
        self.settings = settings
        # The file keeps the name that older listeners gave it.
        self.port_forwards = PortForwards(settings.folder / "passages.json")
        self._runtime: Runtime | None = None
        self._lookup = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """Return the container runtime of this machine. Raises DeployFailed when it has none."""
        async with self._lookup:
            if self._runtime is None:
                self._runtime = await find_runtime(self.settings)
            return self._runtime

    def close(self) -> None:
        """Close the forwarded ports."""
        self.port_forwards.close()


class ContainerManager:
    """The containers and images of one deployment."""

    def __init__(self, host: ContainerHost, deployment_id: UUID, folder: DeploymentFolder) -> None:
        self._host = host
        self._deployment_id = deployment_id
        self._folder = folder
        self._images = ImageStore(folder.path, host.settings.build_timeout_s)

    def replica_set(
        self, release: Release, database_url: str, public: socket.socket, open_log: OpenLog, slot: Slot = NO_QUEUE
    ) -> ContainerReplicaSet:
        """Return the replica set of a release; starts nothing yet. Each start of a container waits for a `slot`."""
        revision_id = release.revision.id

        async def prepare(log: RevisionLog) -> PreparedContainers:
            return await self._prepare(release, database_url, log)

        secrets = [secret.value for secret in release.revision.secrets]
        log = open_log(revision_id)
        log.hide(secrets)

        containers = ContainerRelease(
            revision_id=revision_id,
            prepare=prepare,
            output=self._folder.server_log(revision_id),
            start_timeout_s=self._host.settings.deployment_start_timeout_s,
            secrets=secrets,
            slot=slot,
        )

        return ContainerReplicaSet(containers, public, log)

    async def remove_unused_images(self, used_ids: set[UUID]) -> None:
        """Remove the images that were pulled for other revisions than the kept ones. Raises DeployFailed."""
        if not self._images.is_empty:
            await self._images.remove_unused(await self._host.runtime(), used_ids)

    async def clear(self) -> None:
        """Remove all containers of the deployment, and the images that were pulled for it."""
        if self._images.is_empty:
            return

        runtime = await self._host.runtime()
        for description in await find_containers(runtime, self._deployment_id):
            await remove_container(runtime, description)

        await self._images.remove_pulled(runtime)

    async def _prepare(self, release: Release, database_url: str, log: RevisionLog) -> PreparedContainers:
        """Make the plan of a release, and fetch its image. Raises DeployFailed."""
        revision = release.revision
        if revision.secret_references:
            raise DeployFailed(
                "secret_references name secrets of Kubernetes, which this machine does not have; give the deployment "
                "secrets with values instead"
            )

        spec = read_spec(revision.resource_spec)
        runtime = await self._host.runtime()
        image = await self._images.pin(runtime, revision, log)
        env = await self._environment(release, database_url, runtime)

        for limit in sorted({"cpu", "memory"} - runtime.isolation.limits):
            log.add(f"This machine cannot limit the {limit} of containers; the limit is not applied", "WARNING")

        plan = ContainerPlan(
            deployment_id=self._deployment_id,
            revision_id=revision.id,
            image=image,
            spec=spec,
            env=env,
            isolation=runtime.isolation,
            disk_folder=self._watched_folder(runtime),
        )

        return PreparedContainers(runtime, plan)

    async def _environment(self, release: Release, database_url: str, runtime: Runtime) -> dict[str, str]:
        """Return the variables of a release's containers; later entries win. Raises DeployFailed.

        Nothing of the listener's own environment is in it.
        """
        forwards = self._host.port_forwards
        revision = release.revision
        executors = read_executors(revision.resource_spec)

        async def reachable(url: str) -> str:
            return await forwards.reachable_url(url, runtime.host, runtime.gateway)

        database = await reachable(database_url)
        return {
            # The only folder that is certainly writable. An image that needs another one sets HOME in its command.
            **({"HOME": "/tmp"} if runtime.isolation.is_read_only else {}),  # noqa: S108 - a file system of its own
            **{name: await reachable(value) for name, value in release.deployment.environment.items()},
            **revision.secret_values,
            "PYTHONUNBUFFERED": "1",
            "LOG_JSON": "true",
            "DATABASE_URI": database,
            "POSTGRES_URI": database,
            "PORT": str(SERVER_PORT),
            # All addresses of the container; its port is published on this machine's loopback interface only.
            "GRAPH_SERVER_HOST": "0.0.0.0",  # noqa: S104
            "LANGSMITH_HOST_REVISION_ID": str(revision.id),
            **self._disk_environment(runtime),
            **(executors.environment if executors is not None else {}),
        }

    def _watched_folder(self, runtime: Runtime) -> str | None:
        """Return the folder that containers see to watch this machine's disk; None if they cannot."""
        folder = str(self._host.settings.watched_folder)
        # A mount is given as fields between commas.
        return None if runtime.has_own_files or "," in folder else folder

    def _disk_environment(self, runtime: Runtime) -> dict[str, str]:
        if self._watched_folder(runtime) is None:
            return {}
        return {**self._host.settings.disk_environment, "DISK_FOLDER": WATCHED_DISK}
