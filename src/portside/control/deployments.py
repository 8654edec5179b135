"""Deployments: created, listed, changed, deleted, and dropped once their compute is gone.

A create is one transaction: the tracing project, the service key of what will run, the deployment and its first
revision. What the fields must look like is in `rules.py`; revisions are in `revisions.py`.
"""

import contextlib
from datetime import timedelta
from uuid import UUID

from portside.control import placements, revisions, rules
from portside.control.archives import check_issued
from portside.control.content import RevisionContent, change, check_content, first_content, has_code, next_content
from portside.control.errors import BeingDeleted, DeploymentNotFound, NameTaken, NotBeingDeleted
from portside.control.git_source import check_push
from portside.control.integrations import check_named
from portside.control.placements import Placement
from portside.control.revisions import lock_deployment
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.secrets import seal_secrets
from portside.control.sql import sql
from portside.control.types.dataplane import DeploymentReport
from portside.control.types.deployments import (
    DeletedDeployments,
    Deployment,
    DeploymentCreate,
    DeploymentList,
    DeploymentPatch,
    DeploymentQuery,
    Revision,
    SourceConfig,
)
from portside.control.types.statuses import DeploymentStatus
from portside.control.views import show_deployment
from portside.identity import keys
from portside.identity.keys import KeyNotFound, Owner, Shelf
from portside.identity.types import KeyRequest
from portside.kernel.codec import storable
from portside.kernel.db import Record, Session, Transaction
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.kernel.spellings import canonical_source
from portside.tracing import projects

SERVICE_KEY_PERMISSIONS = ["runs:*", "projects:*"]
# A listener asks at least every half minute; one that has not for so long says nothing about now.
SILENT_AFTER = timedelta(minutes=2)


async def create_deployment(scope: Scope, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision.

    An upload and a pushed image come later, and the first revision with them. Raises Invalid, SourceNotAvailable or
    BadCombination for the body, and NameTaken.
    """
    rules.check_create(body)
    content = first_content(body)
    deployment_id = uuid7()
    async with scope.change() as tx:
        await check_named(tx, scope, body.source_config.integration_id, body.source_config.repo_url)
        place = await placements.place(tx, scope, canonical_source(body.source), body.source_config)
        placements.check_cluster_only(place, body)
        await _insert(tx, scope, deployment_id, body, place)
        if content is not None:
            await _start(tx, scope, deployment_id, content, archive=content.source_tarball_path)
    return await get_deployment(scope, deployment_id)


async def _insert(tx: Transaction, scope: Scope, deployment_id: UUID, body: DeploymentCreate, place: Placement) -> None:
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
        asked_url=config.custom_url,
        listener_id=place.listener_id,
        k8s_namespace=place.k8s_namespace,
        secrets_sealed=seal_secrets(scope.box, deployment_id, body.secrets or []),
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
    """List the workspace's deployments, newest first. Raises Invalid for a filter by tags."""
    if query.tag_value_ids:
        raise Invalid.field(["query", "tag_value_ids"], "deployments have no tags here", "not_supported")
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
        image_version=query.image_version or None,
        names_listener=query.remote_reconciled,
        silent_after=SILENT_AFTER,
        limit=query.limit,
        offset=query.offset,
    )


async def patch_deployment(scope: Scope, deployment_id: UUID, body: DeploymentPatch) -> Deployment:
    """Change a deployment; null keeps what is there, and so does an empty list of secrets.

    Raises DeploymentNotFound, BeingDeleted, Immutable, and what `rules.check_patch` raises.
    """
    async with scope.change() as tx:
        await _apply(tx, scope, deployment_id, body, always=False)
    return await get_deployment(scope, deployment_id)


async def add_revision(scope: Scope, deployment_id: UUID, body: DeploymentPatch) -> Revision:
    """Change a deployment as a PATCH does, and make a revision whatever the change is. Raises what a PATCH raises."""
    async with scope.change() as tx:
        revision_id = await _apply(tx, scope, deployment_id, body, always=True)
    assert revision_id is not None  # noqa: S101 - always makes one
    return await revisions.get_revision(scope, deployment_id, revision_id)


