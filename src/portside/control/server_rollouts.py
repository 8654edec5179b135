"""The order in which deployments get the agent server of a newer platform: one after the other.

After an upgrade the listener keeps the replicas of the earlier version. A rollout asks it for one deployment at a time
to replace them (`roll_forward` of the desired state), and continues once its report says that none is left. It halts at
the first deployment whose new server does not start; that one keeps serving with its earlier replica, and so do those
that have not had their turn. `resume` continues, and may skip deployments.

Servers that come with a build or an image of their own are not replaced: their next revision does that.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from uuid import UUID

import msgspec

from portside.control.scope import DesiredChanges
from portside.control.sql import sql
from portside.kernel.clock import now
from portside.kernel.db import Database, Record, Transaction
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.listener_api import DeploymentStatus

log = get_logger(__name__)
STARTED_AT = now()
# By then the platform's own listener has connected with the version that it has after an upgrade.
LISTENER_STARTS_WITHIN = timedelta(minutes=2)
_STEP_EVERY_S = 1.0
ServerState = Literal["current", "behind", "replacing", "failed", "own", "stopped", "unknown"]


class RolloutStatus(StrEnum):
    """The status of a rollout, as it is stored."""

    RUNNING = "running"
    HALTED = "halted"
    DONE = "done"


class DeploymentServer(msgspec.Struct, kw_only=True):
    """The agent server of a deployment.

    `state`: `behind` waits for its turn, `failed` keeps serving with its earlier replica, `own` comes with its build or
    image, `stopped` has no running replica, and `unknown` was not reported since the listener started.
    """

    id: UUID
    name: str
    version: str | None
    state: ServerState


class ServerRollout(msgspec.Struct, kw_only=True):
    """A rollout. `deployment_id` is the deployment that is being replaced, or the one that failed, for `reason`."""

    version: str
    status: Literal["running", "halted", "done"]
    deployment_id: UUID | None
    reason: str | None
    skipped: list[UUID]
    started_at: datetime
    changed_at: datetime


class Servers(msgspec.Struct):
    """The last rollout, if there was any, and the servers of all deployments by name."""

    rollout: ServerRollout | None
    servers: list[DeploymentServer]


async def get_servers(db: Database, version: str) -> Servers:
    """Return the servers of all deployments. `version` is the platform's; rollouts of others are over."""
    last = await db.fetchrow(sql.last_rollout)
    rollout = _to_rollout(last) if last is not None and last["version"] == version else None
    rows = await _list_servers(db, version)
    return Servers(rollout, [_to_server(row, rollout) for row in rows])


async def resume_rollout(db: Database, version: str, skipped: Sequence[UUID]) -> None:
    """Begin a rollout, or continue one that halted: the deployment that failed is tried again unless it is skipped.

    A rollout that runs only skips more deployments, of those whose turn has not come.
    """
    async with db.transaction() as tx:
        await tx.execute(sql.lock_rollouts)
        last = await tx.fetchrow(sql.last_rollout)
        if last is None or last["version"] != version or last["status"] == RolloutStatus.DONE:
            await tx.fetchval(sql.begin_rollout, version=version, skipped=list(skipped))
            return

        change = sql.resume_rollout if last["status"] == RolloutStatus.HALTED else sql.skip_in_rollout
        await tx.execute(change, id=last["id"], skipped=list({*last["skipped"], *skipped}))


