"""`portside keys`: the API keys of the workspace."""

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table


@click.group()
def keys() -> None:
    """List, make and revoke API keys."""


@keys.command("list")
@json_option
@connection_options
def list_(platform: Platform, *, as_json: bool) -> None:
    """List the keys, by the part of them that may be shown."""
    found = platform.call("GET", "/api-key")
    if as_json:
        show_json(found)
        return
    rows = [
        (k["short_key"], k["description"], k["created_at"][:19], k["last_used_at"] or "never", k["id"]) for k in found
    ]
    show_table(("KEY", "DESCRIPTION", "CREATED", "LAST USED", "ID"), rows)


@keys.command()
@click.option("--description", default="Made on the command line", show_default=True)
@click.option("--permission", "permissions", multiple=True, help="Like deployments:read; repeat. [default: everything]")
@json_option
@connection_options
def create(platform: Platform, description: str, permissions: tuple[str, ...], *, as_json: bool) -> None:
    """Make a key and print it; it is not shown again."""
    body = {"description": description, "permissions": list(permissions) or None}
    made = platform.call("POST", "/api-key", body=body)
    if as_json:
        show_json(made)
    else:
        click.echo(made["key"])


@keys.command()
@click.argument("key_id")
@connection_options
def revoke(platform: Platform, key_id: str) -> None:
    """Revoke the key with this id."""
    platform.call("DELETE", f"/api-key/{key_id}")
    click.echo("revoked")
