"""The structs of identity: the actor of a request, and keys, workspaces and members as the API shows them."""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Annotated, ClassVar, NewType, Self
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from portside.kernel.clock import Moment
from portside.kernel.errors import Forbidden

OrganizationId = NewType("OrganizationId", UUID)
WorkspaceId = NewType("WorkspaceId", UUID)
KeyId = NewType("KeyId", UUID)
EVERYTHING = "*"
_READS_ORGANIZATION = "organization:read"
# `resource:verb`, `resource:*` or everything.
Permission = Annotated[
    str,
    msgspec.Meta(
        max_length=100,
        pattern=r"^(\*|[a-z_-]+:([a-z_-]+|\*)|organization:pats:create)$(?!\n)",
        description="a permission such as deployments:read",
    ),
]
Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)",
        description="text without line breaks and control characters",
    ),
]
# Control characters, and characters that nobody sees: an address with one looks like that of another person.
_UNSEEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
Email = Annotated[
    str,
    msgspec.Meta(
        min_length=3,
        max_length=320,
        pattern=rf"^[^\s@{_UNSEEN}]+@[^\s@{_UNSEEN}]+$(?!\n)",
        description="an e-mail address without invisible characters",
    ),
]
Handle = Annotated[
    str,
    msgspec.Meta(
        max_length=100,
        pattern=r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$(?!\n)",
        description="lower-case letters, digits, hyphens and underscores",
    ),
]


class WorkspaceRequired(Forbidden):
    """The key belongs to the organization; the route requires workspace specification by the header X-Tenant-Id."""

    code = "org_scoped_key_requires_workspace"
    error: ClassVar[str | None] = "org_scoped_key_requires_workspace"


class Actor(msgspec.Struct, frozen=True):
    """The caller of a request, with its workspace, if any, and its permissions.

    `permissions` are the key's. A user has only those that are in `role_permissions` too, which is None for a service
    key; `roles` are the user's in the organization and in the workspace. A service key of the organization may use
    `workspaces`, None for all.
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
    expires_at: Moment | None = None
    key_expires_at: Moment | None = None
    """When the key of the request expires, also if a session was made with it."""
    role_permissions: frozenset[str] | None = None
    roles: frozenset[str] = frozenset()
    workspaces: frozenset[UUID] | None = None
    is_of_organization: bool = False
    session_id: UUID | None = None
    """The session of the request, if it was made with one. A session of a user has it as `key_id` too."""
    is_browser: bool = False
    """Whether the session is a browser's: responses to pages never hold a secret."""

    @property
    def workspace_id(self) -> UUID:
        """The workspace of the request. Raises WorkspaceRequired if the request names none."""
        if self.workspace is None:
            raise WorkspaceRequired
        return self.workspace

    @property
    def is_unlimited(self) -> bool:
        """Whether the key or login has all permissions of its user or its workspaces."""
        return EVERYTHING in self.permissions

    @property
    def is_restricted(self) -> bool:
        """Whether this is a service key that cannot use all workspaces."""
        return self.user_id is None and not (self.is_of_organization and self.workspaces is None)

    def may(self, permission: str) -> bool:
        """Whether the actor has `resource:verb`, `resource:*` or everything.

        A key that is limited to workspaces cannot change the organization, or it could give itself the others.
        """
        if self.is_restricted and permission.startswith("organization:") and permission != _READS_ORGANIZATION:
            return False

        by_role = self.role_permissions is None or includes(self.role_permissions, permission)
        return by_role and self.key_has(permission)

    def key_has(self, permission: str) -> bool:
        """Whether the key itself has a permission, whatever the roles of its user allow."""
        return includes(self.permissions, permission)

    def list_permissions(self) -> list[str]:
        """Return the actor's permissions in their shortest form."""
        if self.role_permissions is None or EVERYTHING in self.role_permissions:
            return sorted(self.permissions)
        if EVERYTHING in self.permissions:
            return sorted(self.role_permissions)

        candidates = self.permissions | self.role_permissions
        return sorted(permission for permission in candidates if self.may(permission))


def includes(permissions: AbstractSet[str], permission: str) -> bool:
    """Whether permissions include `resource:verb`, by itself, as `resource:*` or as everything."""
    resource = permission.split(":", 1)[0]
    return not permissions.isdisjoint({permission, f"{resource}:*", EVERYTHING})


class Key(msgspec.Struct):
    """An API key as lists show it, without the key itself."""

    id: UUID
    short_key: str
    description: str
    permissions: list[str]
    read_only: bool
    created_at: Moment
    last_used_at: datetime | None
    expires_at: Moment | None
    workspace_names: list[str]
    default_workspace_id: UUID | None
    default_workspace_name: str | None
    # The part of the platform that uses the key; null for keys that people created.
    used_by: str | None
    # The e-mail address of the user who made the key, or the short form of the key that did; null if it is not known.
    created_by: str | None


class RevokeQuery(msgspec.Struct):
    """The options of a revocation."""

    # Required for a key that a part of the platform uses.
    force: bool = False


class NewKey(Key):
    """A new key, with the key itself, which is shown only once."""

    key: str


