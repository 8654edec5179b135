"""`portside members`: who belongs to the organization, or with `--workspace` to a workspace of it."""

from typing import Any

import click

from portside.cli.asking import ask_secret
from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table
from portside.kernel.errors import UserMistake

_OF_ORGANIZATION, _OF_WORKSPACE = "/orgs/current/members", "/workspaces/current/members"


@click.group()
def members() -> None:
    """List, add and remove members of the organization, or with --workspace of a workspace; change their roles."""


@members.command("list")
@json_option
@connection_options
def list_(platform: Platform, *, as_json: bool) -> None:
    """List the members in the order they came."""
    found = platform.call("GET", _path(platform))
    if as_json:
        show_json(found)
        return
    rows = [(m["email"], m["full_name"], m["role_name"], m["created_at"][:19], m["id"]) for m in found]
    show_table(("EMAIL", "NAME", "ROLE", "SINCE", "ID"), rows)


@members.command()
@click.argument("email")
@click.option("--role", help="[default: Organization User, and Editor in a workspace]")
@click.option("--name", "full_name", help="The user's full name.")
@click.option("--password", is_flag=True, help="Ask for a first password, or read it from standard input.")
@json_option
@connection_options
def add(platform: Platform, email: str, *, password: bool, as_json: bool, **given: str | None) -> None:
    """Make a user with this EMAIL, who needs a password only to log in; with --workspace, let a user into it."""
    if platform.workspace is None:
        body = {"email": email, "full_name": given["full_name"]}
        body |= {"password": ask_secret("Password")} if password else {}
    elif given["full_name"] is not None or password:
        raise UserMistake("--name and --password are for new users of the organization; leave out --workspace")
    else:
        body = {"user_id": _find(platform, _OF_ORGANIZATION, email)["user_id"]}
    body |= {"role_id": given["role"]} if given["role"] else {}
    made = platform.call("POST", _path(platform), body=body)
    if as_json:
        show_json(made)
    else:
        click.echo(f"{email} is a member: {made['role_name']}")


@members.command()
@click.argument("member")
@click.argument("role_name", metavar="ROLE")
@connection_options
def role(platform: Platform, member: str, role_name: str) -> None:
    """Give a MEMBER (email or id) another ROLE; 'portside roles' lists them."""
    found = _find(platform, _path(platform), member)
    changed = platform.call("PATCH", f"{_path(platform)}/{found['id']}", body={"role_id": role_name})
    click.echo(f"{found['email']} is now {changed['role_name']}")


@members.command()
@click.argument("member")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def remove(platform: Platform, member: str, *, yes: bool) -> None:
    """Remove a MEMBER (email or id): from the organization with all keys and logins, or just from the --workspace."""
    found = _find(platform, _path(platform), member)
    if not yes:
        click.confirm(f"Remove {found['email']} from the {_place(platform)}?", abort=True)
    platform.call("DELETE", f"{_path(platform)}/{found['id']}")
    click.echo(f"{found['email']} is removed from the {_place(platform)}")


def _path(platform: Platform) -> str:
    return _OF_ORGANIZATION if platform.workspace is None else _OF_WORKSPACE


def _place(platform: Platform) -> str:
    return "organization" if platform.workspace is None else "workspace"


def _find(platform: Platform, path: str, member: str) -> dict[str, Any]:
    """Return a member by email or id. Raises UserMistake where there is none."""
    for found in platform.call("GET", path):
        if member in {found["email"], found["id"]}:
            return dict(found)
    place = "organization" if path == _OF_ORGANIZATION else "workspace"
    raise UserMistake(f"{member} is no member of the {place}; 'portside members list' shows them")
