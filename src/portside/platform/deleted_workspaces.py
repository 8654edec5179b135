"""Deletes the data of deleted workspaces, of all packages, in the background."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from portside.identity.workspaces import find_next_to_empty, mark_emptied
from portside.kernel.db import Database
from portside.kernel.modules import EmptyWorkspace
from portside.kernel.reconcile import Status, Task

# Other processes cache keys for ten seconds, and may accept data in that time. It must be deleted too.
DELETE_AFTER = timedelta(seconds=60)


class DeletedWorkspaces(Task):
    """Deletes the data of deleted workspaces, a batch at a time, with the functions of all packages.

    Billing records stay.
    """

    every_s = 30.0
    deletes = True

    def __init__(
        self, db: Database, emptiers: Sequence[EmptyWorkspace], delete_after: timedelta = DELETE_AFTER
    ) -> None:
        super().__init__()
        self._db = db
        self._emptiers = emptiers
        self._delete_after = delete_after

    async def activate(self) -> Status:
        """Delete one batch."""
        workspace_id = await find_next_to_empty(self._db, self._delete_after)
        if workspace_id is None:
            return Status()

        is_empty = await self._empty(workspace_id)
        return Status({"workspaces": int(is_empty)}, again=True)

    async def _empty(self, workspace_id: UUID) -> bool:
        for empty_workspace in self._emptiers:
            if await empty_workspace(self._db, workspace_id):
                return False

        await mark_emptied(self._db, workspace_id)
        return True
