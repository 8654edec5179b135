"""What belonged to workspaces that were deleted is removed, room by room."""

from datetime import timedelta
from uuid import UUID

from portside.annotation.configs import empty_workspace as empty_annotation
from portside.control.occupancy import empty_workspace as empty_control
from portside.datasets.datasets import empty_workspace as empty_datasets
from portside.identity.workspaces import next_to_empty, tell_empty
from portside.kernel.db import Database
from portside.kernel.reconcile import Status, Task
from portside.prompts.repos import empty_workspace as empty_prompts
from portside.tracing.retention import empty_workspace as empty_traces

# Other processes remember keys for ten seconds, and what they let in meanwhile goes too.
SETTLED_AFTER = timedelta(seconds=60)


class DeletedWorkspaces(Task):
    """Empties one workspace after the other, a batch of its runs at a time. What was billed stays."""

    every_s = 30.0

    def __init__(self, db: Database, settled_after: timedelta = SETTLED_AFTER) -> None:
        super().__init__()
        self._db = db
        self._settled_after = settled_after

    async def activate(self) -> Status:
        """Remove one batch."""
        workspace_id = await next_to_empty(self._db, self._settled_after)
        if workspace_id is None:
            return Status()
        is_empty = await self._empty(workspace_id)
        return Status({"workspaces": int(is_empty)}, again=True)

    async def _empty(self, workspace_id: UUID) -> bool:
        if await empty_traces(self._db, workspace_id):
            return False
        for empty in (empty_annotation, empty_datasets, empty_prompts, empty_control):
            await empty(self._db, workspace_id)
        await tell_empty(self._db, workspace_id)
        return True
