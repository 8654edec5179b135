"""Revisions: their state machine, and the queue behind the one in progress.

Every function that writes holds the deployment's lock, so a deployment has at most one revision in progress and one
waiting. `active_revision_id` changes only here, when a listener reports DEPLOYED. The listener that works on a revision
reports its transitions; the control plane makes those into and out of the queue, and the interruptions by a user or a
delete. A terminal status never changes. `revision_logs.py` has the logs.
"""

from uuid import UUID

from portside.control.content import RevisionContent, build_redeploy_content
from portside.control.errors import DeploymentNotFound, IllegalTransition, NeverBuilt, RedeployRefused, RevisionNotFound
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.secrets import encrypt_secrets, find_ignored_secrets
from portside.control.sources import get_image_version
from portside.control.sql import sql
from portside.control.types import Move, Revision, RevisionHistory, RevisionList, RevisionQuery
from portside.control.views import to_revision
from portside.kernel.clock import iso
from portside.kernel.db import Record, Session, Transaction
from portside.kernel.ids import uuid7
from portside.kernel.user_json import storable
from portside.listener_api import DeploymentStatus, RevisionReport, RevisionStatus

TERMINAL = frozenset(
    {
        RevisionStatus.DEPLOYED,
        RevisionStatus.CREATE_FAILED,
        RevisionStatus.BUILD_FAILED,
        RevisionStatus.DEPLOY_FAILED,
        RevisionStatus.SKIPPED,
        RevisionStatus.INTERRUPTED,
        RevisionStatus.UNKNOWN,
    }
)
_STOPPED = frozenset({RevisionStatus.INTERRUPTED, RevisionStatus.UNKNOWN})

TRANSITIONS: dict[RevisionStatus, frozenset[RevisionStatus]] = {
    RevisionStatus.QUEUED: frozenset({RevisionStatus.CREATING, RevisionStatus.SKIPPED}),
    RevisionStatus.CREATING: _STOPPED
    | {RevisionStatus.AWAITING_BUILD, RevisionStatus.AWAITING_DEPLOY, RevisionStatus.CREATE_FAILED},
    RevisionStatus.AWAITING_BUILD: _STOPPED | {RevisionStatus.BUILDING, RevisionStatus.BUILD_FAILED},
    RevisionStatus.BUILDING: _STOPPED | {RevisionStatus.AWAITING_DEPLOY, RevisionStatus.BUILD_FAILED},
    RevisionStatus.AWAITING_DEPLOY: _STOPPED | {RevisionStatus.DEPLOYING, RevisionStatus.DEPLOY_FAILED},
    RevisionStatus.DEPLOYING: _STOPPED | {RevisionStatus.DEPLOYED, RevisionStatus.DEPLOY_FAILED},
    **dict.fromkeys(TERMINAL, frozenset()),
}
_INTERRUPTED = "It was interrupted."


def check_status_change(current: RevisionStatus, target: RevisionStatus) -> None:
    """Check a transition to another status. Raises IllegalTransition."""
    if target not in TRANSITIONS[current]:
        raise IllegalTransition(f"A revision that is {current} cannot become {target}.")


def check_transition(current: RevisionStatus, target: RevisionStatus) -> None:
    """Check a report: a transition, or the current status again. Raises IllegalTransition."""
    if target != current:
        check_status_change(current, target)


async def start_revision(tx: Transaction, scope: Scope, deployment_id: UUID, content: RevisionContent) -> UUID:
    """Add a revision to a locked deployment and return its id.

    It starts at once, or replaces the waiting revision if another one is in progress.
    """
    await _change_waiting(tx, deployment_id, RevisionStatus.SKIPPED, "A newer revision replaced it.")
    revision_in_progress = await tx.fetchval(sql.revision_in_progress, deployment_id=deployment_id)
    revision_id = uuid7()
    ignored_secrets = await find_ignored_secrets(tx, content.secrets)

    await tx.execute(
        sql.insert_revision,
        id=revision_id,
        deployment_id=deployment_id,
        status=RevisionStatus.QUEUED if revision_in_progress else RevisionStatus.CREATING,
        source=content.source,
        repo_ref=content.repo_ref,
        repo_commit_sha=content.repo_commit_sha,
        graph_config_path=content.graph_config_path,
        image_uri=content.image_uri,
        image_version=get_image_version(content.image_uri),
        source_tarball_path=content.source_tarball_path,
        install_command=content.install_command,
        build_command=content.build_command,
        resource_spec=content.resource_spec,
        secret_references=content.secret_references or None,
        built_from=content.built_from,
        secrets_sealed=encrypt_secrets(scope.box, revision_id, content.secrets),
        ignored_secrets=ignored_secrets,
    )

    await tx.execute(sql.set_latest_revision, id=deployment_id, revision_id=revision_id)
    return revision_id


async def redeploy_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> None:
    """Start a revision with this one's content, at its commit and without building it again.

    Raises DeploymentNotFound, RevisionNotFound, RedeployRefused and NeverBuilt.
    """
    async with scope.change() as tx:
        deployment = await lock_deployment(tx, scope, deployment_id)
        row = await read_revision(tx, scope, deployment_id, revision_id)

        if deployment["status"] == DeploymentStatus.AWAITING_DELETE:
            raise RedeployRefused
        if not row["is_built"] and row["image_uri"] is None:
            raise NeverBuilt

        await start_revision(tx, scope, deployment_id, build_redeploy_content(scope, row))


