"""Roles and their permissions.

Organization admins have all permissions in all workspaces. Other users have a role in each workspace they belong to.
"""

from collections.abc import Collection, Mapping

from portside.identity.types import EVERYTHING, Actor, Role
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
_ALL_PERMISSIONS = [*(f"{resource}:{verb}" for resource in _RESOURCES for verb in _VERBS), CALL_AGENTS]
# Both in the order of their rank, the highest first: `provisioning.py` depends on it.
ORGANIZATION_ROLES = {
    role.display_name: role
    for role in (
        Role.build(ORGANIZATION_ADMIN, "organization", {EVERYTHING}),
        Role.build(
            "Organization Operator",
            "organization",
            {"organization:read", "organization:manage", "organization:pats:create"},
        ),
        Role.build("Organization User", "organization", {"organization:read", "organization:pats:create"}),
        Role.build("Organization Viewer", "organization", {"organization:read"}),
    )
}
WORKSPACE_ROLES = {
    role.display_name: role
    for role in (
        Role.build(WORKSPACE_ADMIN, "workspace", {f"{resource}:*" for resource in _RESOURCES}),
        Role.build("Editor", "workspace", set(_ALL_PERMISSIONS) - _NOT_FOR_EDITORS),
        Role.build("Viewer", "workspace", {f"{resource}:read" for resource in _RESOURCES}),
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


def find_role(roles: Mapping[str, Role], name: str, field: str) -> Role:
    """Return a role by its id, name or display name. Raises Invalid that names the field of the body."""
    for role in roles.values():
        if name in {str(role.id), role.name, role.display_name}:
            return role

    raise Invalid.field(["body", *field.split(".")], f"is not a role; use one of {', '.join(roles)}")


def check_permissions(permissions: Collection[str]) -> None:
    """Refuse a name that is no permission: a key that was given it would never open anything. Raises Invalid."""
    for number, permission in enumerate(permissions):
        if permission in KNOWN_PERMISSIONS:
            continue

        resource = permission.partition(":")[0]
        hint = did_you_mean(permission, KNOWN_PERMISSIONS)
        if not hint:
            same_resource = [name for name in KNOWN_PERMISSIONS if name.startswith(f"{resource}:")]
            choices = sorted(same_resource or {*_RESOURCES, "organization", "listeners"})
            hint = f"; use one of {', '.join(choices)}"

        raise Invalid.field(["body", "permissions", number], f"{permission} is not a permission{hint}")


def get_permissions(organization_role: str | None, workspace_role: str | None) -> frozenset[str]:
    """Return the permissions of a user with these roles."""
    permissions: set[str] = set()
    if organization_role in ORGANIZATION_ROLES:
        permissions.update(ORGANIZATION_ROLES[organization_role].permissions)

    if workspace_role in WORKSPACE_ROLES:
        permissions.update(WORKSPACE_ROLES[workspace_role].permissions)

    return frozenset(permissions)


def check_outranks(actor: Actor, role: Role) -> None:
    """Check that the actor has all permissions of a role that it gives or takes away. Raises Forbidden."""
    missing = [permission for permission in role.permissions if not actor.may(permission)]
    if missing:
        raise Forbidden(
            f"You cannot give or remove the role {role.display_name}: you lack its permissions {', '.join(missing)}."
        )
