"""The organization and who may use it: `portside organization`, `workspaces`, `members` and `roles`."""

from typing import Any

import click

from portside.cli.client import Platform, ask_secret, connection_options
from portside.cli.output import CommandGroup, confirm, escape, json_option, show_json, show_table, show_text
from portside.kernel.errors import UserMistake

_ORGANIZATION = "/orgs/current"
_WORKSPACES = "/workspaces"
_ORGANIZATION_MEMBERS = "/orgs/current/members"
_WORKSPACE_MEMBERS = "/workspaces/current/members"


@click.group(cls=CommandGroup)
def organization() -> None:
    """Show and rename the organization."""


@organization.command("show")
@json_option
@connection_options
def show_organization(platform: Platform, *, as_json: bool) -> None:
    """Show the organization."""
    info = platform.call("GET", _ORGANIZATION)
    if as_json:
        show_json(info)
        return

    show_table(("NAME", "CREATED", "ID"), [(info["display_name"], info["created_at"][:19], info["id"])])


@organization.command("rename")
@click.argument("name")
@connection_options
def rename_organization(platform: Platform, name: str) -> None:
    """Rename the organization to NAME."""
    platform.call("PATCH", _ORGANIZATION, body={"display_name": name})
    show_text(f"the organization is now {name}")


@click.group(cls=CommandGroup)
def workspaces() -> None:
    """List, create, rename and delete workspaces."""


@workspaces.command("list")
@json_option
@connection_options
def list_workspaces(platform: Platform, *, as_json: bool) -> None:
    """List the workspaces that you may use, oldest first, with your role."""
    items = platform.call("GET", _WORKSPACES)
    if as_json:
        show_json(items)
        return

    rows = [(w["display_name"], w["tenant_handle"], w["role_name"], w["created_at"][:19], w["id"]) for w in items]
    show_table(("NAME", "HANDLE", "ROLE", "CREATED", "ID"), rows)


@workspaces.command("create")
@click.argument("name")
@click.option("--handle", help="Short lower-case name, which cannot be changed later. [default: derived from the name]")
@json_option
@connection_options
def create_workspace(platform: Platform, name: str, handle: str | None, *, as_json: bool) -> None:
    """Create a workspace with this NAME and print its id; a user who creates one becomes its admin."""
    workspace = platform.call("POST", _WORKSPACES, body={"display_name": name, "tenant_handle": handle})
    if as_json:
        show_json(workspace)
    else:
        show_text(workspace["id"])


@workspaces.command("rename")
@click.argument("identifier", metavar="WORKSPACE")
@click.argument("name")
@connection_options
def rename_workspace(platform: Platform, identifier: str, name: str) -> None:
    """Rename a WORKSPACE (id, handle or name) to NAME; its handle stays."""
    platform.call("PATCH", f"{_WORKSPACES}/{platform.find_workspace(identifier)['id']}", body={"display_name": name})
    show_text(f"{identifier} is now {name}")


@workspaces.command("delete")
@click.argument("identifier", metavar="WORKSPACE")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete_workspace(platform: Platform, identifier: str, *, yes: bool) -> None:
    """Delete a WORKSPACE (id, handle or name) without deployments, and all its traces, datasets, prompts and keys."""
    workspace = platform.find_workspace(identifier)
    if not yes:
        question = f"Everything in {workspace['display_name']} will be lost. Type its handle to delete it"
        handle = click.prompt(escape(question), err=True)
        if handle != workspace["tenant_handle"]:
            raise UserMistake(f"this is not the handle {workspace['tenant_handle']}; nothing was deleted")

    platform.call("DELETE", f"{_WORKSPACES}/{workspace['id']}")
    show_text(f"{workspace['display_name']} is deleted")


@click.group(cls=CommandGroup)
def members() -> None:
    """List, add and remove members of the organization, or with --workspace of a workspace; change their roles."""


