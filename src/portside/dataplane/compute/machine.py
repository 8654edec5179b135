"""Compute of type `process`: deployments on this machine, each with a database, a socket and a replica set.

A switch starts the new replica set beside the old one. The new one takes over the socket only once all its replicas
answer; then the old one drains in the background.

A listener that dies leaves its replicas running. The next listener adopts those that run exactly what it would start;
the others are orphans, which keep serving until a replica set serves, and are then drained and reaped. Orphans are
found by a variable of their environment, even when the state file that names them is lost.

Each deployment has a database and a role of its own, on the Postgres that the operator names. The password is in a
private file in the deployment's folder. Postgres gets only its SCRAM verifier, so that no server log can show it.
"""

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import asyncpg

from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.builds.environment import python_of
from portside.dataplane.builds.node import node_of, node_settings
from portside.dataplane.builds.wheel import version_in
from portside.dataplane.compute.containers.manager import ContainerHost, ContainerManager
from portside.dataplane.compute.interface import Build, OpenLog, Release, ReplicaSet
from portside.dataplane.compute.replica import ReplicaPlan, find_replicas
from portside.dataplane.compute.replica_set import HAND_BACK_S, ProcessReplicaSet, ReplicaContext
from portside.dataplane.compute.resource_usage import cores_for
from portside.dataplane.compute.scaling import tier_bounds
from portside.dataplane.compute.sockets import StableSocket, open_stable_socket, url_of
from portside.dataplane.failures import CreateFailed, NoConnectionsLeft
from portside.dataplane.masking import mask_credentials
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.sql import sql
from portside.dataplane.state import DeploymentFolder, ReplicaRecord
from portside.kernel.aliases import EXECUTOR_VARIABLE
from portside.kernel.db import Query
from portside.kernel.errors import UserMistake
from portside.kernel.files import write_private
from portside.kernel.supervision import Supervision
from portside.kernel.version import full_version
from portside.listener_api import ComputeType, DesiredDeployment, DesiredRevision, MetricsReport

SERVE = ("-P", "-m", "portside", "serve")
# They change how an interpreter runs, so a project's values are for its executors alone.
_OF_INTERPRETERS = ("PYTHON", "LD_", "DYLD_")
_EXECUTORS, _EXECUTOR_IDLE_S, _MAX_START_S = 1, 300, 3600
_KILL_AFTER_S = 15.0
_POLL_S = 0.05


@dataclass(frozen=True)
class RuntimeEnvironment:
    """The variables of a server that secrets cannot override, in parts."""

    database_url: str
    port: int
    home: Path
    binaries: Sequence[Path]
    commit: str
    settings: Mapping[str, str]