class KeyRequest(msgspec.Struct):
    """A key to create; without `permissions` or a role it gets all permissions of its creator.

    `workspaces` and `org_role_id` are for keys of the organization, `default_workspace_id` for keys of users.
    """

    description: Annotated[str, msgspec.Meta(max_length=1000)] = "Default API key"
    permissions: Annotated[list[Permission], msgspec.Meta(max_length=100)] | None = None
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    read_only: bool = False
    role_id: Name | None = None
    org_role_id: Name | None = None
    workspaces: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    default_workspace_id: UUID | None = None


class Role(msgspec.Struct, frozen=True):
    """A role in an organization or in a workspace."""

    id: UUID
    name: str
    display_name: str
    access_scope: str
    permissions: tuple[str, ...]

    @classmethod
    def build(cls, display_name: str, access_scope: str, permissions: Collection[str]) -> Self:
        """Return a role of the platform. Its id follows from its name, so it is the same on every installation."""
        if access_scope == "organization":
            name = display_name.upper().replace(" ", "_")
        else:
            name = f"WORKSPACE_{display_name.upper()}"

        return cls(
            id=uuid5(NAMESPACE_URL, f"portside:role:{name}"),
            name=name,
            display_name=display_name,
            access_scope=access_scope,
            permissions=tuple(sorted(permissions)),
        )


class Organization(msgspec.Struct):
    """The organization as the API shows it."""

    id: UUID
    display_name: str
    created_at: Moment


class Workspace(msgspec.Struct):
    """A workspace as the API shows it, with the caller's role in it."""

    id: UUID
    organization_id: UUID
    display_name: str
    tenant_handle: str
    created_at: Moment
    role_id: UUID | None = None
    role_name: str | None = None
    permissions: list[str] = []
    is_personal: bool = False
    is_deleted: bool = False
    read_only: bool = False


class WorkspaceRequest(msgspec.Struct):
    """A workspace to create; the handle is derived from the name unless it is given."""

    display_name: Name
    id: UUID | None = None
    tenant_handle: Handle | None = None


class WorkspacePatch(msgspec.Struct):
    """The changes of a workspace."""

    display_name: Name


class Member(msgspec.Struct):
    """A user in an organization or in a workspace, with a role."""

    id: UUID
    user_id: UUID
    email: str
    full_name: str | None
    role_id: UUID
    role_name: str
    created_at: Moment


class MemberRequest(msgspec.Struct):
    """A user to add to the organization. Leave out the password of a user who signs in another way.

    With `workspaces` the user joins those too, as `workspace_role`.
    """

    email: Email
    full_name: Name | None = None
    password: Annotated[str, msgspec.Meta(min_length=12, max_length=1000)] | None = None
    role_id: Name = "Organization User"
    workspaces: Annotated[list[UUID], msgspec.Meta(max_length=1000)] = []
    workspace_role: Name = "Editor"


class WorkspaceMemberRequest(msgspec.Struct):
    """A user of the organization to add to the workspace."""

    user_id: UUID
    role_id: Name = "Editor"


class RoleChange(msgspec.Struct):
    """A member's new role."""

    role_id: Name


class Credentials(msgspec.Struct):
    """A user's email and password."""

    email: Annotated[str, msgspec.Meta(max_length=320)]
    password: Annotated[str, msgspec.Meta(max_length=1000)]

    def __repr__(self) -> str:
        return f"Credentials({self.email!r})"


class NewPassword(msgspec.Struct):
    """A user's new password; `current` is not needed for the first one."""

    new: Annotated[str, msgspec.Meta(min_length=12, max_length=1000)]
    current: Annotated[str, msgspec.Meta(max_length=1000)] | None = None

    def __repr__(self) -> str:
        return "NewPassword()"


class LoggedIn(msgspec.Struct):
    """A token for the header `Authorization: Bearer …`."""

    access_token: str
    expires_at: Moment
    token_type: str = "bearer"  # noqa: S105 - the kind, not a token


class LoginSession(msgspec.Struct):
    """A session as lists show it: a browser that signed in (`cookie`), or a command line (`bearer`).

    `method` says how it began: with a password, with an API key, by OIDC, or approved in a browser (`device`).
    """

    id: UUID
    user_id: UUID | None
    user_email: str
    short_key: str
    kind: str
    method: str
    address: str | None
    client: str | None
    created_at: Moment
    last_used_at: Moment
    expires_at: Moment
    is_current: bool


class Identity(msgspec.Struct):
    """The response of `GET /auth`: the identity of the key or login."""

    organization_id: UUID
    tenant_id: UUID | None
    workspace_name: str | None
    tenant_handle: str | None
    user_id: UUID | None
    user_email: str | None
    key_id: UUID
    short_key: str
    permissions: list[str]
    # The roles of the user in the organization and in the workspace; empty for a service key.
    roles: list[str]

    @classmethod
    def of(cls, actor: Actor) -> Self:
        """Return the identity of an actor."""
        return cls(
            organization_id=actor.organization_id,
            tenant_id=actor.workspace,
            workspace_name=actor.workspace_name,
            tenant_handle=actor.tenant_handle,
            user_id=actor.user_id,
            user_email=actor.user_email,
            key_id=actor.key_id,
            short_key=actor.short_key,
            permissions=actor.list_permissions(),
            roles=sorted(actor.roles),
        )


class PublicIdentity(msgspec.Struct):
    """The response of `GET /auth/public`."""

    organization_id: UUID
    tenant_id: UUID | None
    user_id: UUID | None
    user_email: str | None
    ls_user_id: UUID | None
