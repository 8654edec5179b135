"""Revisions: started, queued behind one another, moved on by reports and brought to an end.

Every function that writes holds the deployment's lock, so a deployment has at most one revision at work and one waiting
(contract: section 5.1). `active_revision_id` moves only here, when a listener reports DEPLOYED.
"""

from uuid import UUID

from portside.control.content import RevisionContent, content_again
from portside.control.errors import DeploymentLeaving, DeploymentNotFound, NeverBuilt, RevisionNotFound
from portside.control.moves import AT_THE_END, check_move, check_moves_on
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.secrets import seal_secrets
from portside.control.sources import image_version
from portside.control.sql import sql
from portside.control.types.dataplane import RevisionReport
from portside.control.types.deployments import Move, Revision, RevisionHistory, RevisionList, RevisionQuery
from portside.control.types.statuses import DeploymentStatus, RevisionStatus
from portside.control.views import show_revision
from portside.kernel.clock import iso
from portside.kernel.codec import storable
from portside.kernel.db import Record, Session, Transaction
from portside.kernel.ids import uuid7

INTERRUPTED = "It was interrupted."


async def start_revision(tx: Transaction, scope: Scope, deployment_id: UUID, content: RevisionContent) -> UUID:
    """Add a revision to a locked deployment: at work at once, or in the place of whatever waits. Returns its id."""
    await _move_waiting(tx, deployment_id, RevisionStatus.SKIPPED, "A newer revision took its place.")
    busy = await tx.fetchval(sql.revision_at_work, deployment_id=deployment_id)
    revision_id = uuid7()
    await tx.execute(
        sql.insert_revision,
        id=revision_id,
        deployment_id=deployment_id,
        status=RevisionStatus.QUEUED if busy else RevisionStatus.CREATING,
        source=content.source,
        repo_ref=content.repo_ref,
        repo_commit_sha=content.repo_commit_sha,
        graph_config_path=content.graph_config_path,
        image_uri=content.image_uri,
        image_version=image_version(content.image_uri),
        source_tarball_path=content.source_tarball_path,
        install_command=content.install_command,
        build_command=content.build_command,
        resource_spec=content.resource_spec,
        secret_references=content.secret_references or None,
        built_from=content.built_from,
        secrets_sealed=seal_secrets(scope.box, revision_id, content.secrets),
    )
    await tx.execute(sql.set_latest_revision, id=deployment_id, revision_id=revision_id)
    return revision_id


async def redeploy_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> None:
    """Start a revision of what this one was made of, at its commit and without building it again.

    Raises DeploymentNotFound, RevisionNotFound, DeploymentLeaving and NeverBuilt.
    """
    async with scope.change() as tx:
        deployment = await lock_deployment(tx, scope, deployment_id)
        row = await find_revision(tx, scope, deployment_id, revision_id)
        if deployment["status"] == DeploymentStatus.AWAITING_DELETE:
            raise DeploymentLeaving
        if not row["is_built"] and row["image_uri"] is None:
            raise NeverBuilt
        await start_revision(tx, scope, deployment_id, content_again(scope, row))