async def interrupt_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Stop a revision in progress, or take it out of the queue; then the waiting one starts.

    Raises DeploymentNotFound, RevisionNotFound, and IllegalTransition for a terminal revision.
    """
    async with scope.change() as tx:
        await lock_deployment(tx, scope, deployment_id)
        row = await read_revision(tx, scope, deployment_id, revision_id)
        if row["status"] == RevisionStatus.QUEUED:
            await _change_waiting(tx, deployment_id, RevisionStatus.SKIPPED, _INTERRUPTED)
        else:
            check_status_change(RevisionStatus(row["status"]), RevisionStatus.INTERRUPTED)
            await tx.execute(sql.interrupt_revision_in_progress, deployment_id=deployment_id, reason=_INTERRUPTED)
            await _change_waiting(tx, deployment_id, RevisionStatus.CREATING, None)

    return await get_revision(scope, deployment_id, revision_id)


async def report_revision(scope: Scope, deployment_id: UUID, revision_id: UUID, report: RevisionReport) -> None:
    """Apply a listener's report; after a terminal status the waiting revision starts.

    Raises DeploymentNotFound, RevisionNotFound, and IllegalTransition for a change that TRANSITIONS does not have.
    """
    target = RevisionStatus(report.status)
    is_terminal = target in TERMINAL

    # Only the end of a revision changes what listeners have to do, so only that wakes them.
    async with scope.change() if is_terminal else scope.db.transaction() as tx:
        await lock_deployment(tx, scope, deployment_id)
        row = await read_revision(tx, scope, deployment_id, revision_id)
        check_transition(RevisionStatus(row["status"]), target)

        await tx.execute(
            sql.report_revision,
            id=revision_id,
            status=target,
            reason=storable(report.reason, MAX_TEXT_BYTES) if report.reason else None,
            repo_commit_sha=report.repo_commit_sha,
            repo_commit_author=report.repo_commit_author,
            repo_commit_subject=report.repo_commit_subject,
        )

        if is_terminal and row["status"] != target:
            await _end_revision(tx, deployment_id, revision_id, target)


async def _end_revision(tx: Transaction, deployment_id: UUID, revision_id: UUID, status: RevisionStatus) -> None:
    if status is RevisionStatus.DEPLOYED:
        await tx.execute(sql.set_active_revision, id=deployment_id, revision_id=revision_id)
    await _change_waiting(tx, deployment_id, RevisionStatus.CREATING, None)


async def stop_revisions(tx: Transaction, deployment_id: UUID) -> None:
    """Interrupt or skip all unfinished revisions of a deployment that is being deleted."""
    reason = "The deployment is being deleted."
    await tx.execute(sql.interrupt_revision_in_progress, deployment_id=deployment_id, reason=reason)
    await _change_waiting(tx, deployment_id, RevisionStatus.SKIPPED, reason)


async def _change_waiting(tx: Transaction, deployment_id: UUID, status: RevisionStatus, reason: str | None) -> None:
    check_transition(RevisionStatus.QUEUED, status)
    await tx.execute(sql.update_waiting_revision, deployment_id=deployment_id, status=status, reason=reason)


async def lock_deployment(tx: Transaction, scope: Scope, deployment_id: UUID) -> Record:
    """Lock a deployment, as every change of it must, and return its row. Raises DeploymentNotFound."""
    row = await tx.fetchrow(sql.lock_deployment, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)

    return row


async def read_revision(db: Session, scope: Scope, deployment_id: UUID, revision_id: UUID) -> Record:
    """Return a revision's row. Raises DeploymentNotFound and RevisionNotFound."""
    row = await db.fetchrow(
        sql.get_revision, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
    )
    if row is None:
        await read_deployment(db, scope, deployment_id)
        raise RevisionNotFound.of(revision_id)

    return row


async def read_deployment(db: Session, scope: Scope, deployment_id: UUID) -> Record:
    """Return the row of a deployment with its immutable column, the source. Raises DeploymentNotFound."""
    row = await db.fetchrow(sql.deployment_source, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)

    return row


async def get_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Return one revision. Raises DeploymentNotFound and RevisionNotFound."""
    return to_revision(await read_revision(scope.db, scope, deployment_id, revision_id))


async def list_revisions(scope: Scope, deployment_id: UUID, query: RevisionQuery) -> RevisionList:
    """List a deployment's revisions, newest first. Raises DeploymentNotFound."""
    await read_deployment(scope.db, scope, deployment_id)
    rows = await scope.db.fetch(
        sql.list_revisions,
        deployment_id=deployment_id,
        statuses=query.status or None,
        names_listener=query.remote_reconciled,
        limit=query.limit,
        offset=query.offset,
    )

    return RevisionList([to_revision(row) for row in rows], query.offset + len(rows))


async def get_history(scope: Scope, deployment_id: UUID, revision_id: UUID) -> RevisionHistory:
    """Return the status history of a revision. Raises DeploymentNotFound and RevisionNotFound."""
    await read_revision(scope.db, scope, deployment_id, revision_id)
    rows = await scope.db.fetch(sql.revision_history, revision_id=revision_id)
    return RevisionHistory([Move(RevisionStatus(row["status"]), row["reason"], iso(row["at"])) for row in rows])
