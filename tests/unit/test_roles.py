"""What each role permits: the ranks differ in exactly what is said here."""

import pytest

from portside.identity.roles import ORGANIZATION_ROLES, WORKSPACE_ROLES, get_permissions
from portside.identity.types import includes

RESOURCES = (
    "annotation-queues",
    "charts",
    "datasets",
    "deployments",
    "feedback",
    "projects",
    "prompts",
    "rules",
    "runs",
    "workspaces",
)
VERBS = ("create", "delete", "manage", "read", "share", "update")
ALL = {*(f"{resource}:{verb}" for resource in RESOURCES for verb in VERBS), "deployments:call"}
OF_ORGANIZATION = {"organization:read", "organization:manage", "organization:pats:create", "listeners:work"}


def list_allowed(organization_role: str | None, workspace_role: str | None) -> set[str]:
    permissions = get_permissions(organization_role, workspace_role)
    return {permission for permission in ALL | OF_ORGANIZATION if includes(permissions, permission)}


def test_roles_of_a_workspace() -> None:
    assert list(WORKSPACE_ROLES) == ["Admin", "Editor", "Viewer"], "the highest first"
    assert list_allowed(None, "Admin") == ALL
    assert ALL - list_allowed(None, "Editor") == {"runs:delete", "workspaces:manage", "deployments:delete"}
    assert list_allowed(None, "Viewer") == {f"{resource}:read" for resource in RESOURCES}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("Organization Admin", ALL | OF_ORGANIZATION),
        ("Organization Operator", {"organization:read", "organization:manage", "organization:pats:create"}),
        ("Organization User", {"organization:read", "organization:pats:create"}),
        ("Organization Viewer", {"organization:read"}),
        ("No Such Role", set()),
        (None, set()),
    ],
)
def test_roles_of_the_organization(role: str | None, allowed: set[str]) -> None:
    assert list_allowed(role, None) == allowed


def test_order_of_the_roles_of_the_organization_is_that_of_their_ranks() -> None:
    sizes = [len(list_allowed(role, None)) for role in ORGANIZATION_ROLES]
    assert sizes == sorted(sizes, reverse=True)
