"""The values of identity: the actor behind a request, and keys as the API shows them."""

from datetime import datetime
from typing import Annotated, NewType
from uuid import UUID

import msgspec

OrganizationId = NewType("OrganizationId", UUID)
WorkspaceId = NewType("WorkspaceId", UUID)
KeyId = NewType("KeyId", UUID)
EVERYTHING = "*"
# `resource:verb`, `resource:*` or everything.
Permission = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^(\*|[a-z_-]+:([a-z_-]+|\*))$")]


class Actor(msgspec.Struct, frozen=True):
    """Who is asking, in which workspace, and what they may do."""

    key_id: UUID
    short_key: str
    organization_id: UUID
    workspace_id: UUID
    workspace_name: str
    tenant_handle: str
    user_id: UUID | None
    user_email: str | None
    permissions: frozenset[str]
    expires_at: datetime | None = None

    def may(self, permission: str) -> bool:
        """Whether the actor holds `resource:verb`, `resource:*` or everything."""
        resource = permission.split(":", 1)[0]
        return not self.permissions.isdisjoint({permission, f"{resource}:*", EVERYTHING})


class Key(msgspec.Struct):
    """An API key as it is listed: never the key itself (contract: hosted API, section g)."""

    id: UUID
    short_key: str
    description: str
    permissions: list[str]
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class NewKey(Key):
    """A key at the one moment when it can be read."""

    key: str


class KeyRequest(msgspec.Struct):
    """What to make a key with; without `permissions` it may do everything in the workspace."""

    description: Annotated[str, msgspec.Meta(max_length=1000)] = "Default API key"
    permissions: Annotated[list[Permission], msgspec.Meta(max_length=100)] | None = None
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class Workspace(msgspec.Struct):
    """A workspace as the API shows it."""

    id: UUID
    organization_id: UUID
    display_name: str
    tenant_handle: str
    created_at: datetime


class Identity(msgspec.Struct):
    """The answer of `GET /auth`: whom this key stands for."""

    organization_id: UUID
    tenant_id: UUID
    workspace_name: str
    tenant_handle: str
    user_id: UUID | None
    user_email: str | None
    short_key: str
    permissions: list[str]