def server_environment(
    deployment: DesiredDeployment, revision: DesiredRevision, runtime: RuntimeEnvironment, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of a server of this revision (contract: names that secrets may not set).

    Later entries win: the variables of `environ` about the network, the platform's variables, the revision's secrets,
    and the runtime environment.
    """
    inherited = minimal_environment(environ)
    return {
        **inherited,
        **deployment.environment,
        **{secret.name: secret.value for secret in revision.secrets},
        "PATH": os.pathsep.join([*(str(folder) for folder in runtime.binaries), inherited["PATH"]]),
        "HOME": str(runtime.home),
        "PYTHONUNBUFFERED": "1",
        "LOG_JSON": "true",
        "DATABASE_URI": runtime.database_url,
        "POSTGRES_URI": runtime.database_url,
        "PORT": str(runtime.port),
        "LANGSMITH_HOST_REVISION_ID": str(revision.id),
        "LANGSMITH_LANGGRAPH_GIT_REPO": mask_credentials(revision.repo_url or ""),
        "LANGSMITH_LANGGRAPH_GIT_REF": revision.repo_ref or "",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA": runtime.commit,
        **runtime.settings,
    }


def split_environment(
    environment: Mapping[str, str], project: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a server that runs from the platform's own environment, with graphs in executors.

    `project` has the variables that the project gave, and `own` those that it cannot override. Variables for
    interpreters get a prefix, which the server removes for its executors.
    """
    passed_on = {name: value for name, value in project.items() if name.startswith(_OF_INTERPRETERS)}
    return {
        "EXECUTORS": str(_EXECUTORS),
        "EXECUTOR_IDLE_SECS": str(_EXECUTOR_IDLE_S),
        **{name: value for name, value in environment.items() if name not in passed_on},
        **{f"{EXECUTOR_VARIABLE}{name}": value for name, value in passed_on.items()},
        "PYTHONUNBUFFERED": "1",
        **own,
    }


class MachineCompute:
    """The machine that the listener runs on. `serve_arguments` follow the server's interpreter."""

    compute_type: ComputeType = "process"
    builds_sources = True

    def __init__(self, settings: ListenerSettings, serve_arguments: Sequence[str] = SERVE) -> None:
        self.settings, self.serve_arguments = settings, serve_arguments
        if settings.provision_database_url is None:
            raise UserMistake(
                "setting PROVISION_DATABASE_URL is not set; with compute process, set it to a Postgres whose role may "
                "create roles and databases"
            )
        self.databases = Databases(settings.provision_database_url)
        self.containers = ContainerHost(settings)
        # Searched once and before anything starts: every replica that runs now belongs to an earlier listener.
        self.orphans = find_replicas(settings.folder)

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "MachineTarget":
        """Return the target of a deployment."""
        return MachineTarget(self, deployment_id, open_log)

    async def close(self) -> None:
        """Close the ports that are forwarded to containers."""
        self.containers.close()


class MachineTarget:
    """One deployment on this machine."""

    def __init__(self, machine: MachineCompute, deployment_id: UUID, open_log: OpenLog) -> None:
        self._machine, self._deployment_id, self._open_log = machine, deployment_id, open_log
        self.folder = DeploymentFolder(machine.settings.folder, deployment_id)
        self._containers = ContainerManager(machine.containers, deployment_id, self.folder)
        self._drain_grace_s = machine.settings.stop_grace_s + HAND_BACK_S
        self._socket: StableSocket | None = None
        # Unknown until the first look. A database that was missing counts as missing until `provision` succeeds: one
        # that an operator creates belongs to another role.
        self._has_database: bool | None = None
        self.current: ReplicaSet | None = None
        self._draining: dict[asyncio.Task[None], ReplicaSet] = {}
        named = self.folder.state.replicas
        processes = {record.process for record in named}
        found = machine.orphans.pop(deployment_id, [])
        self._orphans = [*named, *(record for record in found if record.process not in processes)]
        self._reaping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str | None:
        """The address of the stable socket, which opens with the first release."""
        return url_of(self._machine.settings.deployment_host, self.socket.port) if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether a release serves or is being restored."""
        return self.current is not None

    async def is_provisioned(self) -> bool:
        """Whether the database was created before, and is still there when this listener first looks."""
        if not self.folder.password_file.exists():
            return False
        if self._has_database is None:
            self._has_database = await self._machine.databases.exists(self._deployment_id)
        return self._has_database

    @property
    def socket(self) -> StableSocket:
        """The stable socket; it opens on first use."""
        if self._socket is None:
            state = self.folder.state
            self._socket = open_stable_socket(self._machine.settings.deployment_host, state.port, self.folder.path)
            state.port = self._socket.port
            self.folder.save()
        return self._socket

    def revisions(self) -> set[UUID]:
        """Return the revisions that serve, drain or served last."""
        state = self.folder.state
        running = [*self._draining.values(), *([self.current] if self.current else [])]
        ids = {*(replica_set.revision_id for replica_set in running), state.active_revision_id}
        return {revision_id for revision_id in (*ids, state.previous_revision_id) if revision_id is not None}

    async def provision(self, *, is_new: bool) -> None:
        """Create the role, and the database of a new deployment. Raises CreateFailed, also for a lost database."""
        await self._machine.databases.ensure(self._deployment_id, self.folder.password_file, is_new=is_new)
        self._has_database = True

    async def switch(self, release: Release) -> None:
        """Serve another release. Raises DeployFailed, and then the previous release keeps serving."""
        await self.switch_to(self._replica_set(release))

    async def restore(self, release: Release) -> None:
        """Serve the active release again, in the background."""
        self.restore_with(self._replica_set(release))

    async def update(self, deployment: DesiredDeployment) -> None:
        """Apply changed replica bounds and variables."""
        if self.current is not None:
            self.current.update(deployment)

    def metrics(self) -> MetricsReport | None:
        """Return the latest metrics of the current replica set."""
        return None if self.current is None else self.current.metrics()

    async def destroy(self) -> None:
        """Stop the replicas; delete the containers, their images, the database and its role."""
        await self.close()
        await self._containers.clear()
        await self._machine.databases.drop(self._deployment_id)

    async def close(self) -> None:
        """Stop all replicas quickly and close the socket; returns when no process is left."""
        current, self.current = self.current, None
        stopping = [current.stop(_KILL_AFTER_S)] if current else []
        await asyncio.gather(*stopping, self._stop_draining())
        await self._stop_orphans()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def switch_to(self, replica_set: ReplicaSet) -> None:
        """Start a replica set, then drain the current one; once this returns, no new request reaches the latter.

        Raises DeployFailed, and then the current replica set keeps serving.
        """
        await replica_set.start()
        previous, self.current = self.current, replica_set
        replica_set.supervise()
        self.folder.activate(replica_set.revision_id)
        await self._drain_orphans()
        if previous is not None:
            await self._retire(previous)

    def restore_with(self, replica_set: ReplicaSet) -> None:
        """Let a replica set adopt or start its replicas in the background."""
        self.current = replica_set
        replica_set.supervise(self._drain_orphans)

    async def _retire(self, replica_set: ReplicaSet) -> None:
        """Drain a replica set in the background; returns when it accepts no new requests."""
        stopped_accepting = asyncio.Event()
        task = asyncio.create_task(self._drain(replica_set, stopped_accepting))
        self._draining[task] = replica_set
        task.add_done_callback(self._draining.pop)
        await stopped_accepting.wait()

    async def _drain(self, replica_set: ReplicaSet, stopped_accepting: asyncio.Event) -> None:
        try:
            await replica_set.stop_accepting()
        finally:
            stopped_accepting.set()
            await replica_set.drain(self._drain_grace_s)

    async def _stop_draining(self) -> None:
        for replica_set in self._draining.values():
            replica_set.interrupt()
        tasks = list(self._draining)
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=_KILL_AFTER_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _drain_orphans(self) -> None:
        """Drain the replicas of earlier listeners in the background, except those that were adopted."""
        adopted = self.current.processes() if self.current is not None else set()
        self._orphans = [orphan for orphan in self._orphans if orphan.process not in adopted]
        if self._orphans and self._reaping is None:
            reap = partial(self._reap_orphans, signal.SIGTERM, self._drain_grace_s)
            self._reaping = asyncio.create_task(Supervision("end of earlier replicas").run(reap))

    async def _stop_orphans(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.gather(self._reaping, return_exceptions=True)
        await self._reap_orphans(signal.SIGINT, _KILL_AFTER_S)

    async def _reap_orphans(self, number: signal.Signals, grace_s: float) -> None:
        for orphan in self._orphans:
            orphan.process.signal(number)
        deadline = time.monotonic() + grace_s
        for orphan in self._orphans:
            await _wait_for_end(orphan, deadline)
        for orphan in self._orphans:
            orphan.process.kill_group()
            self.folder.remove_replica(orphan.process)
        self._orphans = []

    def _replica_set(self, release: Release) -> ReplicaSet:
        url = self._machine.databases.url(self._deployment_id, self.folder.password_file)
        if release.build is None:
            return self._containers.replica_set(release, url, self.socket.public, self._open_log)
        settings, revision = self._machine.settings, release.revision
        plan = self._plan(release, release.build, url)
        log = self._open_log(revision.id)
        log.hide(secret.value for secret in revision.secrets)
        admit = partial(self._machine.databases.admit, self._deployment_id)
        files = release.build.files
        context = ReplicaContext(plan, self.socket, self.folder, log, settings.stop_grace_s, admit, files)
        bounds = tier_bounds(release.deployment, revision)
        return ProcessReplicaSet(context, revision, bounds, settings.scale_down_after_s)

    def _plan(self, release: Release, build: Build, database_url: str) -> ReplicaPlan:
        settings, revision = self._machine.settings, release.revision
        python, spec = python_of(build.folder), revision.resource_spec
        runtime = RuntimeEnvironment(
            database_url=database_url,
            port=self.socket.port,
            home=self.folder.home(),
            binaries=[python.parent, *([node.parent] if (node := node_of(build.folder)).exists() else [])],
            commit=build.commit,
            settings={**settings.disk_environment, **node_settings(build.folder)},
        )
        environment, server, version = (
            server_environment(release.deployment, revision, runtime, os.environ),
            str(python),
            version_in(build.folder / "venv"),
        )
        if build.server_code:
            given = {secret.name: secret.value for secret in revision.secrets}
            known = self.folder.known_graphs(revision.id, build.server_code)
            limit_s = min(settings.deployment_start_timeout_s, _MAX_START_S)
            own = {"EXECUTOR_PYTHON": str(python), "EXECUTOR_KNOWN_GRAPHS": str(known)}
            environment = split_environment({"EXECUTOR_START_SECS": f"{limit_s:g}", **environment}, given, own)
            server, version = sys.executable, full_version()
        return ReplicaPlan(
            revision.id,
            [server, *self._machine.serve_arguments],
            build.config,
            environment,
            self.folder.server_log(revision.id),
            settings.deployment_start_timeout_s,
            settings.queue_start_timeout_s,
            cores_for(self._deployment_id, spec.get("cpu_limit")),
            spec["memory_limit_mb"] * 2**20 if "memory_limit_mb" in spec else None,
            version,
            build.folder,
            build.server_code,
        )


async def _wait_for_end(orphan: ReplicaRecord, deadline: float) -> None:
    """Wait for a process that is not the listener's child, which only polling can do."""
    while time.monotonic() < deadline:
        if not orphan.process.is_alive:
            return
        await asyncio.sleep(_POLL_S)


_TIMEOUT_S = 60.0
_ITERATIONS = 4096
# An idle agent server holds three connections. During a switch there are two servers, and under load more connections.
CONNECTIONS_EACH = 9
IDLE_CONNECTIONS = 3
# For the platform itself, when its role is not a superuser and so has no reserved connections.
PLATFORM_CONNECTIONS = 20
# Key of the advisory lock from the check of the budget to the creation of the role, so that two deployments do not
# both get the last connections.
_BUDGET_LOCK = 0x706F7274736964
_UNREACHABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Databases:
    """Creates and drops the databases of deployments."""

    def __init__(self, admin_url: str) -> None:
        self._admin_url = admin_url
        # A start looks up all deployments at once.
        self._looking = asyncio.Semaphore(4)

    async def ensure(self, deployment_id: UUID, password_file: Path, *, is_new: bool = True) -> None:
        """Create the deployment's role if it is missing, and its database if the deployment is new.

        Raises CreateFailed when the role may not create them, Postgres has too few connections for one more
        deployment, or an older deployment's database is gone; OSError or asyncpg.PostgresError for transient errors.
        """
        name, password = database_name(deployment_id), _password(password_file) or secrets.token_urlsafe(32)
        verifier = scram_verifier(password, os.urandom(16))
        try:
            async with self._admin() as connection:
                await connection.execute(sql.lock_budget.sql, _BUDGET_LOCK)
                limit = await _connection_limit(connection, name, is_new=is_new)
                await _run_written(connection, sql.write_role, name=name, verifier=verifier, connections=limit)
                await _run_written(connection, sql.write_membership, name=name)
                await _run_written(connection, sql.write_database, name=name)
                await _run_written(connection, sql.write_owner, name=name)
                await _run_written(connection, sql.write_privacy, name=name)
            async with self._admin(name) as connection:
                await connection.execute(sql.offer_vectors.sql)
        except asyncpg.InsufficientPrivilegeError as exc:
            raise CreateFailed(
                f"the database cannot be created: {exc}; its role needs CREATEDB and CREATEROLE"
            ) from exc
        # Last, because the file says that all of this was done.
        write_private(password_file, password + "\n")

    async def exists(self, deployment_id: UUID) -> bool:
        """Whether the deployment's database is there; also true if Postgres does not answer."""
        try:
            async with self._looking, self._admin() as connection:
                row = await _read_budget(connection, database_name(deployment_id))
        except _UNREACHABLE:
            return True
        return bool(row["has_database"])

    async def admit(self, deployment_id: UUID, replicas: int) -> None:
        """Check that Postgres has connections for so many replicas of a deployment.

        Raises NoConnectionsLeft, but never for what the deployment's share allows. Without an answer of Postgres the
        replicas are admitted: they wait for it themselves.
        """
        if replicas * IDLE_CONNECTIONS <= CONNECTIONS_EACH:
            return
        try:
            async with self._looking, self._admin() as connection:
                row = await _read_budget(connection, database_name(deployment_id))
        except _UNREACHABLE:
            return
        needed = max(row["held"], (replicas - 1) * IDLE_CONNECTIONS) + IDLE_CONNECTIONS
        if row["taken"] + needed > row["available"]:
            raise NoConnectionsLeft(
                f"Postgres has no connections left for another replica: {replicas} replicas need {needed}, the other "
                f"{row['number']} deployments take {row['taken']}, and all may use {row['available']}. Lower the scale "
                "of this deployment or of others, or raise max_connections (setting POSTGRES_MAX_CONNECTIONS for the "
                "embedded Postgres) and restart Postgres"
            )

    async def drop(self, deployment_id: UUID) -> None:
        """Drop the deployment's database and its role; open connections are terminated."""
        async with self._admin() as connection:
            await _run_written(connection, sql.write_drop_database, name=database_name(deployment_id))
            await _run_written(connection, sql.write_drop_role, name=database_name(deployment_id))

    def url(self, deployment_id: UUID, password_file: Path) -> str:
        """Return the URL with which the deployment's servers connect."""
        return deployment_url(self._admin_url, database_name(deployment_id), password_file.read_text().strip())

    @asynccontextmanager
    async def _admin(self, database: str | None = None) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(
            self._admin_url, database=database, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S
        )
        try:
            yield connection
        finally:
            await connection.close(timeout=5)


def database_name(deployment_id: UUID) -> str:
    """Return the name of a deployment's database and role."""
    return f"agent_{deployment_id.hex}"


def deployment_url(admin_url: str, name: str, password: str) -> str:
    """Return the URL of a deployment: the server of the admin's URL with another user and database."""
    parts = urlsplit(admin_url)
    server = parts.netloc.rpartition("@")[2]
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in {"user", "password", "dbname"}]
    netloc = f"{quote(name)}:{quote(password)}@{server}"
    return urlunsplit((parts.scheme, netloc, f"/{quote(name)}", urlencode(query, safe="/", quote_via=quote), ""))


