"""What acts for a workspace without a key of it: pushes of git hosts and work in the background."""

from dataclasses import dataclass
from uuid import UUID

from portside.control.scope import DesiredChanges, Scope
from portside.identity.keyring import Keyring
from portside.identity.types import Actor
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database

NOBODY = UUID(int=0)


@dataclass(frozen=True)
class Services:
    """What a scope is made of, short of who acts."""

    db: Database
    box: SecretBox
    keyring: Keyring
    changes: DesiredChanges

    def scope_for(self, organization_id: UUID, workspace_id: UUID) -> Scope:
        """Return the scope of the platform itself in a workspace; it has no permission that a route would ask for."""
        actor = Actor(
            key_id=NOBODY,
            short_key="",
            organization_id=organization_id,
            workspace=workspace_id,
            workspace_name="",
            tenant_handle="",
            user_id=None,
            user_email=None,
            permissions=frozenset(),
        )
        return Scope(self.db, self.box, self.keyring, self.changes, actor)
