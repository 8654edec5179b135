"""Deletes the data of deleted workspaces, of all packages, in the background."""

from datetime import timedelta
from uuid import UUID

from portside.annotation.queues import empty_workspace as empty_annotation
from portside.control.deployments import empty_workspace as empty_control
from portside.datasets.datasets import empty_workspace as empty_datasets
from portside.identity.workspaces import find_next_to_empty, mark_emptied
from portside.kernel.db import Database
from portside.kernel.reconcile import Status, Task
from portside.prompts.repos import empty_workspace as empty_prompts
from portside.tracing.retention import empty_workspace as empty_traces

# Other processes cache keys for ten seconds, and may accept data in that time. It must be deleted too.
DELETE_AFTER = timedelta(seconds=60)


class DeletedWorkspaces(Task):
    """Deletes the data of deleted workspaces, one batch of runs at a time. Billing records stay."""

    every_s = 30.0
    deletes = True

    def __init__(self, db: Database, delete_after: timedelta = DELETE_AFTER) -> None:
        super().__init__()
        self._db = db
        self._delete_after = delete_after

    async def activate(self) -> Status:
        """Delete one batch."""
        workspace_id = await find_next_to_empty(self._db, self._delete_after)
        if workspace_id is None:
            return Status()

        is_empty = await self._empty(workspace_id)
        return Status({"workspaces": int(is_empty)}, again=True)

    async def _empty(self, workspace_id: UUID) -> bool:
        if await empty_traces(self._db, workspace_id):
            return False

        for empty in (empty_annotation, empty_datasets, empty_prompts, empty_control):
            await empty(self._db, workspace_id)

        await mark_emptied(self._db, workspace_id)
        return True