class ServerRollouts(Task):
    """Takes the steps of a running rollout, and begins one when servers are behind if `is_automatic`.

    It is active every second while a rollout runs, and for some minutes after the platform's start, because listeners
    report servers that are behind after an upgrade. At other times `signal` activates it early.
    """

    every_s = 15.0

    def __init__(self, db: Database, changes: DesiredChanges, version: str, *, is_automatic: bool) -> None:
        super().__init__()
        self._db = db
        self._changes = changes
        self._version = version
        self._is_automatic = is_automatic

    async def activate(self) -> Status:
        """Take one step."""
        async with self._db.transaction() as tx:
            await tx.execute(sql.lock_rollouts)
            last = await tx.fetchrow(sql.last_rollout)
            rows = await _list_servers(tx, self._version)

            # Rollouts of other versions are over.
            status = last["status"] if last is not None and last["version"] == self._version else RolloutStatus.DONE
            is_starting = now() - STARTED_AT < 2 * LISTENER_STARTS_WITHIN
            self.report.every_s = _STEP_EVERY_S if status == RolloutStatus.RUNNING or is_starting else self.every_s

            if last is None or status == RolloutStatus.DONE:
                return await self._begin_if_behind(tx, rows)

            workspace_id = await self._take_step(tx, last, rows) if status == RolloutStatus.RUNNING else None
            if workspace_id is not None:
                # Last: this row's lock blocks other changes of the workspace until the commit.
                await tx.execute(sql.bump_generation, workspace_id=workspace_id)

        if workspace_id is None:
            return Status({"steps": 0})

        self._changes.wake(workspace_id)
        return Status({"steps": 1}, again=True)

    async def _begin_if_behind(self, tx: Transaction, rows: list[Record]) -> Status:
        is_behind = any(row["is_behind"] and row["is_reported"] for row in rows)
        if not self._is_automatic or not is_behind:
            return Status()

        await tx.fetchval(sql.begin_rollout, version=self._version, skipped=[])
        return Status(again=True)

    async def _take_step(self, tx: Transaction, rollout: Record, rows: list[Record]) -> UUID | None:
        """Take a step; return the workspace whose desired state changed."""
        current = next((row for row in rows if row["id"] == rollout["deployment_id"]), None)
        if current is not None:
            return await self._end_turn(tx, rollout, current)

        waiting = [row for row in rows if row["is_behind"] and row["id"] not in rollout["skipped"]]
        if not waiting:
            if all(row["is_reported"] or row["status"] != DeploymentStatus.READY for row in rows):
                await tx.execute(
                    sql.change_rollout, id=rollout["id"], status=RolloutStatus.DONE, deployment_id=None, reason=None
                )
            return None

        deployment = next((row for row in waiting if row["is_reported"]), None)
        if deployment is None:
            return None

        log.info("a deployment's servers are replaced by this version's", deployment=deployment["name"])
        await tx.execute(sql.request_roll_forward, id=deployment["id"])
        await tx.execute(
            sql.change_rollout,
            id=rollout["id"],
            status=RolloutStatus.RUNNING,
            deployment_id=deployment["id"],
            reason=None,
        )

        return UUID(str(deployment["workspace_id"]))

    async def _end_turn(self, tx: Transaction, rollout: Record, current: Record) -> UUID | None:
        """End the turn of a deployment once its report says how it went."""
        has_failed = current["failure"] is not None and current["ended_request"] == current["roll_forward"]
        if not has_failed and (current["is_behind"] or not current["is_reported"]):
            return None

        if has_failed:
            log.warning("the rollout halts", deployment=current["name"], reason=current["failure"])

        await tx.execute(sql.end_roll_forward, id=current["id"])
        await tx.execute(
            sql.change_rollout,
            id=rollout["id"],
            status=RolloutStatus.HALTED if has_failed else RolloutStatus.RUNNING,
            deployment_id=current["id"] if has_failed else None,
            reason=current["failure"] if has_failed else None,
        )

        return UUID(str(current["workspace_id"]))


async def _list_servers(session: Database | Transaction, version: str) -> list[Record]:
    is_settled = now() - STARTED_AT > LISTENER_STARTS_WITHIN
    return await session.fetch(sql.list_servers, version=version, is_settled=is_settled)


def _to_rollout(row: Record) -> ServerRollout:
    return ServerRollout(
        version=row["version"],
        status=row["status"],
        deployment_id=row["deployment_id"],
        reason=row["reason"],
        skipped=row["skipped"],
        started_at=row["started_at"],
        changed_at=row["changed_at"],
    )


def _to_server(row: Record, rollout: ServerRollout | None) -> DeploymentServer:
    is_current = rollout is not None and rollout.deployment_id == row["id"]

    state: ServerState = "current"
    if not row["is_reported"]:
        state = "unknown" if row["status"] == DeploymentStatus.READY else "stopped"
    elif row["is_behind"] and rollout is not None and is_current:
        state = "failed" if rollout.status == "halted" else "replacing"
    elif row["is_behind"]:
        state = "behind"
    elif row["server_version"] is None or row["server_version"] != row["listener_version"]:
        state = "own"

    return DeploymentServer(id=row["id"], name=row["name"], version=row["server_version"], state=state)
