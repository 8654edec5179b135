"""The values of identity: the actor behind a request, and keys, workspaces and members as the API shows them."""

from datetime import datetime
from typing import Annotated, ClassVar, NewType
from uuid import UUID

import msgspec

from portside.kernel.errors import Forbidden

OrganizationId = NewType("OrganizationId", UUID)
WorkspaceId = NewType("WorkspaceId", UUID)
KeyId = NewType("KeyId", UUID)
EVERYTHING = "*"
_READS_ORGANIZATION = "organization:read"
# `resource:verb`, `resource:*` or everything.
Permission = Annotated[
    str, msgspec.Meta(max_length=100, pattern=r"^(\*|[a-z_-]+:([a-z_-]+|\*)|organization:pats:create)$(?!\n)")
]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
Email = Annotated[str, msgspec.Meta(min_length=3, max_length=320, pattern=r"^[^\s@\x00-\x1f]+@[^\s@\x00-\x1f]+$(?!\n)")]
Handle = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$(?!\n)")]


class WorkspaceRequired(Forbidden):
    """The key belongs to the organization; the route requires workspace specification by the header X-Tenant-Id."""

    code = "org_scoped_key_requires_workspace"
    error: ClassVar[str | None] = "org_scoped_key_requires_workspace"


class Actor(msgspec.Struct, frozen=True):
    """Who is asking, in which workspace if any, and what they may do.

    `permissions` are the key's; of those a user has only what `role_permissions` hold too, which are None for a service
    key. A service key of the organization may enter `workspaces`, None for all.
    """

    key_id: UUID
    short_key: str
    organization_id: UUID
    workspace: UUID | None
    workspace_name: str | None
    tenant_handle: str | None
    user_id: UUID | None
    user_email: str | None
    permissions: frozenset[str]
    expires_at: datetime | None = None
    role_permissions: frozenset[str] | None = None
    workspaces: frozenset[UUID] | None = None
    is_of_organization: bool = False

    @property
    def workspace_id(self) -> UUID:
        """The workspace that the request is about. Raises WorkspaceRequired where none was named."""
        if self.workspace is None:
            raise WorkspaceRequired
        return self.workspace

    @property
    def is_unlimited(self) -> bool:
        """Whether the key or login may do all that its user or its workspaces allow."""
        return EVERYTHING in self.permissions

    @property
    def is_of_some_workspaces(self) -> bool:
        """Whether this is a service key that is kept to workspaces, whatever it may do there."""
        return self.user_id is None and not (self.is_of_organization and self.workspaces is None)

    def may(self, permission: str) -> bool:
        """Whether the actor holds `resource:verb`, `resource:*` or everything.

        A key that is kept to workspaces changes nothing of the organization: it could let itself into the others.
        """
        if self.is_of_some_workspaces and permission.startswith("organization:") and permission != _READS_ORGANIZATION:
            return False
        return _holds(self.permissions, permission) and (
            self.role_permissions is None or _holds(self.role_permissions, permission)
        )

    def effective_permissions(self) -> list[str]:
        """Return what the actor may do, in the shortest form."""
        if self.role_permissions is None or EVERYTHING in self.role_permissions:
            return sorted(self.permissions)
        if EVERYTHING in self.permissions:
            return sorted(self.role_permissions)
        either = self.permissions | self.role_permissions
        return sorted(permission for permission in either if self.may(permission))


def _holds(held: frozenset[str], permission: str) -> bool:
    resource = permission.split(":", 1)[0]
    return not held.isdisjoint({permission, f"{resource}:*", EVERYTHING})


class Key(msgspec.Struct):
    """An API key as it is listed: never the key itself (contract: hosted API, section g)."""

    id: UUID
    short_key: str
    description: str
    permissions: list[str]
    read_only: bool
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    workspace_names: list[str]
    default_workspace_id: UUID | None
    default_workspace_name: str | None


class NewKey(Key):
    """A key at the one moment when it can be read."""

    key: str


class KeyRequest(msgspec.Struct):
    """What to make a key with; without `permissions` or a role it may do everything that its maker may.

    `workspaces` and `org_role_id` are for keys of the organization, `default_workspace_id` is for keys of users.
    """

    description: Annotated[str, msgspec.Meta(max_length=1000)] = "Default API key"
    permissions: Annotated[list[Permission], msgspec.Meta(max_length=100)] | None = None
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    read_only: bool = False
    role_id: Name | None = None
    org_role_id: Name | None = None
    workspaces: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    default_workspace_id: UUID | None = None


class Organization(msgspec.Struct):
    """The organization as the API shows it."""

    id: UUID
    display_name: str
    created_at: datetime


class Workspace(msgspec.Struct):
    """A workspace as the API shows it, and what the caller is in it."""

    id: UUID
    organization_id: UUID
    display_name: str
    tenant_handle: str
    created_at: datetime
    role_id: UUID | None = None
    role_name: str | None = None
    permissions: list[str] = []
    is_personal: bool = False
    is_deleted: bool = False
    read_only: bool = False


class WorkspaceRequest(msgspec.Struct):
    """What to make a workspace with; the handle follows from the name unless it is given."""

    display_name: Name
    id: UUID | None = None
    tenant_handle: Handle | None = None


class WorkspacePatch(msgspec.Struct):
    """What to change of a workspace."""

    display_name: Name


class Member(msgspec.Struct):
    """A user in an organization or in a workspace, and as what."""

    id: UUID
    user_id: UUID
    email: str
    full_name: str | None
    role_id: UUID
    role_name: str
    created_at: datetime


class MemberRequest(msgspec.Struct):
    """Whom to add to the organization; a user needs a password only to log in.

    With `workspaces` the user joins those too, as `workspace_role`.
    """

    email: Email
    full_name: Name | None = None
    password: Annotated[str, msgspec.Meta(min_length=12, max_length=1000)] | None = None
    role_id: Name = "Organization User"
    workspaces: Annotated[list[UUID], msgspec.Meta(max_length=1000)] = []
    workspace_role: Name = "Editor"


class WorkspaceMemberRequest(msgspec.Struct):
    """Which user of the organization is to join the workspace."""

    user_id: UUID
    role_id: Name = "Editor"


class RoleChange(msgspec.Struct):
    """A member's other role."""

    role_id: Name


class Credentials(msgspec.Struct):
    """What a user logs in with."""

    email: Annotated[str, msgspec.Meta(max_length=320)]
    password: Annotated[str, msgspec.Meta(max_length=1000)]

    def __repr__(self) -> str:
        return f"Credentials({self.email!r})"


class NewPassword(msgspec.Struct):
    """A user's other password; `current` may be left out by one who has none."""

    new: Annotated[str, msgspec.Meta(min_length=12, max_length=1000)]
    current: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class LoggedIn(msgspec.Struct):
    """What a request brings as `Authorization: Bearer …` from now on."""

    access_token: str
    expires_at: datetime
    token_type: str = "bearer"  # noqa: S105 - the kind, not a token


class Identity(msgspec.Struct):
    """The answer of `GET /auth`: whom this key stands for."""

    organization_id: UUID
    tenant_id: UUID | None
    workspace_name: str | None
    tenant_handle: str | None
    user_id: UUID | None
    user_email: str | None
    key_id: UUID
    short_key: str
    permissions: list[str]


class PublicIdentity(msgspec.Struct):
    """The answer of `GET /auth/public`."""

    organization_id: UUID
    tenant_id: UUID | None
    user_id: UUID | None
    user_email: str | None
    ls_user_id: UUID | None