def scram_verifier(password: str, salt: bytes) -> str:
    """Return the verifier that Postgres stores for a password (RFC 5803, SCRAM-SHA-256)."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    shown = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{shown[0]}${shown[1]}:{shown[2]}"


def _password(file: Path) -> str | None:
    return file.read_text().strip() if file.exists() else None


async def _connection_limit(connection: Any, name: str, *, is_new: bool) -> int:
    """Return how many connections a deployment may open: half of the available ones.

    Raises CreateFailed for a deployment beyond the budget, and for an older one whose database is gone.
    """
    row = await _read_budget(connection, name)
    if not is_new and not row["has_database"]:
        raise CreateFailed(
            f"its database {name} is not on this Postgres server, so its threads and runs are not either. Restore the "
            f"database from its dump. To start with an empty one instead, create it: create database {name}"
        )
    available, taken = int(row["available"]), row["taken"]
    if not row["is_there"] and taken + CONNECTIONS_EACH > available:
        raise CreateFailed(
            f"Postgres has no connections left for another deployment: the {row['number']} deployments take {taken}, "
            f"which is {CONNECTIONS_EACH} each, or what their replicas hold now if that is more. Another one needs "
            f"{CONNECTIONS_EACH}, and deployments may use {available}. Delete one, or raise max_connections (setting "
            "POSTGRES_MAX_CONNECTIONS for the embedded Postgres) and restart Postgres"
        )
    return max(CONNECTIONS_EACH, available // 2)


async def _read_budget(connection: Any, name: str) -> Any:
    query = sql.read_budget
    values = {"name": name, "platform": PLATFORM_CONNECTIONS, "share": CONNECTIONS_EACH}
    return await connection.fetchrow(query.sql, *query.arguments(values))


async def _run_written(connection: Any, query: Query, **values: str | int) -> None:
    statement = await connection.fetchval(query.sql, *query.arguments(values))
    if statement is not None:
        await connection.execute(statement)
