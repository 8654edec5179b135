"""The desired state that listeners poll for, and their reports about deployments.

A listener's desired state is its deployments with their active and unfinished revisions. The generation is read before
the rows. The rows may therefore be newer than the generation, which costs one extra response, but never older. A
deployment belongs to the first listener that took it.
"""

import contextlib
import time
from collections.abc import Collection, Sequence
from itertools import groupby
from uuid import UUID

from portside.control.errors import BeingDeleted, ListenerNotFound, NotBeingDeleted, RevisionNotFound
from portside.control.integrations import find_credential
from portside.control.operations import to_scale
from portside.control.resources import complete_resources
from portside.control.revisions import lock_deployment
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import PlatformAddress, Scope
from portside.control.secrets import decrypt_secrets
from portside.control.service_keys import replace_invalid_keys
from portside.control.sql import sql
from portside.identity import keys
from portside.identity.keys import KeyFilter, KeyNotFound, Revocation
from portside.kernel.aliases import canonical_source
from portside.kernel.clock import iso
from portside.kernel.db import Record, Session
from portside.kernel.timeouts import wait_at_most
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

POLL_S = 1.0
_STOPPED = "No server runs since the platform was stopped; one is being started."


async def wait_for_desired(scope: Scope, address: PlatformAddress, listener_id: UUID, query: DesiredQuery) -> Desired:
    """Return the desired state as soon as it differs from the listener's. Raises ListenerNotFound."""
    updated_id = await scope.db.fetchval(
        sql.touch_listener, id=listener_id, workspace_id=scope.workspace_id, key_id=scope.actor.key_id
    )
    if updated_id is None:
        raise ListenerNotFound.of(listener_id)

    generation = await _wait_for_change(scope, query)
    await replace_invalid_keys(scope)
    await scope.db.execute(sql.take_deployments, workspace_id=scope.workspace_id, listener_id=listener_id)

    rows = await scope.db.fetch(sql.desired_state, workspace_id=scope.workspace_id, listener_id=listener_id)
    rows_by_deployment = groupby(rows, key=lambda row: row["id"])

    return Desired(generation, [_to_desired_deployment(scope, address, list(group)) for _, group in rows_by_deployment])


async def get_desired_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> DesiredRevision:
    """Return any revision of a deployment as a listener builds it. Raises RevisionNotFound."""
    row = await scope.db.fetchrow(
        sql.desired_revision, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
    )
    if row is None:
        raise RevisionNotFound.of(revision_id)

    return _to_desired_revision(scope, row)


async def _wait_for_change(scope: Scope, query: DesiredQuery) -> int:
    """Wait until the generation differs from the listener's. A smaller one means that the database was restored."""
    deadline = time.monotonic() + query.wait_s
    while True:
        change = scope.changes.watch(scope.workspace_id)
        generation: int = await scope.db.fetchval(sql.read_generation, workspace_id=scope.workspace_id)
        remaining_s = deadline - time.monotonic()
        if generation != query.after or remaining_s <= 0 or scope.changes.closed:
            return generation

        await wait_at_most(min(POLL_S, remaining_s), change.wait())


def _to_desired_deployment(scope: Scope, address: PlatformAddress, rows: Sequence[Record]) -> DesiredDeployment:
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
        environment=_build_environment(scope, address, first),
        roll_forward=first["roll_forward"],
        revisions=[_to_desired_revision(scope, row) for row in rows if row["revision_id"] is not None],
    )


def _build_environment(scope: Scope, address: PlatformAddress, row: Record) -> dict[str, str]:
    """Return the platform's variables. They send the traces of runs to the deployment's own project.

    The servers verify API keys at LANGSMITH_AUTH_ENDPOINT even if a secret sends the traces elsewhere. This address is
    the deployment's own, so that the platform applies its `agent_access` for any version of the server.
    """
    # The agent server trusts the machine itself, where the front is, unless this names other proxies too.
    proxies = {"TRUSTED_PROXIES": f"127.0.0.1,::1,{address.trusted_proxies}"} if address.trusted_proxies else {}
    return {
        **proxies,
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


def _to_desired_revision(scope: Scope, row: Record) -> DesiredRevision:
    secrets = decrypt_secrets(scope.box, row["revision_id"], row["secrets_sealed"])
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
        secrets=[secret for secret in secrets if secret.name not in row["ignored_secrets"]],
        secret_references=row["secret_references"] or [],
        resource_spec=complete_resources(row["deployment_type"], row["resource_spec"]),
        built_from=row["built_from"],
        created_at=iso(row["created_at"]),
    )


async def report_deployment(scope: Scope, deployment_id: UUID, report: DeploymentReport) -> None:
    """Store a listener's report about a deployment. Raises DeploymentNotFound and BeingDeleted.

    One that is being deleted stays in that status: only why it is not deleted yet is stored.
    """
    reason = storable(report.reason, MAX_TEXT_BYTES) if report.reason else None
    async with scope.db.transaction() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            if report.status != DeploymentStatus.UNKNOWN or reason is None:
                raise BeingDeleted

            await tx.execute(sql.report_delete_failure, id=deployment_id, reason=reason)
            return

        await tx.execute(
            sql.report_deployment,
            id=deployment_id,
            status=report.status,
            reason=reason,
            direct_url=report.custom_url,
        )

    if report.custom_url not in {None, row["direct_url"]}:
        await scope.router.refresh()


async def report_stopped_deployments(db: Session, deployment_ids: Collection[UUID]) -> None:
    """Say of deployments that nothing of them runs yet, before their listener is started and says so itself."""
    await db.execute(sql.report_stopped_deployments, ids=list(deployment_ids), reason=_STOPPED)


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
