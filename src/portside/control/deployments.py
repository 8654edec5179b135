"""Deployments: create, list, change and delete them.

A create is one transaction: the tracing project, the service key, the deployment and its first revision. `rules.py`
checks the fields, `revisions.py` has the revisions, and `desired_state.py` tells listeners what to run.
"""

from datetime import timedelta
from uuid import UUID

from portside.control import revisions, rules
from portside.control.addresses import get_public_url
from portside.control.agent_access import to_columns
from portside.control.archives import claim_archive
from portside.control.content import (
    RevisionContent,
    apply_patch,
    build_first_content,
    build_next_content,
    check_content,
    has_code,
)
from portside.control.custom_hosts import read_host
from portside.control.errors import BadCombination, BeingDeleted, DeploymentNotFound, NameTaken, NoRegistry
from portside.control.integrations import check_integration
from portside.control.listeners import Placement, check_compute, check_sizes, choose_placement, get_placement
from portside.control.revisions import lock_deployment, read_deployment
from portside.control.scope import Scope
from portside.control.secrets import encrypt_secrets
from portside.control.service_keys import create_key
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
from portside.kernel.aliases import canonical_source
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.listener_api import DeploymentStatus
from portside.tracing import projects

# A listener polls at least every 30 seconds. After this time its last report is no longer current.
SILENT_AFTER = timedelta(minutes=2)


async def create_deployment(scope: Scope, body: DeploymentCreate) -> Deployment:
    """Create a deployment and its first revision.

    Uploads and pushed images get their first revision later, with a PATCH. Raises Invalid, SourceNotAvailable,
    BadCombination and NameTaken.
    """
    rules.check_create(body)
    content = build_first_content(body)

    deployment_id = uuid7()
    async with scope.change() as tx:
        await check_integration(tx, scope, body.source_config.integration_id, body.source_config.repo_url)

        placement = await choose_placement(tx, scope, canonical_source(body.source), body.source_config)
        check_compute(placement, body)
        check_sizes(placement, body.source_config.resource_spec)
        await _check_address(tx, scope, placement, deployment_id, body.source_config.custom_url)
        await _insert_deployment(tx, scope, deployment_id, body=body, placement=placement)

        if content is not None:
            await _start_revision(tx, scope, deployment_id, content, archive=content.source_tarball_path)

    return await get_deployment(scope, deployment_id)


