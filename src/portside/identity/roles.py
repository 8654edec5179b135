"""Roles and their permissions.

Organization admins have all permissions in all workspaces. Other users have a role in each workspace they belong to.
"""

from collections.abc import Collection, Mapping
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from portside.identity.types import EVERYTHING, Actor
from portside.kernel.errors import Forbidden, Invalid
from portside.kernel.spelling import did_you_mean

ORGANIZATION_ADMIN = "Organization Admin"
WORKSPACE_ADMIN = "Admin"
_RESOURCES = (
    "projects",
    "runs",
    "datasets",
    "feedback",
    "prompts",
    "charts",
    "deployments",
    "annotation-queues",
    "rules",
    "workspaces",
)
_NOT_FOR_EDITORS = frozenset({"runs:delete", "workspaces:manage", "deployments:delete"})
_VERBS = ("create", "read", "update", "delete", "share", "manage")
CALL_AGENTS = "deployments:call"


class Role(msgspec.Struct, frozen=True):
    """A role in an organization or in a workspace."""

    id: UUID
    name: str
    display_name: str
    access_scope: str
    permissions: tuple[str, ...]


def _role(name: str, scope: str, permissions: Collection[str]) -> Role:
    code = name.upper().replace(" ", "_") if scope == "organization" else f"WORKSPACE_{name.upper()}"
    return Role(uuid5(NAMESPACE_URL, f"portside:role:{code}"), code, name, scope, tuple(sorted(permissions)))


_ALL_PERMISSIONS = [*(f"{resource}:{verb}" for resource in _RESOURCES for verb in _VERBS), CALL_AGENTS]
# Both in the order of their rank, the highest first: `provisioning.py` depends on it.
ORGANIZATION_ROLES = {
    role.display_name: role
    for role in (
        _role(ORGANIZATION_ADMIN, "organization", {EVERYTHING}),
        _role(
            "Organization Operator",
            "organization",
            {"organization:read", "organization:manage", "organization:pats:create"},
        ),
        _role("Organization User", "organization", {"organization:read", "organization:pats:create"}),
        _role("Organization Viewer", "organization", {"organization:read"}),
    )
}
WORKSPACE_ROLES = {
    role.display_name: role
    for role in (
        _role(WORKSPACE_ADMIN, "workspace", {f"{resource}:*" for resource in _RESOURCES}),
        _role("Editor", "workspace", set(_ALL_PERMISSIONS) - _NOT_FOR_EDITORS),
        _role("Viewer", "workspace", {f"{resource}:read" for resource in _RESOURCES}),
    )
}
# A key may also be for a listener, or for everything of a resource.
KNOWN_PERMISSIONS = frozenset(
    {
        EVERYTHING,
        *_ALL_PERMISSIONS,
        *(f"{resource}:*" for resource in _RESOURCES),
        "organization:*",
        "organization:read",
        "organization:manage",
        "organization:pats:create",
        "listeners:*",
        "listeners:work",
    }
)
READ_ONLY = frozenset({"organization:read", *WORKSPACE_ROLES["Viewer"].permissions})


def find_role(roles: Mapping[str, Role], given: str, field: str) -> Role:
    """Return a role by its id, name or display name. Raises Invalid that names the field of the body."""
    for role in roles.values():
        if given in {str(role.id), role.name, role.display_name}:
            return role

    raise Invalid.field(["body", *field.split(".")], f"is not a role; use one of {', '.join(roles)}")


def check_permissions(permissions: Collection[str]) -> None:
    """Refuse a name that is no permission: a key that was given it would never open anything. Raises Invalid."""
    for number, permission in enumerate(permissions):
        if permission in KNOWN_PERMISSIONS:
            continue

        resource = permission.partition(":")[0]
        offered = sorted(known for known in KNOWN_PERMISSIONS if known.startswith(f"{resource}:"))
        meant = did_you_mean(permission, KNOWN_PERMISSIONS)
        hint = meant or f"; use one of {', '.join(offered or sorted({*_RESOURCES, 'organization', 'listeners'}))}"

        raise Invalid.field(["body", "permissions", number], f"{permission} is not a permission{hint}")


def get_permissions(organization_role: str | None, workspace_role: str | None) -> frozenset[str]:
    """Return the permissions of a user with these roles."""
    held: set[str] = set()
    if organization_role in ORGANIZATION_ROLES:
        held.update(ORGANIZATION_ROLES[organization_role].permissions)

    if workspace_role in WORKSPACE_ROLES:
        held.update(WORKSPACE_ROLES[workspace_role].permissions)

    return frozenset(held)


def check_outranks(actor: Actor, role: Role) -> None:
    """Check that the actor has all permissions of a role that it gives or takes away. Raises Forbidden."""
    beyond = [permission for permission in role.permissions if not actor.may(permission)]
    if beyond:
        raise Forbidden(
            f"You cannot give or remove the role {role.display_name}: you lack its permissions {', '.join(beyond)}."
        )
