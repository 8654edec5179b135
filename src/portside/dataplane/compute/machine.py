"""Compute of type `process`: deployments on this machine, each with a database, a socket and what serves it."""

import os
from collections.abc import Sequence
from uuid import UUID

from portside.dataplane.builds.environment import python_of
from portside.dataplane.compute.containers.bay import Bay, Containers
from portside.dataplane.compute.fleet import ProcessFleet
from portside.dataplane.compute.group import Yard
from portside.dataplane.compute.interface import Build, Fleet, LogOf, Release
from portside.dataplane.compute.limits import cores_for
from portside.dataplane.compute.process import ReplicaPlan
from portside.dataplane.compute.scale import scale_of
from portside.dataplane.compute.serving import Serving
from portside.dataplane.compute.variables import Fixtures, server_environment
from portside.dataplane.databases import Databases
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.dataplane.types import DesiredDeployment, Measures
from portside.kernel.errors import UserMistake

SERVE = ("-P", "-m", "portside", "serve")


class Machine:
    """The machine that the listener runs on. `serve_arguments` are what a build's interpreter is started with."""

    compute_type = "process"
    takes_builds = True

    def __init__(self, settings: ListenerSettings, serve_arguments: Sequence[str] = SERVE) -> None:
        self.settings, self.serve_arguments = settings, serve_arguments
        if settings.provision_database_url is None:
            raise UserMistake("setting PROVISION_DATABASE_URL: not set; compute process needs it")
        self.databases = Databases(settings.provision_database_url)
        self.containers = Containers(settings)

    def berth(self, deployment_id: UUID, log_of: LogOf) -> "MachineBerth":
        """Return the place of a deployment."""
        return MachineBerth(self, deployment_id, log_of)

    async def close(self) -> None:
        """Let go of what containers share."""
        self.containers.close()


class MachineBerth:
    """One deployment on this machine."""

    def __init__(self, machine: Machine, deployment_id: UUID, log_of: LogOf) -> None:
        self._machine, self._deployment_id, self._log_of = machine, deployment_id, log_of
        self._folder = DeploymentFolder(machine.settings.folder, deployment_id)
        self._bay = Bay(machine.containers, deployment_id, self._folder)
        self._serving = Serving(self._folder, machine.settings.deployment_host, machine.settings.stop_grace_s)

    @property
    def url(self) -> str | None:
        """The address of the stable socket, which opens with the first release."""
        return self._serving.url if self._serving.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether a release serves, or is being brought back."""
        return self._serving.is_running

    def revisions(self) -> set[UUID]:
        """Return the revisions that serve, drain or served last."""
        state = self._folder.state
        known = {state.active_revision_id, state.previous_revision_id} - {None}
        return self._serving.revisions() | {revision_id for revision_id in known if revision_id}

    @property
    def is_provisioned(self) -> bool:
        """Whether the database was made before."""
        return self._folder.password_file.exists()

    async def provision(self) -> None:
        """Make the deployment's database and role. Raises CreateFailed."""
        await self._machine.databases.ensure(self._deployment_id, self._folder.password_file)

    async def switch(self, release: Release) -> None:
        """Let another release serve. Raises DeployFailed, and then what served before still does."""
        await self._serving.switch(self._fleet(release))

    async def restore(self, release: Release) -> None:
        """Bring the active release back in the background, for as long as it takes."""
        self._serving.restore(self._fleet(release))

    async def follow(self, deployment: DesiredDeployment) -> None:
        """Take note of how many replicas are desired now."""
        if self._serving.current is not None:
            self._serving.current.follow(deployment)

    def measures(self) -> Measures | None:
        """Return what the serving release was found to use last."""
        return None if self._serving.current is None else self._serving.current.measures()

    async def withdraw(self) -> None:
        """Stop the servers; drop the database, its role and the state."""
        await self._serving.stop()
        await self._bay.clear()
        await self._machine.databases.drop(self._deployment_id)

    async def close(self) -> None:
        """Stop the servers."""
        await self._serving.stop()

    def _fleet(self, release: Release) -> Fleet:
        if release.build is None:
            url = self._machine.databases.url(self._deployment_id, self._folder.password_file)
            return self._bay.fleet(release, url, self._serving.stable.public, self._log_of)
        settings, revision = self._machine.settings, release.revision
        plan = self._plan(release, release.build)
        log = self._log_of(revision.id)
        log.hide(secret.value for secret in revision.secrets)
        yard = Yard(plan, self._serving.stable, self._folder, log, settings.stop_grace_s)
        return ProcessFleet(yard, revision, scale_of(release.deployment, revision), settings.scale_down_after_s)

    def _plan(self, release: Release, build: Build) -> ReplicaPlan:
        settings, revision = self._machine.settings, release.revision
        python, spec = python_of(build.folder), revision.resource_spec
        fixtures = Fixtures(
            database_url=self._machine.databases.url(self._deployment_id, self._folder.password_file),
            port=self._serving.stable.port,
            home=self._folder.home(),
            binaries=python.parent,
            commit=build.commit,
        )
        return ReplicaPlan(
            revision.id,
            [str(python), *self._machine.serve_arguments],
            build.config,
            server_environment(release.deployment, revision, fixtures, os.environ),
            self._folder.server_log(revision.id),
            settings.deployment_start_timeout_s,
            settings.queue_start_timeout_s,
            cores_for(self._deployment_id, spec.get("cpu_limit")),
            spec["memory_limit_mb"] * 2**20 if "memory_limit_mb" in spec else None,
        )
