"""Pushes: deliveries of git hosts, and the revisions that they make.

A delivery counts once. It reaches the deployments that come from the integration whose secret it was signed with, build
on push and follow the branch. What they look like is in `push_events.py`; hosts that cannot call are polled
(`polling.py`).
"""

from collections.abc import Mapping
from uuid import UUID

from portside.control.background import Services
from portside.control.content import next_content
from portside.control.integrations import open_token
from portside.control.push_events import Push, delivery_id, is_signed, normalise, read_push
from portside.control.revisions import lock_deployment, start_revision
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.integrations import PushAnswer
from portside.control.types.statuses import DeploymentStatus
from portside.kernel.db import Database, Record, Transaction
from portside.kernel.errors import Unauthorized
from portside.kernel.reconcile import Status, Task

MAX_DEPLOYMENTS = 200
DELIVERIES_KEPT_DAYS = 7


class PushNotSigned(Unauthorized):
    """The push is not signed with the secret of this webhook, or there is no such webhook."""

    code = "push_not_signed"


async def receive_push(services: Services, integration_id: UUID, headers: Mapping[str, str], body: bytes) -> PushAnswer:
    """Act on a delivery to an integration's webhook. Raises PushNotSigned, and Invalid for what is no event."""
    row = await services.db.fetchrow(sql.hooked_integration, id=integration_id)
    secret = open_token(services.box, integration_id, row["webhook_secret_sealed"]) if row else None
    if row is None or secret is None or not is_signed(row["kind"], secret, headers, body):
        raise PushNotSigned
    push = read_push(row["kind"], headers, body)
    if isinstance(push, str):
        return PushAnswer(ignored=push)
    scope = services.scope_for(row["organization_id"], row["workspace_id"])
    async with scope.change() as tx:
        delivery = delivery_id(row["kind"], headers, body)
        if await tx.fetchval(sql.note_delivery, integration_id=integration_id, delivery_id=delivery) is None:
            return PushAnswer(ignored="this delivery has arrived before")
        made = [await build_commit(tx, scope, found, push.branch, push.commit) for found in await _find(tx, row, push)]
    started = [revision_id for revision_id in made if revision_id is not None]
    return PushAnswer(started, None if started else "no deployment follows this branch, or it has this commit already")


async def _find(tx: Transaction, integration: Record, push: Push) -> list[UUID]:
    rows = await tx.fetch(
        sql.deployments_to_build,
        workspace_id=integration["workspace_id"],
        integration_id=integration["id"],
        branch=push.branch,
        limit=MAX_DEPLOYMENTS,
    )
    return [row["id"] for row in rows if normalise(row["repo_url"] or "") in push.repositories]


async def build_commit(tx: Transaction, scope: Scope, deployment_id: UUID, branch: str, commit: str) -> UUID | None:
    """Start a revision of a commit, unless the deployment has it already or no longer follows the branch.

    It is made of what the next revision would be made of without the push. Returns its id.
    """
    deployment = await lock_deployment(tx, scope, deployment_id)
    latest = await tx.fetchrow(sql.latest_content, id=deployment_id)
    if latest is None or latest["repo_ref"] != branch or not deployment["build_on_push"]:
        return None
    if deployment["status"] == DeploymentStatus.AWAITING_DELETE:
        return None
    await tx.execute(sql.note_seen, deployment_id=deployment_id, ref=branch, commit=commit)
    if latest["repo_commit_sha"] == commit:
        return None
    content = await next_content(tx, scope, deployment)
    content.repo_commit_sha = commit
    return await start_revision(tx, scope, deployment_id, content)


class OldDeliveries(Task):
    """Forget deliveries that no git host repeats any more."""

    every_s = 3600.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Forget those of more than a week ago."""
        return Status({"forgotten": await self._db.execute(sql.forget_deliveries, after_days=DELIVERIES_KEPT_DAYS)})
