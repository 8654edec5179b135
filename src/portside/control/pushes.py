"""Pushes to git hosts start revisions.

A delivery has effect once. It starts revisions of the deployments that use the integration of the webhook, have
build_on_push and follow the pushed branch. `push_events.py` verifies and parses deliveries; `polling.py` handles git
hosts that cannot call this platform.
"""

from collections.abc import Mapping
from uuid import UUID

from portside.control.content import build_next_content
from portside.control.integrations import decrypt_token
from portside.control.push_events import Push, is_signed, normalize_address, parse_push, read_delivery_id
from portside.control.revisions import lock_deployment, start_revision
from portside.control.scope import Scope, ScopeFactory
from portside.control.sql import sql
from portside.control.types import PushResponse
from portside.kernel.db import Database, Record, Transaction
from portside.kernel.errors import Unauthorized
from portside.kernel.reconcile import Status, Task
from portside.listener_api import DeploymentStatus

MAX_PUSH_BYTES = 5 * 1024 * 1024


MAX_DEPLOYMENTS = 200
# A delivery that is older than that and was captured counts again: then the commit of that time is built.
DELIVERIES_KEPT_DAYS = 400


class PushNotSigned(Unauthorized):
    """The webhook does not exist or the signature is wrong; check its address and secret at the git host."""

    code = "push_not_signed"


async def receive_push(
    scopes: ScopeFactory, integration_id: UUID, headers: Mapping[str, str], body: bytes
) -> PushResponse:
    """Handle a delivery to an integration's webhook. Raises PushNotSigned, and Invalid for another body."""
    row = await scopes.db.fetchrow(sql.integration_of_webhook, id=integration_id)
    secret = decrypt_token(scopes.box, integration_id, row["webhook_secret_sealed"]) if row else None
    if row is None or secret is None or not is_signed(row["kind"], secret, headers, body):
        raise PushNotSigned

    push = parse_push(row["kind"], headers, body)
    if isinstance(push, str):
        return PushResponse(ignored=push)

    scope = scopes.for_workspace(row["organization_id"], row["workspace_id"])
    async with scope.change() as tx:
        delivery = read_delivery_id(row["kind"], headers, body)
        if await tx.fetchval(sql.insert_delivery, integration_id=integration_id, delivery_id=delivery) is None:
            return PushResponse(ignored="this delivery was already handled")

        revision_ids = []
        for deployment in await _find_followers(tx, row, push):
            revision_id = await build_commit(
                tx, scope, deployment["id"], branch=deployment["repo_ref"], commit=push.commit
            )
            if revision_id is not None:
                revision_ids.append(revision_id)

    if not revision_ids:
        return PushResponse(ignored="no deployment follows this branch, or all of them already have this commit")

    return PushResponse(revision_ids)


async def _find_followers(tx: Transaction, integration: Record, push: Push) -> list[Record]:
    rows = await tx.fetch(
        sql.deployments_to_build,
        workspace_id=integration["workspace_id"],
        integration_id=integration["id"],
        branch=push.branch,
        is_default=push.is_default,
        limit=MAX_DEPLOYMENTS,
    )

    return [row for row in rows if normalize_address(row["repo_url"] or "") in push.repositories]


async def build_commit(tx: Transaction, scope: Scope, deployment_id: UUID, *, branch: str, commit: str) -> UUID | None:
    """Start a revision of a commit, unless the deployment already has it or no longer follows the branch.

    The branch is HEAD for a deployment that names none. Apart from the commit, the revision has the content that the
    next revision would have anyway. Returns its id.
    """
    deployment = await lock_deployment(tx, scope, deployment_id)
    latest = await tx.fetchrow(sql.latest_content, id=deployment_id, commit=commit)
    if latest is None or latest["repo_ref"] != branch or not deployment["build_on_push"]:
        return None
    if deployment["status"] == DeploymentStatus.AWAITING_DELETE:
        return None

    await tx.execute(sql.record_seen_commit, deployment_id=deployment_id, ref=branch, commit=commit)
    if latest["repo_commit_sha"] == commit:
        return None

    content = await build_next_content(tx, scope, deployment)
    content.repo_commit_sha = commit
    return await start_revision(tx, scope, deployment_id, content)


class ExpiredPushDeliveries(Task):
    """Deletes the ids of old deliveries."""

    every_s = 3600.0
    deletes = True

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete the ids of deliveries older than `DELIVERIES_KEPT_DAYS`."""
        count = await self._db.execute(sql.delete_deliveries, after_days=DELIVERIES_KEPT_DAYS)
        return Status({"deleted": count})
