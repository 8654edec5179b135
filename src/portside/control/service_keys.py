"""The service keys of deployments, with which their servers send traces and check the keys of callers.

When a key is rotated, the old one works for another hour, in which the deployment's servers change to the new one.
"""

from datetime import timedelta
from uuid import UUID

from portside.control.errors import BeingDeleted
from portside.control.revisions import lock_deployment
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.identity import keys
from portside.identity.keys import Owner
from portside.identity.types import KeyRequest, NewKey
from portside.kernel.db import Session, Transaction
from portside.kernel.logs import get_logger
from portside.listener_api import DeploymentStatus

log = get_logger(__name__)

_PERMISSIONS = ["runs:*", "projects:*"]
OLD_KEY_LIFETIME = timedelta(hours=1)


async def create_key(tx: Session, scope: Scope, deployment_id: UUID, name: str) -> tuple[NewKey, bytes]:
    """Create a service key for a deployment; return it and its encrypted form."""
    owner = Owner(scope.actor.organization_id, scope.workspace_id, created_by=scope.actor)
    request = KeyRequest(f"Deployment {name}", _PERMISSIONS)
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
