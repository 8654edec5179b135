"""Deployments: created, listed, changed, deleted, and dropped once their compute is gone.

A create is one transaction: the tracing project, the service key of what will run, the deployment and its first
revision. What the fields must look like is in `rules.py`; revisions are in `revisions.py`.
"""

import contextlib
from uuid import UUID

from portside.control import revisions, rules
from portside.control.errors import BeingDeleted, DeploymentNotFound, NameTaken, NotBeingDeleted
from portside.control.revisions import RevisionContent, lock_deployment
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.secrets import open_secrets
from portside.control.sql import sql
from portside.control.types.dataplane import DeploymentReport
from portside.control.types.deployments import (
    Deployment,
    DeploymentCreate,
    DeploymentList,
    DeploymentPatch,
    DeploymentQuery,
    SourceConfig,
    SourceRevisionRequest,
)
from portside.control.types.statuses import DeploymentStatus
from portside.control.views import show_deployment
from portside.identity import keys
from portside.identity.keys import KeyNotFound, Owner
from portside.identity.types import KeyRequest
from portside.kernel.codec import storable
from portside.kernel.db import Record, Session, Transaction
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.tracing import projects

SERVICE_KEY_PERMISSIONS = ["runs:*", "projects:*"]
_FILTERS_NOT_BUILT = ("image_version", "remote_reconciled", "tag_value_ids")


async def create_deployment(scope: Scope, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision.

    Raises Invalid, SourceNotAvailable or BadCombination for the body, and NameTaken.
    """
    rules.check_create(body)
    revision = body.source_revision_config
    content = RevisionContent(
        body.source, revision.repo_ref or "", revision.graph_config_path or "", body.secrets or []
    )
    deployment_id = uuid7()
    async with scope.change() as tx:
        await _insert(tx, scope, deployment_id, body)
        await revisions.start_revision(tx, scope, deployment_id, content)
    return await get_deployment(scope, deployment_id)


async def _insert(tx: Transaction, scope: Scope, deployment_id: UUID, body: DeploymentCreate) -> None:
    project = await projects.ensure_project(tx, scope.workspace_id, body.name)
    owner = Owner(scope.actor.organization_id, scope.workspace_id)
    key = await keys.create_key(tx, owner, KeyRequest(f"Deployment {body.name}", SERVICE_KEY_PERMISSIONS))
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
        install_command=config.install_command,
        build_command=config.build_command,
        tracing_project_id=project.id,
        service_key_id=key.id,
        service_key_sealed=scope.box.seal(key.key.encode(), str(deployment_id)),
    )
    if inserted is None:
        raise NameTaken(f"The workspace has a deployment named {body.name} already.")


async def get_deployment(scope: Scope, deployment_id: UUID) -> Deployment:
    """Return one deployment. Raises DeploymentNotFound."""
    return show_deployment(scope, await _find(scope.db, scope, deployment_id))


async def _find(db: Session, scope: Scope, deployment_id: UUID) -> Record:
    rows = await _fetch(db, scope, DeploymentQuery(limit=1, deployment_ids=[deployment_id]))
    if not rows:
        raise DeploymentNotFound.of(deployment_id)
    return rows[0]


async def list_deployments(scope: Scope, query: DeploymentQuery) -> DeploymentList:
    """List the workspace's deployments, newest first. Raises Invalid for a filter that is not built yet."""
    for name in _FILTERS_NOT_BUILT:
        if getattr(query, name) is not None:
            raise Invalid.field(["query", name], "is not available yet", "not_supported")
    rows = await _fetch(scope.db, scope, query)
    return DeploymentList([show_deployment(scope, row) for row in rows], query.offset + len(rows))


async def _fetch(db: Session, scope: Scope, query: DeploymentQuery) -> list[Record]:
    return await db.fetch(
        sql.find_deployments,
        workspace_id=scope.workspace_id,
        ids=query.deployment_ids,
        name=query.name or None,
        name_contains=query.name_contains or None,
        status=query.status,
        deployment_type=query.deployment_type,
        limit=query.limit,
        offset=query.offset,
    )


async def patch_deployment(scope: Scope, deployment_id: UUID, body: DeploymentPatch) -> Deployment:
    """Change a deployment; null keeps what is there, and so does an empty list of secrets.

    Raises DeploymentNotFound, BeingDeleted, Immutable, and what `rules.check_patch` raises.
    """
    rules.check_patch(body)
    async with scope.change() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted
        latest = await _find(tx, scope, deployment_id)
        rules.check_patch_against(body, row, latest["repo_ref"])
        await _update(tx, deployment_id, body)
        if rules.makes_revision(body):
            await revisions.start_revision(tx, scope, deployment_id, _merge(scope, latest, body))
    return await get_deployment(scope, deployment_id)


async def _update(tx: Transaction, deployment_id: UUID, body: DeploymentPatch) -> None:
    config = body.source_config or SourceConfig()
    await tx.execute(
        sql.update_deployment,
        id=deployment_id,
        display_name=body.display_name,
        build_on_push=config.build_on_push,
        install_command=config.install_command,
        build_command=config.build_command,
    )


def _merge(scope: Scope, latest: Record, body: DeploymentPatch) -> RevisionContent:
    """Make the content of the next revision: what the PATCH says over the latest revision.

    An empty list of secrets keeps them, as it does on the service that clients know: command-line clients send one
    whenever they find no local secrets, and must not wipe out those that were set elsewhere.
    """
    revision = body.source_revision_config or SourceRevisionRequest()
    secrets = body.secrets or open_secrets(scope.box, latest["latest_revision_id"], latest["secrets_sealed"])
    return RevisionContent(
        body.revision_source or latest["source"],
        revision.repo_ref or latest["repo_ref"],
        revision.graph_config_path or latest["graph_config_path"],
        secrets,
    )


async def delete_deployment(scope: Scope, deployment_id: UUID, *, delete_tracing_project: bool) -> None:
    """Ask for a delete; the deployment can be read until its listener has cleaned up. Raises DeploymentNotFound."""
    async with scope.change() as tx:
        await lock_deployment(tx, scope, deployment_id)
        await tx.execute(sql.await_delete, id=deployment_id, delete_tracing_project=delete_tracing_project)
        await revisions.stop_revisions(tx, deployment_id)


async def report_deployment(scope: Scope, deployment_id: UUID, report: DeploymentReport) -> None:
    """Take note of how a deployment fares. Raises DeploymentNotFound and BeingDeleted."""
    async with scope.db.transaction() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted
        await tx.execute(
            sql.report_deployment,
            id=deployment_id,
            status=report.status,
            reason=storable(report.reason, MAX_TEXT_BYTES) if report.reason else None,
            custom_url=report.custom_url,
        )


async def drop_deployment(scope: Scope, deployment_id: UUID) -> None:
    """Forget a deployment whose compute is gone: its rows, its key, and its tracing project where that was asked for.

    Raises DeploymentNotFound and NotBeingDeleted.
    """
    async with scope.change() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] != DeploymentStatus.AWAITING_DELETE:
            raise NotBeingDeleted
        await tx.execute(sql.delete_deployment, id=deployment_id)
        if row["delete_tracing_project"]:
            await projects.delete_project(tx, scope.workspace_id, row["tracing_project_id"])
        with contextlib.suppress(KeyNotFound):
            await keys.revoke_key(tx, scope.keyring, scope.actor, row["service_key_id"])