async def _apply(
    tx: Transaction, scope: Scope, deployment_id: UUID, body: DeploymentPatch, *, always: bool
) -> UUID | None:
    """Do what a PATCH says and return the revision that this made, if any."""
    row = await lock_deployment(tx, scope, deployment_id)
    if row["status"] == DeploymentStatus.AWAITING_DELETE:
        raise BeingDeleted
    rules.check_patch(body, row)
    build_on_push = _build_on_push(body, row)
    content = await next_content(tx, scope, row, body.revision_source)
    change(content, body)
    place = await placements.place_of(tx, scope, row)
    placements.check_cluster_only(place, body)
    check_push(build_on_push=build_on_push, repo_ref=content.repo_ref)
    await _update(tx, deployment_id, body)
    if not always and not rules.makes_revision(body):
        return None
    if not always and row["latest_revision_id"] is None and not has_code(content):
        sealed = seal_secrets(scope.box, deployment_id, content.secrets)
        await tx.execute(sql.keep_secrets, id=deployment_id, secrets_sealed=sealed)
        return None
    check_content(content, build_on_push=build_on_push)
    archive = body.source_revision_config.source_tarball_path if body.source_revision_config else None
    return await _start(tx, scope, deployment_id, content, archive=archive)


def _build_on_push(body: DeploymentPatch, row: Record) -> bool:
    asked = body.source_config.build_on_push if body.source_config else None
    return bool(row["build_on_push"] if asked is None else asked)


async def _start(
    tx: Transaction, scope: Scope, deployment_id: UUID, content: RevisionContent, *, archive: str | None
) -> UUID:
    """Start a revision, of a newly named archive where there is one."""
    if archive is not None:
        await check_issued(tx, deployment_id, archive)
    return await revisions.start_revision(tx, scope, deployment_id, content)


async def _update(tx: Transaction, deployment_id: UUID, body: DeploymentPatch) -> None:
    config = body.source_config or SourceConfig()
    await tx.execute(
        sql.update_deployment,
        id=deployment_id,
        display_name=body.display_name,
        build_on_push=config.build_on_push,
        install_command=config.install_command,
        build_command=config.build_command,
        asked_url=config.custom_url,
    )


async def redeploy(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Deployment:
    """Serve again what a revision was made of. Raises what `revisions.redeploy_revision` raises."""
    await revisions.redeploy_revision(scope, deployment_id, revision_id)
    return await get_deployment(scope, deployment_id)


async def delete_deployment(scope: Scope, deployment_id: UUID, *, delete_tracing_project: bool) -> None:
    """Ask for a delete; the deployment can be read until its listener has cleaned up. Raises DeploymentNotFound."""
    async with scope.change() as tx:
        await lock_deployment(tx, scope, deployment_id)
        await _give_up(tx, deployment_id, delete_tracing_project=delete_tracing_project)


async def delete_deployments(scope: Scope, ids: list[UUID]) -> DeletedDeployments:
    """Ask for the delete of several deployments, all or none. Raises DeploymentNotFound for the first unknown one."""
    async with scope.change() as tx:
        rows = await tx.fetch(sql.lock_deployments, ids=ids, workspace_id=scope.workspace_id)
        unknown = [deployment_id for deployment_id in ids if deployment_id not in {row["id"] for row in rows}]
        if unknown:
            raise DeploymentNotFound.of(unknown[0])
        for row in rows:
            await _give_up(tx, row["id"], delete_tracing_project=False)
    return DeletedDeployments([row["id"] for row in rows])


async def _give_up(tx: Transaction, deployment_id: UUID, *, delete_tracing_project: bool) -> None:
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
            await projects.delete_projects(tx, scope.workspace_id, [row["tracing_project_id"]])
        with contextlib.suppress(KeyNotFound):
            shelf = Shelf(
                organization_id=scope.actor.organization_id, workspace_id=scope.workspace_id, of_services=True
            )
            await keys.revoke_key(tx, scope.keyring, scope.actor, row["service_key_id"], shelf)
