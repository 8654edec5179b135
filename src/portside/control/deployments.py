"""Deployments: create, list, change and delete them, and manage their service keys.

A create is one transaction: the tracing project, the service key, the deployment and its first revision. `rules.py`
checks the fields; `revisions.py` has the revisions. When a service key is rotated, the old key works for another hour,
in which the deployment's servers change to the new one.

A listener polls for its desired state: its deployments with their active and unfinished revisions. The generation is
read before the rows. The rows may therefore be newer than the generation, which costs one extra response, but never
older. A deployment belongs to the first listener that took it.
"""

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from uuid import UUID

import msgspec

from portside.control import listeners, revisions, rules
from portside.control.addresses import public_url
from portside.control.agent_access import to_columns
from portside.control.archives import claim_archive
from portside.control.content import RevisionContent, apply_patch, check_content, first_content, has_code, next_content
from portside.control.errors import (
    BadCombination,
    BeingDeleted,
    DeploymentNotFound,
    ListenerNotFound,
    NameTaken,
    NotBeingDeleted,
    RevisionNotFound,
)
from portside.control.integrations import check_integration, find_credential
from portside.control.listeners import Placement
from portside.control.operations import to_scale
from portside.control.resources import complete_resources
from portside.control.revisions import find_deployment, lock_deployment
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import PlatformAddress, Scope
from portside.control.secrets import decrypt_secrets, encrypt_secrets
from portside.control.sources import PUSHED, check_push
from portside.control.sql import sql
from portside.control.types import (
    DeletedDeployments,
    Deployment,
    DeploymentCreate,
    DeploymentList,
    DeploymentPatch,
    DeploymentQuery,
    Revision,
    SourceConfig,
)
from portside.control.views import to_deployment
from portside.identity import keys
from portside.identity.keys import KeyFilter, KeyNotFound, Owner, Revocation
from portside.identity.types import KeyRequest, NewKey
from portside.kernel.aliases import canonical_source
from portside.kernel.clock import iso
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout
from portside.kernel.user_json import storable
from portside.listener_api import (
    DeploymentReport,
    DeploymentStatus,
    Desired,
    DesiredDeployment,
    DesiredQuery,
    DesiredRevision,
    RevisionStatus,
)
from portside.tracing import projects

log = get_logger(__name__)
_KEY_PERMISSIONS = ["runs:*", "projects:*"]
OLD_KEY_LIFETIME = timedelta(hours=1)
POLL_S = 1.0


async def create_key(tx: Session, scope: Scope, deployment_id: UUID, name: str) -> tuple[NewKey, bytes]:
    """Create a service key for a deployment; return it and its encrypted form."""
    owner = Owner(scope.actor.organization_id, scope.workspace_id, created_by=scope.actor)
    request = KeyRequest(f"Deployment {name}", _KEY_PERMISSIONS)
    key = await keys.create_key(tx, owner, request, used_by=f"deployment {name}")
    return key, scope.box.encrypt(key.key.encode(), str(deployment_id))


async def rotate_key(scope: Scope, deployment_id: UUID) -> None:
    """Give a deployment a new key; the listener replaces its servers one by one.

    Raises DeploymentNotFound and BeingDeleted.
    """
    async with scope.change() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted

        await keys.expire_key(tx, row["service_key_id"], after=OLD_KEY_LIFETIME)
        await _replace_key(tx, scope, deployment_id, row["name"])


async def replace_invalid_keys(scope: Scope) -> None:
    """Replace service keys of the workspace's deployments that were revoked or have expired."""
    async with scope.db.transaction() as tx:
        for row in await tx.fetch(sql.deployments_without_key, workspace_id=scope.workspace_id):
            log.warning("replacing a deployment's revoked or expired service key", deployment=str(row["id"]))
            await _replace_key(tx, scope, row["id"], row["name"])


async def _replace_key(tx: Transaction, scope: Scope, deployment_id: UUID, name: str) -> None:
    key, encrypted = await create_key(tx, scope, deployment_id, name)
    await tx.execute(sql.replace_deployment_key, id=deployment_id, service_key_id=key.id, service_key_sealed=encrypted)


# A listener polls at least every 30 seconds. After this time its last report is no longer current.
SILENT_AFTER = timedelta(minutes=2)