async def interrupt_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Stop a revision that is at work, or take it out of the queue; the waiting one starts in its place.

    Raises DeploymentNotFound, RevisionNotFound, and IllegalMove for a revision that is at its end.
    """
    async with scope.change() as tx:
        await lock_deployment(tx, scope, deployment_id)
        row = await find_revision(tx, scope, deployment_id, revision_id)
        if row["status"] == RevisionStatus.QUEUED:
            await _move_waiting(tx, deployment_id, RevisionStatus.SKIPPED, INTERRUPTED)
        else:
            check_moves_on(RevisionStatus(row["status"]), RevisionStatus.INTERRUPTED)
            await tx.execute(sql.interrupt_revision_at_work, deployment_id=deployment_id, reason=INTERRUPTED)
            await _move_waiting(tx, deployment_id, RevisionStatus.CREATING, None)
    return await get_revision(scope, deployment_id, revision_id)


async def report_revision(scope: Scope, deployment_id: UUID, revision_id: UUID, report: RevisionReport) -> None:
    """Move a revision on as its listener says; at its end the waiting one starts.

    Raises DeploymentNotFound, RevisionNotFound, and IllegalMove for a step that is not in the table of moves.
    """
    target = RevisionStatus(report.status)
    is_last = target in AT_THE_END
    async with scope.change() if is_last else scope.db.transaction() as tx:
        await lock_deployment(tx, scope, deployment_id)
        row = await find_revision(tx, scope, deployment_id, revision_id)
        check_move(RevisionStatus(row["status"]), target)
        await tx.execute(
            sql.report_revision,
            id=revision_id,
            status=target,
            reason=storable(report.reason, MAX_TEXT_BYTES) if report.reason else None,
            repo_commit_sha=report.repo_commit_sha,
        )
        if is_last and row["status"] != target:
            await _end(tx, deployment_id, revision_id, target)


async def _end(tx: Transaction, deployment_id: UUID, revision_id: UUID, status: RevisionStatus) -> None:
    if status is RevisionStatus.DEPLOYED:
        await tx.execute(sql.set_active_revision, id=deployment_id, revision_id=revision_id)
    await _move_waiting(tx, deployment_id, RevisionStatus.CREATING, None)


async def stop_revisions(tx: Transaction, deployment_id: UUID) -> None:
    """Bring every revision of a deployment that is being deleted to its end."""
    reason = "The deployment is being deleted."
    await tx.execute(sql.interrupt_revision_at_work, deployment_id=deployment_id, reason=reason)
    await _move_waiting(tx, deployment_id, RevisionStatus.SKIPPED, reason)


async def _move_waiting(tx: Transaction, deployment_id: UUID, status: RevisionStatus, reason: str | None) -> None:
    check_move(RevisionStatus.QUEUED, status)
    await tx.execute(sql.move_waiting_revision, deployment_id=deployment_id, status=status, reason=reason)


async def lock_deployment(tx: Transaction, scope: Scope, deployment_id: UUID) -> Record:
    """Take the lock that every change of a deployment needs, and return its row. Raises DeploymentNotFound."""
    row = await tx.fetchrow(sql.lock_deployment, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)
    return row


async def find_revision(db: Session, scope: Scope, deployment_id: UUID, revision_id: UUID) -> Record:
    """Return a revision's row. Raises DeploymentNotFound and RevisionNotFound."""
    row = await db.fetchrow(
        sql.get_revision, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
    )
    if row is None:
        await find_deployment(db, scope, deployment_id)
        raise RevisionNotFound.of(revision_id)
    return row


async def find_deployment(db: Session, scope: Scope, deployment_id: UUID) -> Record:
    """Return what does not change of a deployment: its source. Raises DeploymentNotFound."""
    row = await db.fetchrow(sql.deployment_source, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)
    return row


async def get_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Return one revision. Raises DeploymentNotFound and RevisionNotFound."""
    return show_revision(await find_revision(scope.db, scope, deployment_id, revision_id))


async def list_revisions(scope: Scope, deployment_id: UUID, query: RevisionQuery) -> RevisionList:
    """List a deployment's revisions, newest first. Raises DeploymentNotFound."""
    await find_deployment(scope.db, scope, deployment_id)
    rows = await scope.db.fetch(
        sql.list_revisions,
        deployment_id=deployment_id,
        statuses=query.status or None,
        names_listener=query.remote_reconciled,
        limit=query.limit,
        offset=query.offset,
    )
    return RevisionList([show_revision(row) for row in rows], query.offset + len(rows))


async def show_history(scope: Scope, deployment_id: UUID, revision_id: UUID) -> RevisionHistory:
    """Return every state that a revision was in. Raises DeploymentNotFound and RevisionNotFound."""
    await find_revision(scope.db, scope, deployment_id, revision_id)
    rows = await scope.db.fetch(sql.revision_history, revision_id=revision_id)
    return RevisionHistory([Move(RevisionStatus(row["status"]), row["reason"], iso(row["at"])) for row in rows])
