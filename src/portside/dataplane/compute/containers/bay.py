"""The containers of one machine: what its deployments of images share, and each deployment's way to a fleet.

The runtime is looked for when the first image is to run, and again until one is found: a listener whose deployments
are all built from sources needs none.
"""

import asyncio
import contextlib
import socket
from uuid import UUID

from portside.dataplane.compute.containers.commands import ContainerPlan
from portside.dataplane.compute.containers.container import find_containers, remove_container
from portside.dataplane.compute.containers.environment import container_environment
from portside.dataplane.compute.containers.fleet import ContainerFleet, Order, Prepared
from portside.dataplane.compute.containers.images import Images
from portside.dataplane.compute.containers.passages import Passages
from portside.dataplane.compute.containers.runtime import CommandFailed, Runtime, find_runtime
from portside.dataplane.compute.containers.spec import read_spec
from portside.dataplane.compute.interface import LogOf, Release
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder


class Containers:
    """What the deployments of images of one listener share."""

    def __init__(self, settings: ListenerSettings) -> None:
        self.settings = settings
        self.passages = Passages(settings.folder / "passages.json")
        self._runtime: Runtime | None = None
        self._looking = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """Return the container runtime of this machine. Raises DeployFailed when there is none."""
        async with self._looking:
            if self._runtime is None:
                self._runtime = await find_runtime(self.settings)
            return self._runtime

    def close(self) -> None:
        """Close the ways from containers to this machine."""
        self.passages.close()


class Bay:
    """One deployment's containers."""

    def __init__(self, containers: Containers, deployment_id: UUID, folder: DeploymentFolder) -> None:
        self._containers, self._deployment_id, self._folder = containers, deployment_id, folder
        self._images = Images(folder.path, containers.settings.build_timeout_s)

    def fleet(self, release: Release, database_url: str, public: socket.socket, log_of: LogOf) -> ContainerFleet:
        """Return the containers of a release, of which none runs yet."""
        revision_id = release.revision.id

        async def prepare(log: RevisionLog) -> Prepared:
            return await self._prepare(release, database_url, log)

        output, timeout_s = self._folder.server_log(revision_id), self._containers.settings.deployment_start_timeout_s
        log = log_of(revision_id)
        log.hide(secret.value for secret in release.revision.secrets)
        return ContainerFleet(Order(revision_id, prepare, output, timeout_s), public, log)

    async def clear(self) -> None:
        """Remove every container of the deployment, and the images that were pulled for it."""
        if self._images.is_empty:
            return
        runtime = await self._containers.runtime()
        for found in await find_containers(runtime, self._deployment_id):
            await remove_container(runtime, found)
        with contextlib.suppress(CommandFailed):
            await self._images.discard(runtime)

    async def _prepare(self, release: Release, database_url: str, log: RevisionLog) -> Prepared:
        """Find out what to run, and fetch its image. Raises DeployFailed."""
        revision = release.revision
        if revision.secret_references:
            raise DeployFailed("secret_references name secrets of Kubernetes; give this deployment secrets with values")
        spec = read_spec(revision.resource_spec)
        runtime = await self._containers.runtime()
        image = await self._images.pin(runtime, revision, log)
        passages = self._containers.passages
        env = await container_environment(release.deployment, revision, database_url, runtime, passages)
        for limit in sorted({"cpu", "memory"} - runtime.confinement.limits):
            log.add(f"this machine cannot bound the {limit} of containers; the limit is not applied", "WARNING")
        plan = ContainerPlan(self._deployment_id, revision.id, image, spec, env, runtime.confinement)
        return Prepared(runtime, plan)