async def create_deployment(scope: Scope, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision.

    Uploads and pushed images get their first revision later, with a PATCH. Raises Invalid, SourceNotAvailable,
    BadCombination and NameTaken.
    """
    rules.check_create(body)
    content = first_content(body)
    deployment_id = uuid7()
    async with scope.change() as tx:
        _check_routable(scope, body.source_config.custom_url)
        await check_integration(tx, scope, body.source_config.integration_id, body.source_config.repo_url)
        placement = await listeners.choose_placement(tx, scope, canonical_source(body.source), body.source_config)
        listeners.check_compute(placement, body)
        await _insert(tx, scope, deployment_id, body, placement)

        if content is not None:
            await _start(tx, scope, deployment_id, content, archive=content.source_tarball_path)

    return await get_deployment(scope, deployment_id)


async def _insert(
    tx: Transaction, scope: Scope, deployment_id: UUID, body: DeploymentCreate, placement: Placement
) -> None:
    project = await projects.ensure_project(tx, scope.workspace_id, body.name)
    key, encrypted = await create_key(tx, scope, deployment_id, body.name)
    config = body.source_config

    inserted = await tx.fetchval(
        sql.insert_deployment,
        id=deployment_id,
        workspace_id=scope.workspace_id,
        name=body.name,
        source=body.source,
        integration_id=config.integration_id,
        repo_url=config.repo_url,
        deployment_type=config.deployment_type,
        build_on_push=bool(config.build_on_push),
        requested_url=config.custom_url or None,
        listener_id=placement.listener_id,
        k8s_namespace=placement.k8s_namespace,
        secrets_sealed=encrypt_secrets(scope.box, deployment_id, body.secrets or []),
        install_command=config.install_command,
        build_command=config.build_command,
        tracing_project_id=project.id,
        service_key_id=key.id,
        service_key_sealed=encrypted,
        sleep_after_s=body.sleep_after_s,
        pin_threads=body.pin_threads,
        **to_columns(body.agent_access),
    )
    if inserted is None:
        raise NameTaken(f"The workspace already has a deployment named {body.name}; choose another name.")


async def get_deployment(scope: Scope, deployment_id: UUID) -> Deployment:
    """Return one deployment. Raises DeploymentNotFound."""
    return to_deployment(scope, await _find(scope.db, scope, deployment_id))


async def _find(db: Session, scope: Scope, deployment_id: UUID) -> Record:
    rows = await _fetch(db, scope, DeploymentQuery(limit=1, deployment_ids=[deployment_id]))
    if not rows:
        raise DeploymentNotFound.of(deployment_id)

    return rows[0]


async def list_deployments(scope: Scope, query: DeploymentQuery) -> DeploymentList:
    """List the workspace's deployments, newest first. Raises Invalid for a filter by tags or by an agent.

    Such a filter is never ignored: a client that looks for the deployment of an agent updates the first one it finds.
    """
    if query.tag_value_ids:
        raise Invalid.field(["query", "tag_value_ids"], "is not supported: deployments have no tags", "not_supported")

    for name in ("agent_id", "agent_environment"):
        if getattr(query, name):
            raise Invalid.field(["query", name], rules.NO_AGENTS, "not_supported")

    rows = await _fetch(scope.db, scope, query)
    return DeploymentList([to_deployment(scope, row) for row in rows], query.offset + len(rows))


async def _fetch(db: Session, scope: Scope, query: DeploymentQuery) -> list[Record]:
    return await db.fetch(
        sql.find_deployments,
        workspace_id=scope.workspace_id,
        ids=query.deployment_ids,
        name=query.name or None,
        name_contains=query.name_contains or None,
        status=query.status,
        deployment_type=query.deployment_type,
        tracing_project_id=query.tracing_project_id,
        image_version=query.image_version or None,
        names_listener=query.remote_reconciled,
        silent_after=SILENT_AFTER,
        limit=query.limit,
        offset=query.offset,
    )


async def update_deployment(scope: Scope, deployment_id: UUID, body: DeploymentPatch) -> Deployment:
    """Change a deployment; null keeps what is there.

    Raises DeploymentNotFound, BeingDeleted, Immutable, and what `rules.check_patch` raises.
    """
    async with scope.change() as tx:
        await _apply(tx, scope, deployment_id, body, always=False)

    await scope.router.refresh()
    return await get_deployment(scope, deployment_id)


async def add_revision(scope: Scope, deployment_id: UUID, body: DeploymentPatch) -> Revision:
    """Change a deployment like a PATCH, and always create a revision. Raises what a PATCH raises."""
    async with scope.change() as tx:
        revision_id = await _apply(tx, scope, deployment_id, body, always=True)

    assert revision_id is not None  # noqa: S101 - always=True creates one
    return await revisions.get_revision(scope, deployment_id, revision_id)


async def _apply(
    tx: Transaction, scope: Scope, deployment_id: UUID, body: DeploymentPatch, *, always: bool
) -> UUID | None:
    """Apply a PATCH; return the id of the revision that it created, if any."""
    row = await lock_deployment(tx, scope, deployment_id)
    if row["status"] == DeploymentStatus.AWAITING_DELETE:
        raise BeingDeleted

    shown_url = public_url(row, scope.addresses)
    rules.check_patch(body, {**row, "custom_url": shown_url})
    build_on_push = _build_on_push(body, row)
    content = await next_content(tx, scope, row, body.revision_source)

    apply_patch(content, body)
    placement = await listeners.get_placement(tx, scope, row)
    listeners.check_compute(placement, body)
    check_push(build_on_push=build_on_push, repo_ref=content.repo_ref)

    config = body.source_config or SourceConfig()
    # Clients may send back what they read, which is no request for that address.
    requested_url = None if config.custom_url == shown_url else config.custom_url
    _check_routable(scope, requested_url)
    await _update(tx, deployment_id, body, requested_url)

    if not always and not rules.makes_revision(body):
        return None

    if not always and row["latest_revision_id"] is None and not has_code(content):
        encrypted = encrypt_secrets(scope.box, deployment_id, content.secrets)
        await tx.execute(sql.keep_secrets, id=deployment_id, secrets_sealed=encrypted)
        return None

    check_content(content, build_on_push=build_on_push)
    archive = body.source_revision_config.source_tarball_path if body.source_revision_config else None
    return await _start(tx, scope, deployment_id, content, archive=archive)


def _build_on_push(body: DeploymentPatch, row: Record) -> bool:
    requested = body.source_config.build_on_push if body.source_config else None
    return bool(row["build_on_push"] if requested is None else requested)


async def _start(
    tx: Transaction, scope: Scope, deployment_id: UUID, content: RevisionContent, *, archive: str | None
) -> UUID:
    """Start a revision; `archive` is the path of a newly uploaded archive, if any."""
    if archive is not None:
        await claim_archive(tx, deployment_id, archive)
    return await revisions.start_revision(tx, scope, deployment_id, content)


def _check_routable(scope: Scope, requested_url: str | None) -> None:
    """Raise BadCombination for an address that the front may not route."""
    if requested_url and (objection := scope.router.objection(requested_url)) is not None:
        raise BadCombination(f"source_config.custom_url {objection}")


async def _update(tx: Transaction, deployment_id: UUID, body: DeploymentPatch, requested_url: str | None) -> None:
    config = body.source_config or SourceConfig()
    await tx.execute(
        sql.update_deployment,
        id=deployment_id,
        display_name=body.display_name,
        build_on_push=config.build_on_push,
        install_command=config.install_command,
        build_command=config.build_command,
        requested_url=requested_url,
        sleep_after_s=body.sleep_after_s,
        pin_threads=body.pin_threads,
        **to_columns(body.agent_access),
    )


async def redeploy(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Deployment:
    """Deploy a revision again. Raises what `revisions.redeploy_revision` raises."""
    await revisions.redeploy_revision(scope, deployment_id, revision_id)
    return await get_deployment(scope, deployment_id)


async def delete_deployment(scope: Scope, deployment_id: UUID, *, delete_tracing_project: bool) -> None:
    """Request the delete; the deployment can be read until its listener has cleaned up. Raises DeploymentNotFound."""
    async with scope.change() as tx:
        await lock_deployment(tx, scope, deployment_id)
        await _request_delete(tx, deployment_id, delete_tracing_project=delete_tracing_project)

    await scope.router.refresh()


async def delete_deployments(scope: Scope, ids: list[UUID]) -> DeletedDeployments:
    """Request the delete of several deployments, all or none. Raises DeploymentNotFound for the first unknown one."""
    async with scope.change() as tx:
        rows = await tx.fetch(sql.lock_deployments, ids=ids, workspace_id=scope.workspace_id)
        unknown = [deployment_id for deployment_id in ids if deployment_id not in {row["id"] for row in rows}]
        if unknown:
            raise DeploymentNotFound.of(unknown[0])

        for row in rows:
            await _request_delete(tx, row["id"], delete_tracing_project=False)

    await scope.router.refresh()
    return DeletedDeployments([row["id"] for row in rows])


async def _request_delete(tx: Transaction, deployment_id: UUID, *, delete_tracing_project: bool) -> None:
    await tx.execute(sql.request_delete, id=deployment_id, delete_tracing_project=delete_tracing_project)
    await revisions.stop_revisions(tx, deployment_id)


async def wait_for_desired(scope: Scope, address: PlatformAddress, listener_id: UUID, query: DesiredQuery) -> Desired:
    """Return the desired state as soon as it differs from the listener's. Raises ListenerNotFound."""
    listener = await scope.db.fetchval(
        sql.touch_listener, id=listener_id, workspace_id=scope.workspace_id, key_id=scope.actor.key_id
    )
    if listener is None:
        raise ListenerNotFound.of(listener_id)

    generation = await _wait_for_change(scope, query)
    await replace_invalid_keys(scope)
    await scope.db.execute(sql.take_deployments, workspace_id=scope.workspace_id, listener_id=listener_id)
    rows = await scope.db.fetch(sql.desired_state, workspace_id=scope.workspace_id, listener_id=listener_id)
    deployments = [
        _desired_deployment(scope, address, list(group)) for _, group in groupby(rows, key=lambda row: row["id"])
    ]

    return Desired(generation, deployments)


async def find_desired_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> DesiredRevision:
    """Return any revision of a deployment as a listener builds it. Raises RevisionNotFound."""
    row = await scope.db.fetchrow(
        sql.desired_revision, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
    )
    if row is None:
        raise RevisionNotFound.of(revision_id)

    return _desired_revision(scope, row)


async def move_repositories(db: Database, before: str, after: str) -> int:
    """Change the addresses of repositories in a folder that was moved; return how many deployments have one there."""
    return len(await db.fetch(sql.move_repositories, before=before, after=after))


async def _wait_for_change(scope: Scope, query: DesiredQuery) -> int:
    """Wait until the generation differs from the listener's. A smaller one means that the database was restored."""
    deadline = time.monotonic() + query.wait_s
    while True:
        changed = scope.changes.watch(scope.workspace_id)
        generation: int = await scope.db.fetchval(sql.read_generation, workspace_id=scope.workspace_id)
        remaining_s = deadline - time.monotonic()
        if generation != query.after or remaining_s <= 0 or scope.changes.closed:
            return generation

        with contextlib.suppress(TimeoutError):
            async with timeout(min(POLL_S, remaining_s)):
                await changed.wait()


def _desired_deployment(scope: Scope, address: PlatformAddress, rows: Sequence[Record]) -> DesiredDeployment:
    first = rows[0]
    return DesiredDeployment(
        id=first["id"],
        name=first["name"],
        tenant_id=first["workspace_id"],
        status=DeploymentStatus(first["status"]),
        active_revision_id=first["active_revision_id"],
        custom_url=first["custom_url"],
        deployment_type=first["deployment_type"],
        k8s_namespace=first["k8s_namespace"],
        scale=to_scale(first),
        sleep_after_s=first["sleep_after_s"],
        pin_threads=first["pin_threads"],
        environment=_platform_variables(scope, address, first),
        roll_forward=first["roll_forward"],
        revisions=[_desired_revision(scope, row) for row in rows if row["revision_id"] is not None],
    )


def _platform_variables(scope: Scope, address: PlatformAddress, row: Record) -> dict[str, str]:
    """Return the platform's variables. They send the traces of runs to the deployment's own project.

    The servers verify API keys at LANGSMITH_AUTH_ENDPOINT even if a secret sends the traces elsewhere. This address is
    the deployment's own, so that the platform applies its `agent_access` for any version of the server.
    """
    # The agent server trusts the machine itself, where the front is, unless this names other proxies too.
    trusted = {"TRUSTED_PROXIES": f"127.0.0.1,::1,{address.trusted_proxies}"} if address.trusted_proxies else {}
    return {
        **trusted,
        "LANGSMITH_AUTH_ENDPOINT": f"{address.url}/v2/deployments/{row['id']}",
        "LANGSMITH_ENDPOINT": address.url,
        "LANGSMITH_API_KEY": scope.box.decrypt(row["service_key_sealed"], str(row["id"])).decode(),
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_PROJECT": row["name"],
        # The only name that libraries of the time before LANGSMITH_PROJECT read, such as @langchain/core 0.3.
        "LANGCHAIN_PROJECT": row["name"],
        "LANGSMITH_HOST_PROJECT_ID": str(row["id"]),
        "LANGSMITH_HOST_PROJECT_NAME": row["name"],
        "LANGSMITH_TENANT_ID": str(row["workspace_id"]),
    }


def _desired_revision(scope: Scope, row: Record) -> DesiredRevision:
    return DesiredRevision(
        id=row["revision_id"],
        number=row["number"],
        status=RevisionStatus(row["revision_status"]),
        source=canonical_source(row["source"]),
        repo_url=row["repo_url"],
        repo_ref=row["repo_ref"],
        repo_commit_sha=row["repo_commit_sha"],
        repo_credential=find_credential(scope.box, row),
        graph_config_path=row["graph_config_path"],
        source_tarball_path=row["source_tarball_path"],
        image_uri=row["image_uri"],
        install_command=row["install_command"],
        build_command=row["build_command"],
        secrets=[
            secret
            for secret in decrypt_secrets(scope.box, row["revision_id"], row["secrets_sealed"])
            if secret.name not in row["ignored_secrets"]
        ],
        secret_references=row["secret_references"] or [],
        resource_spec=complete_resources(row["deployment_type"], row["resource_spec"]),
        built_from=row["built_from"],
        created_at=iso(row["created_at"]),
    )


async def report_deployment(scope: Scope, deployment_id: UUID, report: DeploymentReport) -> None:
    """Store a listener's report about a deployment. Raises DeploymentNotFound and BeingDeleted."""
    async with scope.db.transaction() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted

        await tx.execute(
            sql.report_deployment,
            id=deployment_id,
            status=report.status,
            reason=storable(report.reason, MAX_TEXT_BYTES) if report.reason else None,
            direct_url=report.custom_url,
        )

    if report.custom_url not in {None, row["direct_url"]}:
        await scope.router.refresh()


async def drop_deployment(scope: Scope, deployment_id: UUID) -> None:
    """Delete a deployment whose compute is gone: its rows, its key, and its tracing project if that was requested.

    Raises DeploymentNotFound and NotBeingDeleted.
    """
    async with scope.change() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] != DeploymentStatus.AWAITING_DELETE:
            raise NotBeingDeleted

        await tx.execute(sql.delete_deployment, id=deployment_id)
        if row["delete_tracing_project"]:
            await projects.delete_projects(tx, scope.workspace_id, [row["tracing_project_id"]])

        with contextlib.suppress(KeyNotFound):
            key_filter = KeyFilter(
                organization_id=scope.actor.organization_id, workspace_id=scope.workspace_id, service_keys_only=True
            )
            revocation = Revocation(row["service_key_id"], key_filter, force=True)

            await keys.revoke_key(tx, scope.authenticator, scope.actor, revocation)


class NoRegistry(BadRequest):
    """The platform has no image registry; push to a registry of your own and deploy the image as an external_image."""

    code = "no_registry"


class PushTokenRequest(msgspec.Struct):
    """The client's capabilities."""

    supports_registry_username: bool = False


async def refuse_push_token(scope: Scope, deployment_id: UUID) -> None:
    """Refuse a push token. Raises DeploymentNotFound, BadCombination for another source, and NoRegistry."""
    row = await find_deployment(scope.db, scope, deployment_id)
    if canonical_source(row["source"]) != PUSHED:
        raise BadCombination("push token is only available for 'internal_docker' source deployments")

    raise NoRegistry


async def describe_deployments(db: Session, workspace_id: UUID) -> str | None:
    """Name the workspace's deployments in a text, including those being deleted; None if there are none."""
    rows = await db.fetch(sql.deployments_of_workspace, workspace_id=workspace_id)
    return f"deployments: {', '.join(row['name'] for row in rows)}" if rows else None


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Delete the integrations and listeners of a workspace without deployments."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)
