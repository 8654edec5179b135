"""Looking after the branches of deployments that build on push, for git hosts that cannot call this platform.

A branch is looked at once in a period, by whichever process claims it. A commit that is new since the last look starts
a revision; one that was seen before does not, so that a rollback stays until somebody pushes again.
"""

import asyncio

from portside.control.background import Services
from portside.control.integrations import credential_of
from portside.control.moves import AT_THE_END
from portside.control.pushes import build_commit
from portside.control.remote_branches import LookFailed, newest_commit
from portside.control.sql import sql
from portside.control.types.statuses import RevisionStatus
from portside.kernel.db import Record
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
BATCH = 20
AT_ONCE = 4


class PolledBranches(Task):
    """Ask repositories for the newest commits of the branches that deployments follow."""

    def __init__(self, services: Services, period_s: float) -> None:
        # More often than each branch is due: a claim that comes a moment early would wait another period.
        super().__init__(every_s=max(1.0, period_s / 4))
        self._services, self._period_s = services, period_s

    async def activate(self) -> Status:
        """Look at the branches that are due, and build what is new."""
        db = self._services.db
        claimed = await db.fetch(sql.claim_polls, every_s=self._period_s, limit=BATCH)
        rows = await db.fetch(sql.branches_to_look_at, ids=[row["deployment_id"] for row in claimed])
        turns = asyncio.Semaphore(AT_ONCE)

        async def look(row: Record) -> bool:
            async with turns:
                return await self._look(row)

        started = sum(await asyncio.gather(*(look(row) for row in rows)))
        return Status({"looked": len(rows), "started": started}, again=len(claimed) == BATCH)

    async def _look(self, row: Record) -> bool:
        try:
            credential = credential_of(self._services.box, row)
            commit = await newest_commit(row["repo_url"], row["repo_ref"], credential)
        except LookFailed as exc:
            await self._note_failure(row, str(exc))
            return False
        if commit is None:
            await self._note_failure(row, f"the repository has no branch {row['repo_ref']}")
            return False
        return await self._build(row, commit)

    async def _note_failure(self, row: Record, failure: str) -> None:
        """Say it once, not with every look."""
        if await self._services.db.execute(sql.note_failure, deployment_id=row["id"], failure=failure):
            log.warning("a branch cannot be looked at", deployment_id=str(row["id"]), error=failure)

    async def _build(self, row: Record, commit: str) -> bool:
        db, branch = self._services.db, row["repo_ref"]
        latest = await db.fetchrow(sql.latest_content, id=row["id"])
        if latest is None or latest["repo_ref"] != branch or is_being_fetched(latest):
            return False
        if not is_new(latest, commit):
            if (latest["seen_ref"], latest["seen_commit"]) != (branch, commit):
                await db.execute(sql.note_seen, deployment_id=row["id"], ref=branch, commit=commit)
            return False
        scope = self._services.scope_for(row["organization_id"], row["workspace_id"])
        async with scope.change() as tx:
            return await build_commit(tx, scope, row["id"], branch, commit) is not None


def is_being_fetched(latest: Record) -> bool:
    """Whether a revision is on its way that fetches the newest commit by itself."""
    return latest["repo_commit_sha"] is None and RevisionStatus(latest["status"]) not in AT_THE_END


def is_new(latest: Record, commit: str) -> bool:
    """Whether a branch has moved since it was last looked at, or since the latest revision was made of it."""
    if latest["repo_commit_sha"] == commit:
        return False
    if latest["seen_ref"] == latest["repo_ref"]:
        return bool(latest["seen_commit"] != commit)
    # Never looked at: what was deployed again by hand says nothing about the branch.
    return latest["built_from"] is None and latest["repo_commit_sha"] is not None