async def _insert_deployment(
    tx: Transaction, scope: Scope, deployment_id: UUID, *, body: DeploymentCreate, placement: Placement
) -> None:
    project = await projects.ensure_project(tx, scope.workspace_id, body.name)
    key, encrypted = await create_key(tx, scope, deployment_id, body.name)
    config = body.source_config

    inserted_id = await tx.fetchval(
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
    if inserted_id is None:
        raise NameTaken(f"The workspace already has a deployment named {body.name}; choose another name.")


async def get_deployment(scope: Scope, deployment_id: UUID) -> Deployment:
    """Return one deployment. Raises DeploymentNotFound."""
    return to_deployment(scope, await _read_row(scope.db, scope, deployment_id))


async def _read_row(db: Session, scope: Scope, deployment_id: UUID) -> Record:
    rows = await _fetch_rows(db, scope, DeploymentQuery(limit=1, deployment_ids=[deployment_id]))
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

    rows = await _fetch_rows(scope.db, scope, query)
    return DeploymentList([to_deployment(scope, row) for row in rows], query.offset + len(rows))


async def _fetch_rows(db: Session, scope: Scope, query: DeploymentQuery) -> list[Record]:
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
        await _apply_change(tx, scope, deployment_id, body, always=False)

    await scope.router.refresh()
    return await get_deployment(scope, deployment_id)


async def create_revision(scope: Scope, deployment_id: UUID, body: DeploymentPatch) -> Revision:
    """Change a deployment like a PATCH, and always create a revision. Raises what a PATCH raises."""
    async with scope.change() as tx:
        revision_id = await _apply_change(tx, scope, deployment_id, body, always=True)

    assert revision_id is not None  # noqa: S101 - always=True creates one
    return await revisions.get_revision(scope, deployment_id, revision_id)


async def _apply_change(
    tx: Transaction, scope: Scope, deployment_id: UUID, body: DeploymentPatch, *, always: bool
) -> UUID | None:
    """Apply a PATCH; return the id of the revision that it created, if any."""
    row = await lock_deployment(tx, scope, deployment_id)
    if row["status"] == DeploymentStatus.AWAITING_DELETE:
        raise BeingDeleted

    # The address that clients see, which they may send back.
    visible_url = get_public_url(row, scope.addresses)
    rules.check_patch(body, {**row, "custom_url": visible_url})
    build_on_push = _builds_on_push(body, row)
    content = await build_next_content(tx, scope, row, body.revision_source)
    apply_patch(content, body)

    placement = await get_placement(tx, scope, row)
    check_compute(placement, body)
    check_sizes(placement, body.source_config.resource_spec if body.source_config else None)
    check_push(build_on_push=build_on_push, repo_ref=content.repo_ref)

    config = body.source_config or SourceConfig()
    # Sending it back is no request for that address.
    requested_url = None if config.custom_url == visible_url else config.custom_url
    await _check_address(tx, scope, placement, deployment_id, requested_url)
    await _update_deployment(tx, deployment_id, body, requested_url)

    if not always and not rules.makes_revision(body):
        return None

    if not always and row["latest_revision_id"] is None and not has_code(content):
        encrypted = encrypt_secrets(scope.box, deployment_id, content.secrets)
        await tx.execute(sql.keep_secrets, id=deployment_id, secrets_sealed=encrypted)
        return None

    check_content(content, build_on_push=build_on_push)
    archive = body.source_revision_config.source_tarball_path if body.source_revision_config else None
    return await _start_revision(tx, scope, deployment_id, content, archive=archive)


def _builds_on_push(body: DeploymentPatch, row: Record) -> bool:
    """Whether the deployment builds on push after a PATCH."""
    value = body.source_config.build_on_push if body.source_config else None
    return bool(row["build_on_push"] if value is None else value)


async def _start_revision(
    tx: Transaction, scope: Scope, deployment_id: UUID, content: RevisionContent, *, archive: str | None
) -> UUID:
    """Start a revision; `archive` is the path of a newly uploaded archive, if any."""
    if archive is not None:
        await claim_archive(tx, deployment_id, archive)
    return await revisions.start_revision(tx, scope, deployment_id, content)


async def _check_address(
    tx: Transaction, scope: Scope, placement: Placement, deployment_id: UUID, requested_url: str | None
) -> None:
    """Raise BadCombination for an address that the front may not route, or that no deployment of a cluster may have."""
    if not requested_url:
        return

    is_on_cluster = placement.compute_type == "k8s"
    objection = (scope.custom_hosts if is_on_cluster else scope.router).find_objection(requested_url)
    if objection is None and is_on_cluster:
        await tx.execute(sql.lock_custom_hosts)
        if await tx.fetchval(sql.has_custom_host, id=deployment_id, host=read_host(requested_url)):
            objection = "has the host of another deployment; choose a host of its own"

    if objection is not None:
        raise BadCombination(f"source_config.custom_url {objection}")


async def _update_deployment(
    tx: Transaction, deployment_id: UUID, body: DeploymentPatch, requested_url: str | None
) -> None:
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


async def redeploy_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Deployment:
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
        existing_ids = {row["id"] for row in rows}
        unknown_ids = [deployment_id for deployment_id in ids if deployment_id not in existing_ids]
        if unknown_ids:
            raise DeploymentNotFound.of(unknown_ids[0])

        for row in rows:
            await _request_delete(tx, row["id"], delete_tracing_project=False)

    await scope.router.refresh()
    return DeletedDeployments([row["id"] for row in rows])


async def _request_delete(tx: Transaction, deployment_id: UUID, *, delete_tracing_project: bool) -> None:
    await tx.execute(sql.request_delete, id=deployment_id, delete_tracing_project=delete_tracing_project)
    await revisions.stop_revisions(tx, deployment_id)


async def move_repositories(db: Database, before: str, after: str) -> int:
    """Change the addresses of repositories in a folder that was moved; return how many deployments have one there."""
    return len(await db.fetch(sql.move_repositories, before=before, after=after))


async def refuse_push_token(scope: Scope, deployment_id: UUID) -> None:
    """Refuse a push token. Raises DeploymentNotFound, BadCombination for another source, and NoRegistry."""
    row = await read_deployment(scope.db, scope, deployment_id)
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