@members.command("list")
@json_option
@connection_options
def list_members(platform: Platform, *, as_json: bool) -> None:
    """List the members, oldest first."""
    items = platform.call("GET", _get_members_path(platform))
    if as_json:
        show_json(items)
        return

    rows = [(m["email"], m["full_name"], m["role_name"], m["created_at"][:19], m["id"]) for m in items]
    show_table(("EMAIL", "NAME", "ROLE", "SINCE", "ID"), rows)


@members.command("add")
@click.argument("email")
@click.option("--role", help="Role of the member. [default: Organization User, and Editor in a workspace]")
@click.option("--name", "full_name", help="The user's full name.")
@click.option("--password", is_flag=True, help="Prompt for a first password, or read it from standard input.")
@json_option
@connection_options
def add_member(platform: Platform, email: str, *, password: bool, as_json: bool, **options: str | None) -> None:
    """Add a user with this EMAIL to the organization; with --workspace, add one of its members to the workspace.

    A user who signs in another way, such as with a key, needs no password.
    """
    if platform.workspace is None:
        body = {"email": email, "full_name": options["full_name"]}
        if password:
            body["password"] = ask_secret("Password")
    elif options["full_name"] is not None or password:
        raise UserMistake("--name and --password are for new users of the organization; leave out --workspace")
    else:
        body = {"user_id": _find_member(platform, _ORGANIZATION_MEMBERS, email)["user_id"]}

    if options["role"]:
        body["role_id"] = options["role"]

    member = platform.call("POST", _get_members_path(platform), body=body)
    if as_json:
        show_json(member)
    else:
        show_text(f"{email} is a member: {member['role_name']}")


@members.command("role")
@click.argument("member")
@click.argument("role_name", metavar="ROLE")
@connection_options
def set_role(platform: Platform, member: str, role_name: str) -> None:
    """Change the ROLE of a MEMBER (email or id); 'portside roles' lists the roles."""
    membership = _find_member(platform, _get_members_path(platform), member)
    updated_membership = platform.call(
        "PATCH", f"{_get_members_path(platform)}/{membership['id']}", body={"role_id": role_name}
    )
    show_text(f"{membership['email']} is now {updated_membership['role_name']}")


@members.command("remove")
@click.argument("member")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def remove_member(platform: Platform, member: str, *, yes: bool) -> None:
    """Remove a MEMBER (email or id) from the organization, with all keys and logins, or only from the --workspace."""
    membership = _find_member(platform, _get_members_path(platform), member)
    if not yes:
        confirm(f"Remove {membership['email']} from the {_get_scope(platform)}?")

    platform.call("DELETE", f"{_get_members_path(platform)}/{membership['id']}")
    show_text(f"{membership['email']} is removed from the {_get_scope(platform)}")


def _get_members_path(platform: Platform) -> str:
    return _ORGANIZATION_MEMBERS if platform.workspace is None else _WORKSPACE_MEMBERS


def _get_scope(platform: Platform) -> str:
    return "organization" if platform.workspace is None else "workspace"


def _find_member(platform: Platform, path: str, member: str) -> dict[str, Any]:
    """Return a member by email or id. Raises UserMistake for an unknown one."""
    for membership in platform.call("GET", path):
        if member in {membership["email"], membership["id"]}:
            return dict(membership)

    group = "organization" if path == _ORGANIZATION_MEMBERS else "workspace"
    raise UserMistake(f"{member} is not a member of the {group}; 'portside members list' shows them")


@click.command()
@json_option
@connection_options
def roles(platform: Platform, *, as_json: bool) -> None:
    """List the roles of the organization and of workspaces; --json includes their permissions."""
    items = platform.call("GET", "/orgs/current/roles")
    if as_json:
        show_json(items)
        return

    rows = [(role["display_name"], role["access_scope"], role["name"], len(role["permissions"])) for role in items]
    show_table(("ROLE", "OF", "CODE", "PERMISSIONS"), rows)
