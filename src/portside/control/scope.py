"""The scope of a control plane call: its services and the workspace of its caller.

A change of desired state increments the workspace's generation as the last statement of its transaction and wakes
waiting listeners after the commit. The wake-up is an optimization: listeners also poll.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import msgspec

from portside.control.addresses import NO_ROUTER, PublicAddresses, Router
from portside.control.custom_hosts import NO_CUSTOM_HOSTS, CustomHosts
from portside.control.sql import sql
from portside.identity.authentication import Authenticator
from portside.identity.types import Actor
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database, Transaction

_NO_KEY = UUID(int=0)


class PlatformAddress(msgspec.Struct, frozen=True):
    """The platform's URL in the environment of deployments, and more proxies that deployments trust."""

    url: str
    trusted_proxies: str = ""


class DesiredChanges:
    """Wakes requests of this process that wait for a change of a workspace's desired state."""

    def __init__(self) -> None:
        self._events: dict[UUID, asyncio.Event] = {}
        self.closed = False

    def watch(self, workspace_id: UUID) -> asyncio.Event:
        """Return an event that the next change sets. Read the rows after this call, or a change is missed."""
        return self._events.setdefault(workspace_id, asyncio.Event())

    def wake(self, workspace_id: UUID) -> None:
        """Wake the requests that wait for this workspace."""
        event = self._events.pop(workspace_id, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """End all present and future waits, so that the server can stop."""
        self.closed = True
        for workspace_id in list(self._events):
            self.wake(workspace_id)


@dataclass(frozen=True)
class Scope:
    """The services and the actor of one call."""

    db: Database
    box: SecretBox
    authenticator: Authenticator
    changes: DesiredChanges
    actor: Actor
    addresses: PublicAddresses | None = None
    router: Router = NO_ROUTER
    custom_hosts: CustomHosts = NO_CUSTOM_HOSTS

    @property
    def workspace_id(self) -> UUID:
        """The workspace that the call acts on."""
        return self.actor.workspace_id

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Transaction]:
        """Open a transaction that changes the desired state."""
        async with self.db.transaction() as tx:
            yield tx
            # Last: this row's lock blocks other changes of the workspace until the commit.
            await tx.execute(sql.bump_generation, workspace_id=self.workspace_id)

        self.changes.wake(self.workspace_id)


@dataclass(frozen=True)
class ScopeFactory:
    """Creates scopes for work without an API key: pushes of git hosts and background tasks."""

    db: Database
    box: SecretBox
    authenticator: Authenticator
    changes: DesiredChanges

    def for_workspace(self, organization_id: UUID, workspace_id: UUID) -> Scope:
        """Return a scope of the platform itself. Its actor has no permissions, so no route would accept it."""
        actor = Actor(
            key_id=_NO_KEY,
            short_key="",
            organization_id=organization_id,
            workspace=workspace_id,
            workspace_name="",
            tenant_handle="",
            user_id=None,
            user_email=None,
            permissions=frozenset(),
        )

        return Scope(
            db=self.db,
            box=self.box,
            authenticator=self.authenticator,
            changes=self.changes,
            actor=actor,
        )
