"""What a listener has to bring about: its deployments and their unfinished and active revisions, by long-poll.

The generation is read before the rows: what a listener gets may be newer than the number it gets it under, which costs
one more answer, but never older. A deployment belongs to the listener that took it first.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from portside.control.errors import ListenerNotFound
from portside.control.integrations import credential_of
from portside.control.resources import resources_of
from portside.control.scaling import show_scale
from portside.control.scope import PlatformAddress, Scope
from portside.control.secrets import open_secrets
from portside.control.sql import sql
from portside.control.types.dataplane import Desired, DesiredDeployment, DesiredQuery, DesiredRevision
from portside.control.types.statuses import DeploymentStatus, RevisionStatus
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.kernel.spellings import canonical_source

LOOK_AGAIN_S = 1.0


async def wait_for_desired(scope: Scope, address: PlatformAddress, listener_id: UUID, query: DesiredQuery) -> Desired:
    """Return the desired state as soon as it is not the one the listener knows. Raises ListenerNotFound."""
    seen = await scope.db.fetchval(sql.touch_listener, id=listener_id, workspace_id=scope.workspace_id)
    if seen is None:
        raise ListenerNotFound.of(listener_id)
    generation = await _wait_for_change(scope, query)
    await scope.db.execute(sql.take_deployments, workspace_id=scope.workspace_id, listener_id=listener_id)
    rows = await scope.db.fetch(sql.desired_state, workspace_id=scope.workspace_id, listener_id=listener_id)
    deployments = [_deployment(scope, address, list(group)) for _, group in groupby(rows, key=lambda row: row["id"])]
    return Desired(generation, deployments)


async def _wait_for_change(scope: Scope, query: DesiredQuery) -> int:
    """Wait until the generation differs from the known one: smaller means that the database was restored."""
    deadline = time.monotonic() + query.wait_s
    while True:
        changed = scope.changes.watch(scope.workspace_id)
        generation: int = await scope.db.fetchval(sql.read_generation, workspace_id=scope.workspace_id)
        left_s = deadline - time.monotonic()
        if generation != query.after or left_s <= 0 or scope.changes.closed:
            return generation
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), min(LOOK_AGAIN_S, left_s))


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
    """Return the platform's variables, through which runs arrive as traces in the deployment's own project.

    Whose a key is that somebody sends, its servers ask here, wherever their traces go.
    """
    return {
        "LANGSMITH_AUTH_ENDPOINT": address.url,
        "LANGSMITH_ENDPOINT": address.url,
        "LANGSMITH_API_KEY": scope.box.open(row["service_key_sealed"], str(row["id"])).decode(),
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
        secrets=open_secrets(scope.box, row["revision_id"], row["secrets_sealed"]),
        secret_references=row["secret_references"] or [],
        resource_spec=resources_of(row["deployment_type"], row["resource_spec"]),
        built_from=row["built_from"],
        created_at=iso(row["created_at"]),
    )
