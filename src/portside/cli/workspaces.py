"""`portside workspaces`: the workspaces of the organization that one may enter."""

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table
from portside.kernel.errors import UserMistake

PATH = "/workspaces"


@click.group()
def workspaces() -> None:
    """List, make, rename and delete workspaces."""


@workspaces.command("list")
@json_option
@connection_options
def list_(platform: Platform, *, as_json: bool) -> None:
    """List the workspaces that one may enter, oldest first, and one's role there."""
    found = platform.call("GET", PATH)
    if as_json:
        show_json(found)
        return
    rows = [(w["display_name"], w["tenant_handle"], w["role_name"], w["created_at"][:19], w["id"]) for w in found]
    show_table(("NAME", "HANDLE", "ROLE", "CREATED", "ID"), rows)


@workspaces.command()
@click.argument("name")
@click.option("--handle", help="Short name in lower case, which stays. [default: made from the name]")
@json_option
@connection_options
def create(platform: Platform, name: str, handle: str | None, *, as_json: bool) -> None:
    """Make a workspace with this NAME and print its id; a user who makes one is its admin."""
    made = platform.call("POST", PATH, body={"display_name": name, "tenant_handle": handle})
    if as_json:
        show_json(made)
    else:
        click.echo(made["id"])


@workspaces.command()
@click.argument("workspace_named", metavar="WORKSPACE")
@click.argument("name")
@connection_options
def rename(platform: Platform, workspace_named: str, name: str) -> None:
    """Give a WORKSPACE (id, handle or name) another NAME; its handle stays."""
    platform.call("PATCH", f"{PATH}/{platform.find_workspace(workspace_named)['id']}", body={"display_name": name})
    click.echo(f"{workspace_named} is now {name}")


@workspaces.command()
@click.argument("workspace_named", metavar="WORKSPACE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def delete(platform: Platform, workspace_named: str, *, yes: bool) -> None:
    """Delete a WORKSPACE (id, handle or name) without deployments, with all traces, datasets, prompts and keys."""
    found = platform.find_workspace(workspace_named)
    if not yes:
        handle = click.prompt(
            f"All that is in {found['display_name']} will be lost. Its handle, to delete it", err=True
        )
        if handle != found["tenant_handle"]:
            raise UserMistake(f"the handle is {found['tenant_handle']}; nothing was deleted")
    platform.call("DELETE", f"{PATH}/{found['id']}")
    click.echo(f"{found['display_name']} is deleted")
