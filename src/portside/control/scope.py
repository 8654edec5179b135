"""What every call of the control plane works with: the services, and the caller's workspace.

Owns the rule for changes of desired state: the workspace's generation is bumped as the last statement of the
transaction, and waiting listeners are woken after the commit. Waking is only a hint; listeners look again anyway.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import msgspec

from portside.control.sql import sql
from portside.identity.keyring import Keyring
from portside.identity.types import Actor
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database, Transaction


class PlatformAddress(msgspec.Struct, frozen=True):
    """Where deployments reach this platform, as they are told in their environment."""

    url: str


class DesiredChanges:
    """Wakes what waits in this process for a change of a workspace's desired state."""

    def __init__(self) -> None:
        self._events: dict[UUID, asyncio.Event] = {}
        self.closed = False

    def watch(self, workspace_id: UUID) -> asyncio.Event:
        """Return an event that the next change sets; take it before looking at the rows."""
        return self._events.setdefault(workspace_id, asyncio.Event())

    def wake(self, workspace_id: UUID) -> None:
        """Say that the workspace's desired state has changed."""
        event = self._events.pop(workspace_id, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Let every wait end at once, now and from now on, so that the server can stop."""
        self.closed = True
        for workspace_id in list(self._events):
            self.wake(workspace_id)


@dataclass(frozen=True)
class Scope:
    """One call: the services it may use, and who makes it."""

    db: Database
    box: SecretBox
    keyring: Keyring
    changes: DesiredChanges
    actor: Actor

    @property
    def workspace_id(self) -> UUID:
        """The workspace whose deployments the call sees."""
        return self.actor.workspace_id

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Transaction]:
        """Open a transaction that changes what listeners have to bring about."""
        async with self.db.transaction() as tx:
            yield tx
            await tx.execute(sql.bump_generation, workspace_id=self.workspace_id)
        self.changes.wake(self.workspace_id)
