"""Revisions: their state machine, the queue behind a running one, and their logs.

Every function that writes holds the deployment's lock, so a deployment has at most one revision in progress and one
waiting. `active_revision_id` changes only here, when a listener reports DEPLOYED. The listener that works on a revision
reports its transitions; the control plane makes those into and out of the queue, and the interruptions by a user or a
delete. A terminal status never changes.

Logs are bounded: the newest entries of each log are kept. An offset is the id of the last entry read, so pages neither
skip nor repeat entries while others are added and trimmed.
"""

from datetime import UTC, datetime
from uuid import UUID

from portside.control.content import RevisionContent, redeployed_content
from portside.control.errors import (
    DeploymentNotFound,
    IllegalTransition,
    NeverBuilt,
    RedeployRefused,
    RevisionNotFound,
)
from portside.control.rules import MAX_TEXT_BYTES
from portside.control.scope import Scope
from portside.control.secrets import encrypt_secrets, find_ignored_secrets
from portside.control.sources import image_version
from portside.control.sql import sql
from portside.control.types import (
    LogEntry,
    LogFilter,
    LogPage,
    Move,
    Revision,
    RevisionHistory,
    RevisionList,
    RevisionQuery,
)
from portside.control.views import to_revision
from portside.kernel.clock import iso
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task
from portside.kernel.user_json import storable
from portside.listener_api import DeploymentStatus, LogBatch, LogType, RevisionReport, RevisionStatus

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


def check_status_change(current: RevisionStatus, target: RevisionStatus) -> None:
    """Check a transition to another status. Raises IllegalTransition."""
    if target not in TRANSITIONS[current]:
        raise IllegalTransition(f"A revision that is {current} cannot become {target}.")


def check_transition(current: RevisionStatus, target: RevisionStatus) -> None:
    """Check a report: a transition, or the current status again. Raises IllegalTransition."""
    if target != current:
        check_status_change(current, target)


INTERRUPTED = "It was interrupted."


async def start_revision(tx: Transaction, scope: Scope, deployment_id: UUID, content: RevisionContent) -> UUID:
    """Add a revision to a locked deployment and return its id.

    It starts at once, or replaces the waiting revision if another one is in progress.
    """
    await _change_waiting(tx, deployment_id, RevisionStatus.SKIPPED, "A newer revision replaced it.")
    busy = await tx.fetchval(sql.revision_in_progress, deployment_id=deployment_id)
    revision_id = uuid7()
    ignored_secrets = await find_ignored_secrets(tx, content.secrets)

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
        row = await find_revision(tx, scope, deployment_id, revision_id)

        if deployment["status"] == DeploymentStatus.AWAITING_DELETE:
            raise RedeployRefused
        if not row["is_built"] and row["image_uri"] is None:
            raise NeverBuilt

        await start_revision(tx, scope, deployment_id, redeployed_content(scope, row))


async def interrupt_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Stop a revision in progress, or take it out of the queue; then the waiting one starts.

    Raises DeploymentNotFound, RevisionNotFound, and IllegalTransition for a terminal revision.
    """
    async with scope.change() as tx:
        await lock_deployment(tx, scope, deployment_id)
        row = await find_revision(tx, scope, deployment_id, revision_id)
        if row["status"] == RevisionStatus.QUEUED:
            await _change_waiting(tx, deployment_id, RevisionStatus.SKIPPED, INTERRUPTED)
        else:
            check_status_change(RevisionStatus(row["status"]), RevisionStatus.INTERRUPTED)
            await tx.execute(sql.interrupt_revision_in_progress, deployment_id=deployment_id, reason=INTERRUPTED)
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
        row = await find_revision(tx, scope, deployment_id, revision_id)
        check_transition(RevisionStatus(row["status"]), target)

        await tx.execute(
            sql.report_revision,
            id=revision_id,
            status=target,
            reason=storable(report.reason, MAX_TEXT_BYTES) if report.reason else None,
            repo_commit_sha=report.repo_commit_sha,
        )

        if is_terminal and row["status"] != target:
            await _finish(tx, deployment_id, revision_id, target)


async def _finish(tx: Transaction, deployment_id: UUID, revision_id: UUID, status: RevisionStatus) -> None:
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
    """Return a deployment's immutable columns: its source. Raises DeploymentNotFound."""
    row = await db.fetchrow(sql.deployment_source, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)

    return row


