"""The desired state of a listener by long-poll: its deployments with their active and unfinished revisions.

The generation is read before the rows. The rows may therefore be newer than the generation, which costs one extra
response, but never older. A deployment belongs to the first listener that took it.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from portside.control.deployments import replace_invalid_keys
from portside.control.errors import ListenerNotFound
from portside.control.integrations import credential_of
from portside.control.operations import show_scale
from portside.control.resources import resources_of
from portside.control.scope import PlatformAddress, Scope
from portside.control.secrets import decrypt_secrets
from portside.control.sql import sql
from portside.kernel.aliases import canonical_source
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.listener_api import (
    DeploymentStatus,
    Desired,
    DesiredDeployment,
    DesiredQuery,
    DesiredRevision,
    RevisionStatus,
)

POLL_S = 1.0


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
    deployments = [_deployment(scope, address, list(group)) for _, group in groupby(rows, key=lambda row: row["id"])]
    return Desired(generation, deployments)


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
            async with asyncio.timeout(min(POLL_S, remaining_s)):
                await changed.wait()


def _deployment(scope: Scope, address: PlatformAddress, rows: Sequence[Record]) -> DesiredDeployment:
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
        scale=show_scale(first),
        environment=_environment(scope, address, first),
        revisions=[_revision(scope, row) for row in rows if row["revision_id"] is not None],
    )


def _environment(scope: Scope, address: PlatformAddress, row: Record) -> dict[str, str]:
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
        "LANGSMITH_HOST_PROJECT_ID": str(row["id"]),
        "LANGSMITH_HOST_PROJECT_NAME": row["name"],
        "LANGSMITH_TENANT_ID": str(row["workspace_id"]),
    }


def _revision(scope: Scope, row: Record) -> DesiredRevision:
    return DesiredRevision(
        id=row["revision_id"],
        number=row["number"],
        status=RevisionStatus(row["revision_status"]),
        source=canonical_source(row["source"]),
        repo_url=row["repo_url"],
        repo_ref=row["repo_ref"],
        repo_commit_sha=row["repo_commit_sha"],
        repo_credential=credential_of(scope.box, row),
        graph_config_path=row["graph_config_path"],
        source_tarball_path=row["source_tarball_path"],
        image_uri=row["image_uri"],
        install_command=row["install_command"],
        build_command=row["build_command"],
        secrets=decrypt_secrets(scope.box, row["revision_id"], row["secrets_sealed"]),
        secret_references=row["secret_references"] or [],
        resource_spec=resources_of(row["deployment_type"], row["resource_spec"]),
        built_from=row["built_from"],
        created_at=iso(row["created_at"]),
    )
