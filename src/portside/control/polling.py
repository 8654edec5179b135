"""Polling of branches that deployments follow, for git hosts that cannot call this platform.

One process polls a branch once per period. A commit that is new since the last poll starts a revision; an older one
does not, so a rollback stays until the next push.

`git_remotes.py` asks the repositories.
"""

import asyncio

from portside.control.git_remotes import PollFailed, fetch_newest_commit
from portside.control.integrations import find_credential
from portside.control.pushes import build_commit
from portside.control.revisions import TERMINAL
from portside.control.scope import ScopeFactory
from portside.control.sql import sql
from portside.kernel.db import Record
from portside.kernel.disk import DiskWatch
from portside.kernel.logs import get_logger
from portside.kernel.outbound import OutboundRules
from portside.kernel.reconcile import Status, Task
from portside.kernel.user_json import storable
from portside.listener_api import RevisionStatus

log = get_logger(__name__)
BATCH = 20
CONCURRENCY = 4


class PolledBranches(Task):
    """Polls the branches that deployments follow."""

    def __init__(
        self, scopes: ScopeFactory, period_s: float, rules: OutboundRules, disk: DiskWatch | None = None
    ) -> None:
        # Four times per period: a branch that becomes due just after an activation would wait a whole period otherwise.
        super().__init__(every_s=max(1.0, period_s / 4))
        self._scopes = scopes
        self._period_s = period_s
        self._rules = rules
        self._disk = disk

    async def activate(self) -> Status:
        """Poll the branches that are due and build new commits. On a disk that is nearly full builds wait."""
        if self._disk is not None and self._disk.shortage is not None:
            return Status()

        db = self._scopes.db
        claims = await db.fetch(sql.claim_polls, every_s=self._period_s, limit=BATCH)
        rows = await db.fetch(sql.branches_to_poll, ids=[claim["deployment_id"] for claim in claims])
        slots = asyncio.Semaphore(CONCURRENCY)

        async def poll(row: Record) -> bool:
            async with slots:
                return await self._poll(row)

        revision_count = sum(await asyncio.gather(*(poll(row) for row in rows)))
        return Status({"polled": len(rows), "started": revision_count}, again=len(claims) == BATCH)

    async def _poll(self, row: Record) -> bool:
        """Poll one branch; return whether that started a revision."""
        try:
            credential = find_credential(self._scopes.box, row)
            commit = await fetch_newest_commit(row["repo_url"], row["repo_ref"], credential, self._rules)
        except PollFailed as exc:
            await self._record_failure(row, str(exc))
            return False

        if commit is None:
            await self._record_failure(row, f"the repository has no branch {row['repo_ref']}")
            return False

        if row["failure"] is not None:
            await self._scopes.db.execute(sql.record_poll_failure, deployment_id=row["id"], failure=None)

        return await self._build_commit(row, commit)

    async def _record_failure(self, row: Record, failure: str) -> None:
        """Show a failure in the deployment's status, and log it when it is new, not after every poll."""
        failure = storable(failure)
        if await self._scopes.db.execute(sql.record_poll_failure, deployment_id=row["id"], failure=failure):
            log.warning("polling a branch failed", deployment_id=str(row["id"]), error=failure)

    async def _build_commit(self, row: Record, commit: str) -> bool:
        db = self._scopes.db
        branch = row["repo_ref"]
        latest = await db.fetchrow(sql.latest_content, id=row["id"], commit=commit)
        if latest is None or latest["repo_ref"] != branch or is_being_fetched(latest):
            return False

        if not is_new(latest, commit):
            if (latest["last_ref"], latest["last_commit"]) != (branch, commit):
                await db.execute(sql.record_seen_commit, deployment_id=row["id"], ref=branch, commit=commit)
            return False

        scope = self._scopes.for_workspace(row["organization_id"], row["workspace_id"])
        async with scope.change() as tx:
            return await build_commit(tx, scope, row["id"], branch=branch, commit=commit) is not None


def is_being_fetched(latest: Record) -> bool:
    """Whether an unfinished revision will fetch the newest commit anyway."""
    return latest["repo_commit_sha"] is None and RevisionStatus(latest["status"]) not in TERMINAL


def is_new(latest: Record, commit: str) -> bool:
    """Whether a branch has moved since the last poll, or since its latest revision."""
    if latest["repo_commit_sha"] == commit:
        return False
    if latest["last_ref"] == latest["repo_ref"]:
        return bool(latest["last_commit"] != commit)

    # The branch was never polled. A commit that was deployed before was rolled back on purpose; any other was pushed.
    return latest["repo_commit_sha"] is not None and not latest["was_deployed"]