async def get_revision(scope: Scope, deployment_id: UUID, revision_id: UUID) -> Revision:
    """Return one revision. Raises DeploymentNotFound and RevisionNotFound."""
    return to_revision(await find_revision(scope.db, scope, deployment_id, revision_id))


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

    return RevisionList([to_revision(row) for row in rows], query.offset + len(rows))


async def get_history(scope: Scope, deployment_id: UUID, revision_id: UUID) -> RevisionHistory:
    """Return the status history of a revision. Raises DeploymentNotFound and RevisionNotFound."""
    await find_revision(scope.db, scope, deployment_id, revision_id)
    rows = await scope.db.fetch(sql.revision_history, revision_id=revision_id)
    return RevisionHistory([Move(RevisionStatus(row["status"]), row["reason"], iso(row["at"])) for row in rows])


MAX_LOG_ENTRIES = 20_000


async def add_logs(scope: Scope, deployment_id: UUID, revision_id: UUID, batch: LogBatch) -> None:
    """Add entries to a revision's log and delete the oldest beyond the limit. Raises RevisionNotFound."""
    async with scope.db.transaction() as tx:
        locked = await tx.fetchval(
            sql.lock_revision_for_logs, id=revision_id, deployment_id=deployment_id, workspace_id=scope.workspace_id
        )
        if locked is None:
            raise RevisionNotFound.of(revision_id)

        await tx.execute(
            sql.insert_logs,
            deployment_id=deployment_id,
            revision_id=revision_id,
            type=batch.type,
            moments=[datetime.fromtimestamp(entry.timestamp / 1000, UTC) for entry in batch.entries],
            levels=[storable(entry.level, 20).upper() for entry in batch.entries],
            messages=[storable(entry.message, MAX_TEXT_BYTES) for entry in batch.entries],
        )

        await tx.execute(sql.trim_logs, revision_id=revision_id, type=batch.type, keep=MAX_LOG_ENTRIES)


class OldRevisionLogs(Task):
    """Deletes the logs of replaced revisions a number of days after their last entry; 0 keeps them."""

    every_s = 600.0
    deletes = True
    revisions_at_once = 20

    def __init__(self, db: Database, days: int) -> None:
        super().__init__()
        self._db = db
        self._days = days

    async def activate(self) -> Status:
        """Delete the logs of one batch of revisions."""
        if not self._days:
            return Status()

        lines = await self._db.execute(sql.delete_old_logs, days=self._days, batch=self.revisions_at_once)
        return Status({"lines": lines}, again=lines > 0)


async def read_revision_logs(
    scope: Scope, deployment_id: UUID, revision_id: UUID, kind: LogType, query: LogFilter
) -> LogPage:
    """Read a page of a revision's log. Raises DeploymentNotFound and RevisionNotFound."""
    await find_revision(scope.db, scope, deployment_id, revision_id)
    return await _read_logs(scope, (deployment_id, revision_id), kind, query)


async def read_deployment_logs(scope: Scope, deployment_id: UUID, kind: LogType, query: LogFilter) -> LogPage:
    """Read a page of the logs of all revisions of a deployment. Raises DeploymentNotFound."""
    await find_deployment(scope.db, scope, deployment_id)
    return await _read_logs(scope, (deployment_id, None), kind, query)


async def _read_logs(scope: Scope, ids: tuple[UUID, UUID | None], kind: LogType, query: LogFilter) -> LogPage:
    if query.run_id is not None:
        raise Invalid.field(["run_id"], "is not supported: revision logs are not linked to runs", "not_supported")

    rows = await scope.db.fetch(
        sql.logs_oldest_first if query.order == "asc" else sql.logs_newest_first,
        deployment_id=ids[0],
        revision_id=ids[1],
        type=kind,
        offset=int(query.offset) if query.offset else None,
        level=query.level.upper() if query.level else None,
        text=query.query or None,
        start_time=_aware(query.start_time),
        end_time=_aware(query.end_time),
        limit=query.limit,
    )

    return LogPage([_entry(row) for row in rows], _next_offset(rows, query))


def _next_offset(rows: list[Record], query: LogFilter) -> str | None:
    """Return the next page's offset. Ascending, more entries may come later; descending, a short page is the last."""
    if not rows or (query.order == "desc" and len(rows) < query.limit):
        return None
    return str(rows[-1]["id"])


def _aware(moment: datetime | None) -> datetime | None:
    """Read a time without a zone as UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _entry(row: Record) -> LogEntry:
    return LogEntry(str(row["id"]), round(row["at"].timestamp() * 1000), row["level"], row["message"])
